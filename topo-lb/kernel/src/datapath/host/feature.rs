//! Tests the features of this kernel: distributions backport them, so versions say little.

use std::os::fd::OwnedFd;
use std::{fmt, io};

use aya::Btf;
use aya::maps::MapType;
use aya::programs::ProgramType;
use aya::sys::{BpfHelper, is_helper_supported, is_map_supported};
use aya_obj::btf::BtfKind;
use aya_obj::generated::bpf_prog_type::{BPF_PROG_TYPE_CGROUP_SOCK_ADDR, BPF_PROG_TYPE_SCHED_CLS};

use super::syscall;
use crate::datapath::hook::Hook;

/// A kernel feature that topo-lb needs or can use.
#[derive(Clone, Copy, Debug)]
pub struct Feature {
    /// Its short name.
    pub name: &'static str,
    /// The first kernel release that has it.
    pub since: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Programs at a hook.
    Hook(Hook),
    Map(MapType),
    /// A helper at the socket hooks.
    Helper(BpfHelper),
    /// Instructions that exchange a word atomically.
    AtomicExchange,
    /// Programs that the kernel calls for each element of a map of socket storage.
    Iterator,
    /// A helper in callbacks of TCP sockets.
    CallbackHelper(BpfHelper),
    /// A helper at the hooks of `bind`.
    BindHelper(BpfHelper),
}

impl Feature {
    /// A refused connection gets `ECONNREFUSED` instead of `EPERM`.
    // bed89185af0d, "bpf: Use cgroup_{common,current}_func_proto in more hooks". The helper came with
    // 5.18, but not for these hooks.
    pub const SET_RETVAL: Self =
        Self::helper("bpf_set_retval", "6.1", BpfHelper::BPF_FUNC_set_retval);
    /// The peer of an MPTCP socket is the dialled address.
    // 3bc253c2e652, "bpf: Add bpf_skc_to_mptcp_sock_proto".
    pub const MPTCP_SOCK: Self =
        Self::helper("bpf_skc_to_mptcp_sock", "5.19", BpfHelper::BPF_FUNC_skc_to_mptcp_sock);
    /// A clock that costs next to nothing; tc has the helper where the socket hooks have it.
    // d05512618056, "bpf: Add bpf_ktime_get_coarse_ns helper".
    pub const COARSE_CLOCK: Self =
        Self::helper("bpf_ktime_get_coarse_ns", "5.11", BpfHelper::BPF_FUNC_ktime_get_coarse_ns);

    /// What TCP connections move can be counted, if the kernel has BTF, too.
    pub const ACCOUNTING: &[Self] = &[
        // 1314ef561102, "bpf: export bpf_sock for BPF_PROG_TYPE_SOCK_OPS prog type".
        Self::callback_helper("bpf_sk_storage_get", "5.3", BpfHelper::BPF_FUNC_sk_storage_get),
        // 478cfbdf5f13, "bpf: Add bpf_skc_to_{tcp, tcp_timewait, tcp_request}_sock() helpers".
        Self::callback_helper("bpf_skc_to_tcp_sock", "5.9", BpfHelper::BPF_FUNC_skc_to_tcp_sock),
    ];

    /// Programs of several CPUs can count the same connection.
    // 5ffa25502b5a, "bpf: Add instructions for atomic_[cmp]xchg".
    pub const ATOMIC_EXCHANGE: Self =
        Self { name: "atomic exchanges in programs", since: "5.12", kind: Kind::AtomicExchange };

    // Some hosted kernels refuse it, as all programs of type tracing. 5ce6e77c7edf, "bpf: Implement bpf
    // iterator for sock local storage map".
    const ITERATOR: Self =
        Self { name: "iterators over socket storage", since: "5.9", kind: Kind::Iterator };

    /// TCP connections can be counted while they are open.
    pub const WALK: &[Self] = &[Self::ATOMIC_EXCHANGE, Self::ITERATOR];

    /// A socket that takes IPv6 alone is told from one that takes both. Not under a kernel's lockdown for
    /// confidentiality.
    // For programs of all types in `bpf_base_func_proto`, kernel/bpf/helpers.c.
    pub const READS_SOCKETS: Self = Self {
        name: "bpf_probe_read_kernel",
        since: "5.10",
        kind: Kind::BindHelper(BpfHelper::BPF_FUNC_probe_read_kernel),
    };

    const fn hook(hook: Hook, since: &'static str) -> Self {
        Self { name: hook.name(), since, kind: Kind::Hook(hook) }
    }

    const fn map(name: &'static str, since: &'static str, map_type: MapType) -> Self {
        Self { name, since, kind: Kind::Map(map_type) }
    }

    const fn helper(name: &'static str, since: &'static str, helper: BpfHelper) -> Self {
        Self { name, since, kind: Kind::Helper(helper) }
    }

    const fn callback_helper(name: &'static str, since: &'static str, helper: BpfHelper) -> Self {
        Self { name, since, kind: Kind::CallbackHelper(helper) }
    }

    /// Whether this kernel has it; `None` if the test fails, mostly for lack of a capability.
    #[must_use]
    pub fn is_there(self) -> Option<bool> {
        match self.kind {
            Kind::Hook(hook) => has_hook(hook),
            Kind::Map(map_type) => is_map_supported(map_type).ok(),
            Kind::Helper(helper) => is_helper_supported(ProgramType::CgroupSockAddr, helper).ok(),
            Kind::AtomicExchange => has_atomic_exchange(),
            Kind::Iterator => has_iterator(),
            Kind::CallbackHelper(helper) => is_helper_supported(ProgramType::SockOps, helper).ok(),
            Kind::BindHelper(helper) => is_helper_supported(ProgramType::CgroupSock, helper).ok(),
        }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Hook(_) => write!(f, "the cgroup hook {}", self.name),
            Kind::Map(_) => write!(f, "maps of type {}", self.name),
            Kind::Helper(_) => write!(f, "{} at the socket hooks", self.name),
            Kind::AtomicExchange | Kind::Iterator => f.write_str(self.name),
            Kind::CallbackHelper(_) => write!(f, "{} at the hook sock_ops", self.name),
            Kind::BindHelper(_) => write!(f, "{} at the hooks of bind", self.name),
        }
    }
}

/// Features that are needed together.
#[derive(Clone, Copy, Debug)]
pub struct FeatureGroup {
    /// The name in `topo-lb check`.
    pub name: &'static str,
    /// All of them.
    pub features: &'static [Feature],
    /// What is lost without them; `None` if the programs do not load without.
    pub without: Option<&'static str>,
}

/// All features that topo-lb tests.
pub const GROUPS: [FeatureGroup; 9] = [
    FeatureGroup {
        name: "hooks",
        features: &[
            // d74bad4e74ee and 1cedee13d25a, "Hooks for sys_connect" and "sys_sendmsg".
            Feature::hook(Hook::Connect4, "4.17"),
            Feature::hook(Hook::Connect6, "4.17"),
            Feature::hook(Hook::Sendmsg4, "4.18"),
            Feature::hook(Hook::Sendmsg6, "4.18"),
            // 983695fa6765, "bpf: fix unconnected udp hooks".
            Feature::hook(Hook::Recvmsg4, "5.2"),
            Feature::hook(Hook::Recvmsg6, "5.2"),
            // 1b66d253610c, "bpf: Add get{peer, sock}name attach types for sock_addr".
            Feature::hook(Hook::Getpeername4, "5.8"),
            Feature::hook(Hook::Getpeername6, "5.8"),
        ],
        without: None,
    },
    FeatureGroup {
        name: "map types",
        features: &[
            // What a socket dialled, and its flows. 6ac99e8f23d4, "bpf: Introduce bpf sk local storage".
            Feature::map("socket storage", "5.2", MapType::SkStorage),
            // Affinity.
            Feature::map("LRU hash", "4.10", MapType::LruHash),
            // Counters.
            Feature::map("per-CPU array", "4.6", MapType::PerCpuArray),
        ],
        without: None,
    },
    FeatureGroup {
        name: "helpers",
        features: &[
            // fb85c4a730af, "bpf: export bpf_sock for BPF_PROG_TYPE_CGROUP_SOCK_ADDR prog type".
            Feature::helper("bpf_sk_storage_get", "5.3", BpfHelper::BPF_FUNC_sk_storage_get),
            // Identifies a client for session affinity. f318903c0bf4, "bpf: Add netns cookie and
            // enable it for bpf cgroup hooks".
            Feature::helper("bpf_get_netns_cookie", "5.7", BpfHelper::BPF_FUNC_get_netns_cookie),
            // Identifies the socket of an unconnected UDP flow.
            Feature::helper("bpf_get_socket_cookie", "4.18", BpfHelper::BPF_FUNC_get_socket_cookie),
        ],
        without: None,
    },
    FeatureGroup {
        name: "refusal",
        features: &[Feature::SET_RETVAL],
        without: Some(
            "refused connections get EPERM, which clients do not take for a reason to try again",
        ),
    },
    FeatureGroup {
        name: "MPTCP peers",
        features: &[Feature::MPTCP_SOCK],
        without: Some("an MPTCP socket's peer appears as the endpoint instead of the Service"),
    },
    FeatureGroup {
        name: "accounting",
        features: Feature::ACCOUNTING,
        without: Some("what TCP connections to Services move is not counted"),
    },
    FeatureGroup {
        name: "walk",
        features: Feature::WALK,
        without: Some("a TCP connection is counted only when it ends"),
    },
    FeatureGroup {
        name: "clock",
        features: &[Feature::COARSE_CLOCK],
        without: Some(
            "each packet that tc translates takes the time of one more look-up, to read the clock",
        ),
    },
    FeatureGroup {
        name: "guards",
        features: &[Feature::READS_SOCKETS],
        without: Some(
            "while node ports are served, a socket of IPv6 alone cannot bind a node port of IPv4",
        ),
    },
];

/// Loads the shortest program that a hook accepts. It lets everything pass.
///
/// # Errors
/// The kernel refuses it.
pub fn empty(hook: Hook) -> io::Result<OwnedFd> {
    syscall::load_empty(BPF_PROG_TYPE_CGROUP_SOCK_ADDR, hook.attach_type() as u32)
}

fn has_hook(hook: Hook) -> Option<bool> {
    match empty(hook) {
        Ok(_) => Some(true),
        // EINVAL: an unknown program or attach type; E2BIG: an unknown attribute.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::E2BIG)) => {
            Some(false)
        }
        Err(_) => None,
    }
}

/// Loads a program that exchanges a word on its stack.
fn has_atomic_exchange() -> Option<bool> {
    let code = [
        [0xb7, 0, 0, 0, 0, 0, 0, 0],             // r0 = 0
        [0x7b, 0x0a, 0xf8, 0xff, 0, 0, 0, 0],    // *(u64 *)(r10 - 8) = r0
        [0xdb, 0x0a, 0xf8, 0xff, 0xf1, 0, 0, 0], // r0 = cmpxchg_64(r10 - 8, r0, r0)
        [0xb7, 0, 0, 0, 0, 0, 0, 0],             // r0 = 0
        [0x95, 0, 0, 0, 0, 0, 0, 0],             // exit
    ];
    match syscall::load(BPF_PROG_TYPE_SCHED_CLS, "", &code, 0) {
        Ok(_) => Some(true),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Some(false),
        Err(_) => None,
    }
}

/// Loads an iterator that does nothing. EPERM: the kernel refuses programs of this type, whoever loads them.
fn has_iterator() -> Option<bool> {
    const TARGET: &str = "bpf_iter_bpf_sk_storage_map";
    let btf = Btf::from_sys_fs().ok()?;
    let Ok(target) = btf.id_by_type_name_kind(TARGET, BtfKind::Func) else { return Some(false) };
    match syscall::load_iterator(target) {
        Ok(_) => Some(true),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            forbidden().is_none().then_some(false)
        }
        Err(_) => None,
    }
}

/// Why this process may not load programs despite its capabilities; `None` if it may.
#[must_use]
pub fn forbidden() -> Option<io::Error> {
    empty(Hook::Connect4).err().filter(|error| error.raw_os_error() == Some(libc::EPERM))
}

/// The required features that this kernel lacks.
#[must_use]
pub fn missing() -> Vec<Feature> {
    let required = GROUPS.iter().filter(|group| group.without.is_none());
    lacking(required.flat_map(|group| group.features))
}

/// Those of these features that this kernel lacks.
pub fn lacking<'a>(features: impl IntoIterator<Item = &'a Feature>) -> Vec<Feature> {
    features.into_iter().copied().filter(|feature| feature.is_there() == Some(false)).collect()
}

/// `uname -r`.
#[must_use]
pub fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// The kernel releases in a line, such as `6.1`.
    fn releases(line: &str) -> Vec<&str> {
        line.split(|letter: char| !letter.is_ascii_digit() && letter != '.')
            .map(|word| word.trim_matches('.'))
            .filter(|word| word.contains('.'))
            .collect()
    }

    #[test]
    fn the_documents_name_the_kernel_from_which_refusals_are_econnrefused() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let since = Feature::SET_RETVAL.since;
        for file in ["docs/limits.md", "ARCHITECTURE.md", "docs/topology.md", "docs/reliability.md"]
        {
            let text = fs::read_to_string(root.join(file)).unwrap();
            let about = text.lines().filter(|line| {
                (line.contains("EPERM") || line.contains("bpf_set_retval"))
                    && !releases(line).is_empty()
            });
            let lines: Vec<&str> = about.collect();
            assert!(!lines.is_empty(), "{file} names no kernel");
            for line in lines {
                assert!(releases(line).contains(&since), "{file} does not name {since}: {line}");
            }
        }
    }
}
