//! Runs single packets through the tc programs with the kernel's `BPF_PROG_TEST_RUN`, and returns
//! verdict and packet. Each test finds empty maps, and fills them.

mod connections;
mod fast_path;
mod hops;
mod outside;
mod quota;
mod reuse;

pub use connections::uptime;
pub use outside::MARK;

use std::env;
use std::mem::ManuallyDrop;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result};
use aya::maps::{Array, HashMap, MapData, PerCpuArray};
use aya::programs::{ProgramInfo, SchedClassifier, TestRun, TestRunOptions};
use aya::{Ebpf, EbpfLoader};
use bytemuck::Pod;
use fs_err as fs;
use topo_lb_common::backend::Locality;
use topo_lb_common::counters::sum;
use topo_lb_common::maps;
use topo_lb_common::members::{CHOSEN, Member};
use topo_lb_common::packets::Packets;
use topo_lb_common::range::Range;
use topo_lb_common::record::NO_TIER;
use topo_lb_common::selection::NO_SLOTS;
use topo_lb_kernel::datapath::maps::encode::{Head, Layout, V4, V6};
use topo_lb_kernel::datapath::programs::object::{Constants, TcpPeer};

use self::reuse::Purpose;
use crate::frame::NODE_MAC;

/// `TC_ACT_UNSPEC`: the hook's next program decides.
pub const NEXT: i32 = -1;
/// `TC_ACT_SHOT`.
pub const DROP: i32 = 2;
/// `TC_ACT_REDIRECT`: here always out of the device by which the packet arrived.
pub const BACK: i32 = 7;

/// Interface index of the loopback device.
pub const LOOPBACK: u32 = 1;
/// Its hardware address.
const LOOPBACK_MAC: [u8; 6] = [0; 6];

/// A tc hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Packets from a client.
    Ingress,
    /// Packets to a client.
    Egress,
    /// Packets from a client outside of the node.
    ExternalIngress,
    /// Packets to a client outside of the node.
    ExternalEgress,
}

impl Hook {
    const fn program(self) -> &'static str {
        match self {
            Self::Ingress => "topo_lb_ingress",
            Self::Egress => "topo_lb_egress",
            Self::ExternalIngress => "topo_lb_external_ingress",
            Self::ExternalEgress => "topo_lb_external_egress",
        }
    }

    const fn is_external(self) -> bool {
        matches!(self, Self::ExternalIngress | Self::ExternalEgress)
    }

    /// Its index in `packets`.
    const fn index(self) -> u32 {
        match self {
            Self::Ingress | Self::ExternalIngress => 0,
            Self::Egress | Self::ExternalEgress => 1,
        }
    }
}

/// The programs, for one test.
#[derive(Debug)]
pub struct Programs {
    purpose: Purpose,
    ebpf: ManuallyDrop<Ebpf>,
    /// Records in use, of both families.
    records: u32,
    /// Of new records.
    affinity_seconds: u32,
}

/// A layout as aya needs it.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Raw<T>(pub(crate) T);
// SAFETY: `bytemuck::Pod` has the same requirements.
unsafe impl<T: Pod> aya::Pod for Raw<T> {}

/// Maps in the storage of sockets, which have no size.
const IN_SOCKETS: [&str; 2] = ["connected", "flows"];

/// Maps of one entry, that programs index by constants, or with a size that matters: tests keep
/// their sizes.
const FIXED: [&str; 26] = [
    maps::RANGE,
    maps::EXCLUSION,
    maps::REVISION,
    maps::LEASE,
    maps::PACKETS,
    maps::TORN,
    maps::TRACE,
    maps::TRACE_LOST,
    maps::TOTALS,
    maps::FAR_ENDPOINTS,
    maps::FAILING,
    maps::DEVICES,
    maps::QUOTA,
    maps::HALF_OPEN4,
    maps::HALF_OPEN6,
    maps::FRAGMENTS4,
    maps::FRAGMENTS6,
    maps::SETTLED4,
    maps::SETTLED6,
    maps::OPENED4,
    maps::OPENED6,
    maps::OPENINGS4,
    maps::OPENINGS6,
    maps::USAGE,
    maps::FRONTENDS,
    maps::PROBES,
];

/// The object file that the agent embeds; that of the stress test is beside it.
#[must_use]
pub fn object_path() -> PathBuf {
    match env::var_os("TOPO_LB_EBPF_OBJECT") {
        Some(path) => path.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bpf/topo-lb.o"),
    }
}

/// The object that the agent embeds.
pub(crate) fn object() -> Result<Vec<u8>> {
    fs::read(object_path()).context("build the object with cargo xtask build-ebpf")
}

/// Makes the maps of an object, with `entries` each, and prepares its programs.
pub(crate) fn load_object<'a>(
    loader: &mut EbpfLoader<'a>,
    object: &[u8],
    constants: &'a Constants,
    entries: u32,
) -> Result<Ebpf> {
    loader.btf(None);
    constants.put(loader);
    for name in maps::ALL {
        if !FIXED.contains(&name) && !IN_SOCKETS.iter().any(|prefix| name.starts_with(prefix)) {
            let is_queue = [maps::CLOSED4, maps::CLOSED6].contains(&name);
            loader
                .map_max_entries(name, if is_queue { maps::closed(entries / 2) } else { entries });
        }
    }
    loader.load(object).context("the object cannot be loaded")
}

impl Programs {
    /// Loads both programs, without a Service.
    pub fn load() -> Result<Self> {
        Self::with_room(1_024)
    }

    /// Like [`load`](Self::load), with `entries` per map.
    pub fn with_room(entries: u32) -> Result<Self> {
        Self::with(
            || Constants::probe(TcpPeer::Service, entries),
            (entries, &[Hook::Ingress, Hook::Egress]),
        )
    }

    /// Takes the programs of an earlier test, or loads them.
    fn with(constants: impl FnOnce() -> Constants, purpose: Purpose) -> Result<Self> {
        let ebpf = match reuse::take(purpose)? {
            Some(ebpf) => ebpf,
            None => load(&constants(), purpose)?,
        };
        let mut programs =
            Self { purpose, ebpf: ManuallyDrop::new(ebpf), records: 0, affinity_seconds: 0 };
        programs.write_range(Range::EMPTY)?;
        programs.rely_on_marks(true)?;
        Ok(programs)
    }

    /// Runs a packet through a hook's program, on the loopback device; returns the verdict and the
    /// resulting packet.
    pub fn run(&mut self, hook: Hook, packet: &[u8]) -> Result<(i32, Vec<u8>)> {
        self.run_on(LOOPBACK, hook, packet)
    }

    /// As [`run`](Self::run), on the device with this interface index.
    pub fn run_on(&mut self, device: u32, hook: Hook, packet: &[u8]) -> Result<(i32, Vec<u8>)> {
        self.run_marked(device, hook, packet).map(|(verdict, out, _)| (verdict, out))
    }

    /// As [`run_on`](Self::run_on); also returns the packet's mark.
    pub fn run_marked(
        &mut self,
        device: u32,
        hook: Hook,
        packet: &[u8],
    ) -> Result<(i32, Vec<u8>, u32)> {
        let frame = received_by(device, packet);
        let is_external = hook == Hook::ExternalIngress;
        let by_xdp = if is_external { self.run_by_xdp(device, &frame)? } else { None };
        let mut out = vec![0; packet.len() + 256];
        // The first eleven words of `struct __sk_buff` (include/uapi/linux/bpf.h): the third one is the
        // mark.
        let mut context = [0_u32; 11];
        context[10] = device;
        // The kernel wants room for all of it, which grows.
        let mut context_out = [0_u32; 64];
        let mut options = TestRunOptions::new();
        options.ctx_in = Some(bytemuck::bytes_of(&context));
        options.ctx_out = Some(bytemuck::bytes_of_mut(&mut context_out));
        options.data_in = Some(&frame);
        options.data_out = Some(&mut out);
        let result = program(&mut self.ebpf, hook)?.test_run(options)?;
        out.truncate(result.data_size_out as usize);
        // Where the programs answer, the two addresses change places.
        for address in out.as_chunks_mut().0.iter_mut().take(2).filter(|it| **it == LOOPBACK_MAC) {
            *address = NODE_MAC;
        }
        let verdict = result.return_value.cast_signed();
        if let Some(by_xdp) = by_xdp {
            fast_path::compare(&by_xdp, &frame, verdict, &out)?;
        }
        Ok((verdict, out, context_out[2]))
    }

    /// Runs a packet through a hook's program many times; each run gets the previous result.
    pub fn repeat(&mut self, hook: Hook, packet: &[u8], times: u32) -> Result<()> {
        let frame = received_by(LOOPBACK, packet);
        let mut options = TestRunOptions::new();
        options.data_in = Some(&frame);
        options.repeat = times;
        program(&mut self.ebpf, hook)?.test_run(options)?;
        Ok(())
    }

    /// Writes a Service with these endpoints; every connection sees the write as a change.
    pub fn serve(
        &mut self,
        index: u32,
        frontend: SocketAddr,
        protocol: u8,
        endpoints: &[SocketAddr],
    ) -> Result<()> {
        let endpoints: Vec<_> = endpoints.iter().map(|one| (*one, Locality::Node)).collect();
        match frontend.ip() {
            IpAddr::V4(ip) => {
                self.publish::<V4>(index, frontend, protocol, &endpoints, 0)?;
                self.write_range(self.range()?.with4(ip.octets()))?;
            }
            IpAddr::V6(ip) => {
                self.publish::<V6>(index, frontend, protocol, &endpoints, 0)?;
                let [a, b, c, d, e, f, g, h, ..] = ip.octets();
                self.write_range(self.range()?.with6([a, b, c, d, e, f, g, h]))?;
            }
        }
        self.revise()
    }

    fn publish<L: Layout>(
        &mut self,
        service: u32,
        frontend: SocketAddr,
        protocol: u8,
        endpoints: &[(SocketAddr, Locality)],
        wider: u16,
    ) -> Result<()> {
        let (slot_base, count) = (NO_SLOTS, endpoints.len() as u16);
        let affinity_seconds = self.affinity_seconds;
        let (tier, spill) = (NO_TIER, 0);
        let failures = 0;
        let head =
            Head { service, tier, slot_base, count, wider, spill, failures, affinity_seconds };
        let row = endpoints
            .iter()
            .map(|(one, locality)| Ok(L::backend(octets::<L>(*one)?, one.port(), *locality)))
            .collect::<Result<Vec<_>>>()?;
        let key = L::frontend(octets::<L>(frontend)?, frontend.port(), protocol);
        let record = self.records;
        self.records += 1;
        let records = self.ebpf.map_mut(L::RECORDS).context("a map")?;
        let mut records = Array::<&mut MapData, Raw<L::Record>>::try_from(records)?;
        records.set(record, Raw(L::record(key, head, &row)), 0)?;
        self.insert(L::SERVICES, key, record)?;
        for (endpoint, _) in endpoints {
            let key = L::member(service, octets::<L>(*endpoint)?, endpoint.port());
            self.insert(L::MEMBERS, key, Member { state: CHOSEN })?;
        }
        Ok(())
    }

    /// The kernel's facts about a hook's program.
    pub fn info(&mut self, hook: Hook) -> Result<ProgramInfo> {
        Ok(program(&mut self.ebpf, hook)?.info()?)
    }

    fn revision(&self) -> Result<u32> {
        let revision = self.ebpf.map(maps::REVISION).context("a map")?;
        Ok(Array::<&MapData, u32>::try_from(revision)?.get(&0, 0)?)
    }

    /// Removes an endpoint from a Service's members.
    pub fn remove_member(&mut self, service: u32, endpoint: SocketAddr) -> Result<()> {
        let port = endpoint.port();
        match endpoint {
            SocketAddr::V4(_) => {
                let key = V4::member(service, octets::<V4>(endpoint)?, port);
                self.remove::<_, Member>(maps::MEMBERS4, key)?;
            }
            SocketAddr::V6(_) => {
                let key = V6::member(service, octets::<V6>(endpoint)?, port);
                self.remove::<_, Member>(maps::MEMBERS6, key)?;
            }
        }
        self.revise()
    }

    fn remove<K: Pod, V: Pod>(&mut self, name: &str, key: K) -> Result<()> {
        let map = self.ebpf.map_mut(name).context("a map")?;
        Ok(HashMap::<&mut MapData, Raw<K>, Raw<V>>::try_from(map)?.remove(&Raw(key))?)
    }

    fn revise(&mut self) -> Result<()> {
        let revision = self.ebpf.map_mut(maps::REVISION).context("a map")?;
        let mut revision = Array::<&mut MapData, u32>::try_from(revision)?;
        let next = revision.get(&0, 0)? + 1;
        Ok(revision.set(0, next, 0)?)
    }

    fn range(&self) -> Result<Range> {
        let range = self.ebpf.map(maps::RANGE).context("a map")?;
        Ok(Array::<&MapData, Raw<Range>>::try_from(range)?.get(&0, 0)?.0)
    }

    fn write_range(&mut self, range: Range) -> Result<()> {
        let map = self.ebpf.map_mut(maps::RANGE).context("a map")?;
        Ok(Array::<&mut MapData, Raw<Range>>::try_from(map)?.set(0, Raw(range), 0)?)
    }

    fn insert<K: Pod, V: Pod>(&mut self, name: &str, key: K, value: V) -> Result<()> {
        let map = self.ebpf.map_mut(name).context("a map")?;
        Ok(HashMap::<&mut MapData, Raw<K>, Raw<V>>::try_from(map)?.insert(
            Raw(key),
            Raw(value),
            0,
        )?)
    }

    /// Lets clients of the Services that are written from now on keep their endpoints so long, in seconds.
    pub fn keep_clients_for(&mut self, seconds: u32) {
        self.affinity_seconds = seconds;
    }

    /// Gives an IPv4 frontend a record that is not its own, as the kernel can for a moment when it
    /// reuses an element.
    pub fn tear(&mut self, frontend: SocketAddr, protocol: u8) -> Result<()> {
        let key = V4::frontend(octets::<V4>(frontend)?, frontend.port(), protocol);
        self.insert(maps::SERVICES4, key, self.records)
    }

    /// How many look-ups found another frontend's record each time.
    pub fn torn(&self) -> Result<u64> {
        let map = self.ebpf.map(maps::TORN).context("a map")?;
        Ok(PerCpuArray::<&MapData, u64>::try_from(map)?.get(&0, 0)?.iter().sum())
    }

    /// The outcomes of a hook's packets.
    pub fn totals(&self, hook: Hook) -> Result<Packets> {
        self.counted(hook.index())
    }

    /// The sum over all CPUs of an element of `packets`.
    fn counted(&self, index: u32) -> Result<Packets> {
        let map = self.ebpf.map(maps::PACKETS).context("a map")?;
        let map = PerCpuArray::<&MapData, Raw<Packets>>::try_from(map)?;
        let values = map.get(&index, 0)?;
        Ok(sum(values.iter().map(|Raw(one)| one)))
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        // SAFETY: nothing uses it after this.
        let ebpf = unsafe { ManuallyDrop::take(&mut self.ebpf) };
        if !thread::panicking() {
            reuse::give_back(self.purpose, ebpf);
        }
    }
}

/// A frame as a device receives it. The kernel sees by the device's address whether a frame is for this
/// host, and that of the loopback device is all zeros.
fn received_by(device: u32, packet: &[u8]) -> Vec<u8> {
    let mut frame = packet.to_vec();
    if device == LOOPBACK && frame.starts_with(&NODE_MAC) {
        frame[..LOOPBACK_MAC.len()].copy_from_slice(&LOOPBACK_MAC);
    }
    frame
}

fn load(constants: &Constants, (entries, hooks): Purpose) -> Result<Ebpf> {
    let mut ebpf = load_object(&mut EbpfLoader::new(), &object()?, constants, entries)?;
    for hook in hooks {
        program(&mut ebpf, *hook)?.load().context("the verifier refuses a tc program")?;
    }
    if hooks.contains(&Hook::ExternalIngress) {
        fast_path::load(&mut ebpf)?;
    }
    Ok(ebpf)
}

fn program(ebpf: &mut Ebpf, hook: Hook) -> Result<&mut SchedClassifier> {
    let program = ebpf.program_mut(hook.program()).context("the object has no tc programs")?;
    Ok(program.try_into()?)
}

fn octets<L: Layout>(of: SocketAddr) -> Result<L::Octets> {
    L::octets(of.ip()).with_context(|| format!("{of} is of the other family"))
}
