//! The kernel's side: programs, maps and links, and how plans are written to the maps.
//!
//! [`host`] tests what the kernel supports. [`programs`] loads the programs, [`attach`] attaches
//! them to cgroups and devices, [`maps`] holds the state. Maps and links are pinned: they outlive
//! the agent. [`inspect`] reads what is attached, and tests whether it works.

pub mod attach;
pub mod direction;
pub mod error;
pub mod hook;
pub mod host;
pub mod inspect;
pub mod link;
pub mod maps;
pub mod masquerade;
pub mod pin;
pub mod programs;

use std::fs::{self, Permissions};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use aya::Ebpf;
use aya::maps::Map;
use topo_lb_common::maps as names;
use tracing::warn;

use attach::xdp::OnDrivers;
use direction::Role;
use error::LoadError;
use hook::{Guard, Hook};
use host::btf::BtfError;
use host::conntrack::Conntrack;
use host::lock::Lock;
use host::memlock;
use host::mount::{check_bpffs, check_cgroup2};
use host::{capability, feature};
use link::Link;
use maps::carried::CarriedConnections;
use maps::ended::{self, EndedConnection};
use maps::failing::{self, FailingEndpoint};
use maps::layout;
use maps::quota::QuotaKeeper;
use maps::renewal::{self, Pinned, Renewal};
use maps::reply_filter::ReplyFilter;
use maps::ring::Ring;
use maps::spec::{half_open_room, map_specs};
use maps::trace::forget_killed;
use masquerade::{Masquerade, SourceNat};
use pin::{TcAttach, Xdp};
use programs::load::{load, load_classifiers};
use programs::object::{AllFrontends, Constants, TcpPeer};
use programs::tcp_fields::TcpFields;

use topo_lb_core::plan::Capacity;

/// Where and how to set up the datapath.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory on bpffs for the pins of maps and links; created if it does not exist.
    pub pin_dir: PathBuf,
    /// The cgroup v2 directory; processes in it and below are served.
    pub cgroup_root: PathBuf,
    /// The sizes of the maps.
    pub capacity: Capacity,
    /// What getpeername returns for a translated TCP connection.
    pub tcp_peer: TcpPeer,
    /// Whether TCP connections are accounted, if the kernel can.
    pub accounting: bool,
    /// Whether Pods can be excluded or steered.
    pub exclusions: bool,
    /// Whether programs only count what they would do.
    pub observe: bool,
    /// Whether TCP connections are counted, too, that the programs do not translate; only with `accounting`.
    pub count_all: bool,
    /// Set if devices of guests are served. `capacity` then has room for connections.
    pub serves_guests: bool,
    /// How programs are attached to devices.
    pub tc_attach: TcAttach,
    /// Whether devices of clients outside get the fast path of XDP, too.
    pub xdp: Xdp,
    /// Set if frontends of all kinds are served. `capacity` then has room for sources and, for clients
    /// outside, for connections.
    pub all_frontends: Option<AllFrontends>,
}

/// The datapath in the kernel. Only one process holds it. Dropping it removes the pins that it
/// made, unless the programs were attached.
#[derive(Debug)]
pub struct Datapath {
    pub(crate) options: Options,
    pub(crate) ebpf: Ebpf,
    /// Open links, once the programs are attached.
    pub(crate) links: Vec<(Hook, Link)>,
    /// Open links of the guards, while clients outside are served.
    pub(crate) guards: Vec<(Guard, Link)>,
    /// The move to new maps if the pinned ones did not fit, until the hooks have the new programs.
    pub(crate) renewal: Option<Renewal>,
    /// tc's old connections after a renewal, until all devices have the new programs.
    pub(crate) carried: Option<CarriedConnections>,
    /// Set once tc programs are attached.
    reply_filter: Option<ReplyFilter>,
    /// [`Constants::seed`].
    seed: u64,
    /// As `reply_filter`.
    quota: Option<QuotaKeeper>,
    /// Set if clients outside of this node are served.
    pub(crate) masquerade: Option<Masquerade>,
    /// Who gives their connections to other nodes a source.
    pub(crate) source: SourceNat,
    /// The program of XDP, and where it cannot be.
    pub(crate) xdp: OnDrivers,
    /// As it was at the last repair, if clients outside are served.
    pub(crate) conntrack: Option<Conntrack>,
    /// Why it is not known where the kernel counts TCP connections; then they are not accounted.
    pub(crate) no_tcp_fields: Option<BtfError>,
    /// The pinned links of accounting, and their pins; none if TCP connections are not accounted.
    pub(crate) accounting: Vec<(PathBuf, OwnedFd)>,
    /// Before the lock, so that it is dropped before the lock is released.
    made: Made,
    pub(crate) lock: Lock,
}

impl Datapath {
    /// Checks whether [`open`](Self::open) can succeed, changing nothing. Takes some milliseconds.
    ///
    /// # Errors
    /// Those of [`open`](Self::open) that can be found without changing anything.
    pub fn check_host(options: &Options) -> Result<(), LoadError> {
        // The maps of an earlier agent may have used it up.
        memlock::lift_limit();
        check_bpffs(&options.pin_dir)?;
        check_cgroup2(&options.cgroup_root)?;
        let missing = capability::missing();
        if !missing.is_empty() {
            return Err(LoadError::Capabilities(missing));
        }
        if let Some(error) = feature::forbidden() {
            return Err(LoadError::NotPermitted(error));
        }
        let missing = feature::missing();
        if !missing.is_empty() {
            return Err(LoadError::KernelTooOld(missing));
        }
        if options.pin_dir.exists() {
            Lock::take(&options.pin_dir)?;
            renewal::look(&options.pin_dir, &map_specs(&options.capacity))?;
        }
        Ok(())
    }

    /// Locks the pin directory, loads the programs, opens the pinned maps, and creates and pins the
    /// missing ones. Attaches nothing.
    ///
    /// # Errors
    /// Each says in a sentence what is missing and what to do.
    pub fn open(options: Options) -> Result<Self, LoadError> {
        Self::check_host(&options)?;
        let is_new = make_directory(&options.pin_dir)?;
        keep_private(&options.pin_dir)?;
        let lock = Lock::take(&options.pin_dir)?;
        let mut made = Made {
            directories: Vec::from_iter(is_new.then(|| options.pin_dir.clone())),
            files: Vec::new(),
        };
        let map_specs = map_specs(&options.capacity);
        let renewal = match renewal::look(&options.pin_dir, &map_specs)? {
            Pinned::Fits => {
                let pins = map_specs.iter().filter(|spec| spec.is_pinned);
                let pins = pins.map(|spec| options.pin_dir.join(spec.name));
                made.files.extend(pins.filter(|path| !path.exists()));
                None
            }
            Pinned::Differs(differences) => {
                Some(Renewal::begin(&options.pin_dir, &map_specs, &differences)?)
            }
        };
        made.directories.extend(layout::mark(&options.pin_dir)?);
        let constants = Constants::probe(options.tcp_peer, options.capacity.services)
            .with_half_open_room(half_open_room(&options.capacity))
            .with_exclusions(options.exclusions)
            .with_observing(options.observe)
            .with_counting(options.count_all)
            .with_all_frontends(options.all_frontends);
        let (tcp_fields, no_tcp_fields) = match options.accounting.then(TcpFields::find) {
            Some(Ok(fields)) => (fields, None),
            Some(Err(error)) => (TcpFields::default(), Some(error)),
            None => <_>::default(),
        };
        let constants = constants.with_tcp_fields(tcp_fields);
        let directory = renewal.as_ref().map_or(&*options.pin_dir, Renewal::directory);
        let mut ebpf = load(&map_specs, &constants, Some(directory))?;
        if options.serves_guests {
            load_classifiers(&mut ebpf, Role::Guest)?;
        }
        let outside = options.all_frontends.filter(AllFrontends::serves_outside);
        if outside.is_some() {
            load_classifiers(&mut ebpf, Role::External)?;
        }
        #[cfg(feature = "log")]
        programs::log::start(&mut ebpf);
        let masquerade = outside.map(|it| Masquerade::new(it.masquerade_mark));
        Ok(Self {
            options,
            ebpf,
            links: Vec::new(),
            guards: Vec::new(),
            renewal,
            carried: None,
            reply_filter: None,
            seed: constants.seed(),
            quota: None,
            masquerade,
            source: SourceNat::default(),
            xdp: OnDrivers::default(),
            conntrack: None,
            no_tcp_fields,
            accounting: Vec::new(),
            made,
            lock,
        })
    }

    /// Copies counters and connection state from pinned maps of another layout, if there are any.
    /// Call it right before the first plan: until then the attached programs write to the old maps.
    pub fn copy_old_state(&self) {
        if let Some(renewal) = &self.renewal {
            renewal.copy_books();
            renewal.copy_state();
        }
    }

    /// The directory with the pins of these maps: the pin directory, or one below it until
    /// [`attach`](Self::attach) moves them.
    #[must_use]
    pub fn maps_directory(&self) -> &Path {
        self.renewal.as_ref().map_or(&self.options.pin_dir, Renewal::directory)
    }

    /// The ring buffer in which programs tell which endpoints fail. Needs a runtime.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn failing(&mut self) -> Result<Ring<FailingEndpoint>, String> {
        failing::ring(self.take_map(names::FAILING)?)
    }

    /// The ring buffer in which programs tell which connections ended that they did not translate, those while no
    /// agent ran too. Needs a runtime.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn ended(&mut self) -> Result<Ring<EndedConnection>, String> {
        ended::ring(self.take_map(names::ENDED)?)
    }

    fn take_map(&mut self, name: &str) -> Result<Map, String> {
        self.ebpf.take_map(name).ok_or_else(|| format!("the object has no map {name}"))
    }

    /// Takes the ring buffer of a `topo-lb trace` that was killed away from the programs. Returns whether
    /// there was one.
    pub fn forget_killed_tracer(&self) -> bool {
        let Some(Map::ArrayOfMaps(slot)) = self.ebpf.map(names::TRACE) else { return false };
        // After an error, the next call tries again.
        forget_killed(slot.fd().as_fd(), &self.options.pin_dir).unwrap_or(false)
    }

    /// Starts to count the connections of devices.
    fn start_quota(&mut self) {
        let Some(quota) = self.ebpf.take_map(names::QUOTA) else { return };
        let capacity = &self.options.capacity;
        let room = (capacity.connections, half_open_room(capacity), self.seed);
        match QuotaKeeper::start(quota, room, |name| self.ebpf.map(name)) {
            Ok(keeper) => self.quota = Some(keeper),
            Err(error) => warn!("{error}; the connections of a device are not limited"),
        }
    }

    /// Starts to mark the endpoints that may reply. Call it when no program of an earlier agent is
    /// attached any more: such a program opens connections without a mark.
    fn start_reply_filter(&mut self) {
        let Some(marks) = self.ebpf.take_map(names::REPLY_FILTER) else { return };
        match ReplyFilter::start(&marks, |name| self.ebpf.map(name)) {
            Ok(filter) => self.reply_filter = Some(filter),
            Err(error) => warn!("{error}; tc looks up every packet that goes out"),
        }
    }
}

/// New files in the pin directory. Dropping this removes them, unless `keep` was called.
#[derive(Debug)]
struct Made {
    /// Parents before children.
    directories: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

impl Made {
    fn keep(&mut self) {
        self.directories.clear();
        self.files.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // The caller reports the error that led here; `topo-lb cleanup` removes the rest.
        for file in self.files.drain(..) {
            let _ = fs::remove_file(file);
        }
        for directory in self.directories.drain(..).rev() {
            let _ = fs::remove_dir(directory);
        }
    }
}

/// Lets only its owner look into a directory. Whoever may read one can lock it, flock(2), and an agent or a
/// tracer would not start.
fn keep_private(path: &Path) -> Result<(), LoadError> {
    fs::set_permissions(path, Permissions::from_mode(0o700))
        .map_err(|error| LoadError::PinDirectory(path.to_owned(), error))
}

/// Creates a directory and its parents; returns whether it is new.
fn make_directory(path: &Path) -> Result<bool, LoadError> {
    let is_new = !path.exists();
    fs::create_dir_all(path).map_err(|error| LoadError::PinDirectory(path.to_owned(), error))?;
    Ok(is_new)
}
