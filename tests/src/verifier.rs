//! How much of the limits of the kernel's verifier each program needs.

mod jumps;
pub mod pending;
pub mod stack;

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use anyhow::{Context as _, Result, bail};
use aya::programs::{Program, ProgramError};
use aya::{Btf, Ebpf, EbpfLoader, VerifierLogLevel};
use fs_err::File;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use topo_lb_kernel::datapath::programs::object::{AllFrontends, Constants, TcpPeer};
use topo_lb_kernel::datapath::programs::tcp_fields::TcpFields;

use crate::packets::{MARK, load_object, object};
use crate::requirements::{kernel, walks};
pub use jumps::peak_jumps;

/// The most instructions, over all paths of one program, that the kernel checks
/// (`BPF_COMPLEXITY_LIMIT_INSNS`, include/linux/bpf.h).
pub const INSTRUCTION_LIMIT: u32 = 1_000_000;

/// The most pending jumps at the same time: jumps with a branch that the verifier has put aside
/// (`BPF_COMPLEXITY_LIMIT_JMP_SEQ`, kernel/bpf/verifier.c).
pub const JUMP_LIMIT: u16 = 8_192;

/// Programs that the agent loads from Linux 5.12 on.
const NEWER: [&str; 3] = ["accounting_beside", WALKS[0], WALKS[1]];
/// The program that takes frames in several buffers, which the agent loads from Linux 5.18 on.
const FRAGS: &str = "topo_lb_xdp_frags";
/// Those of [`walks`].
const WALKS: [&str; 2] = ["walk4", "walk6"];

/// What the agent's flags say to the programs. Which paths the verifier sees, and how much of the stack
/// they take, depends on it.
#[derive(Clone, Copy, Debug)]
pub struct Serving {
    peer: TcpPeer,
    has_exclusions: bool,
    observes: bool,
    counts_all: bool,
    /// `None`: ClusterIPs alone.
    all_frontends: Option<AllFrontends>,
}

/// Frontends of all kinds, also for clients outside.
const OUTSIDE: AllFrontends =
    AllFrontends { masquerade_mark: MARK, host_netns: NonZeroU64::new(1), returns_directly: true };

impl Serving {
    /// Most paths.
    pub const MOST: Self = Self {
        peer: TcpPeer::Service,
        has_exclusions: true,
        observes: false,
        counts_all: true,
        all_frontends: Some(OUTSIDE),
    };

    /// Fewest paths: ClusterIPs.
    const LEAST: Self = Self {
        peer: TcpPeer::Service,
        has_exclusions: false,
        observes: false,
        counts_all: false,
        all_frontends: None,
    };

    /// Frontends of all kinds, for this node's clients.
    const FROM_NODE: AllFrontends = AllFrontends { masquerade_mark: 0, ..OUTSIDE };

    /// Those that leave out most: enough where each takes long.
    pub fn corners() -> [Self; 3] {
        let from_node = Self { all_frontends: Some(Self::FROM_NODE), ..Self::LEAST };
        let observing = Self { peer: TcpPeer::Endpoint, observes: true, ..Self::LEAST };
        [Self::LEAST, from_node, observing]
    }

    /// All there are.
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::LEAST];
        let mut vary = |change: fn(&mut Self)| {
            let changed = all.clone().into_iter().map(|mut one| {
                change(&mut one);
                one
            });
            all.extend(changed.collect::<Vec<_>>());
        };
        vary(|it| it.peer = TcpPeer::Endpoint);
        vary(|it| it.has_exclusions = true);
        vary(|it| it.observes = true);
        // What is counted concerns accounting, and frontends do not.
        let frontends = [(false, None), (true, Some(Self::FROM_NODE)), (true, Some(OUTSIDE))];
        let of = |one: Self| {
            frontends.map(|(counts_all, all_frontends)| Self { counts_all, all_frontends, ..one })
        };
        all.into_iter().flat_map(of).collect()
    }

    /// Whether programs of tc are loaded, too: only frontends concern them.
    fn concerns_tc(&self) -> bool {
        self.peer == TcpPeer::Service && !self.observes
    }

    fn constants(self) -> Result<Constants> {
        Ok(Constants::probe(self.peer, 16)
            .with_exclusions(self.has_exclusions)
            .with_observing(self.observes)
            .with_counting(self.counts_all)
            .with_all_frontends(self.all_frontends)
            .with_tcp_fields(TcpFields::find()?))
    }
}

/// Instructions checked, over all paths, for each program with its name; without those of tc where
/// other flags give the same.
///
/// The kernel writes them to a log, and since 5.16 also reports them for loaded programs; aya
/// returns the log only for programs that fail to load. So loading is made to fail: this process
/// has no file descriptor left for a program that the verifier accepts.
///
/// # Errors
/// The object is not built, or the verifier refuses a program.
pub fn instructions(serving: Serving) -> Result<BTreeMap<String, u32>> {
    let mut ebpf = prepare(&object()?, serving)?;
    let btf = Btf::from_sys_fs().context("the kernel has no BTF")?;
    let mut found = BTreeMap::new();
    for (name, program) in ebpf.programs_mut() {
        let is_tc = matches!(program, Program::SchedClassifier(_) | Program::Xdp(_));
        let is_newer =
            kernel() < (5, 12) && NEWER.contains(&name) || kernel() < (5, 18) && name == FRAGS;
        let is_refused = !walks() && WALKS.contains(&name);
        if is_newer || is_refused || is_tc && !serving.concerns_tc() {
            continue;
        }
        match without_descriptors(|| load(program, &btf))? {
            Err(ProgramError::LoadError { io_error, verifier_log })
                if io_error.raw_os_error() == Some(libc::EMFILE) =>
            {
                let log = verifier_log.to_string();
                let count = processed(&log).with_context(|| format!("{name}: no count: {log}"))?;
                found.insert(name.to_owned(), count);
            }
            Err(error) => return Err(error).with_context(|| format!("{name} is refused")),
            Ok(()) => bail!("{name} was loaded without a file descriptor"),
        }
    }
    Ok(found)
}

/// Makes an object's maps, and prepares its programs. As in the agent, paths that need what the
/// kernel lacks are unreachable.
fn prepare(object: &[u8], serving: Serving) -> Result<Ebpf> {
    let constants = serving.constants()?;
    let mut loader = EbpfLoader::new();
    loader.verifier_log_level(VerifierLogLevel::STATS);
    // Sizes do not matter to the verifier, except that of maps with a single entry.
    load_object(&mut loader, object, &constants, 16)
}

/// Loads a program. `btf` has the kernel's own types.
fn load(program: &mut Program, btf: &Btf) -> Result<(), ProgramError> {
    match program {
        Program::CgroupSock(program) => program.load(),
        Program::CgroupSockAddr(program) => program.load(),
        Program::SchedClassifier(program) => program.load(),
        Program::SockOps(program) => program.load(),
        Program::Xdp(program) => program.load(),
        Program::Iter(program) => program.load("bpf_sk_storage_map", btf),
        _ => Err(ProgramError::UnexpectedProgramType),
    }
}

/// Runs `work` while this process can open no file.
fn without_descriptors<T>(work: impl FnOnce() -> T) -> Result<T> {
    use std::os::fd::AsRawFd as _;
    let limit = getrlimit(Resource::Nofile);
    // The kernel returns the lowest free number.
    let next = File::open("/dev/null")?.as_raw_fd();
    let none = Rlimit { current: u64::try_from(next).ok(), ..limit };
    setrlimit(Resource::Nofile, none).context("cannot lower the limit of descriptors")?;
    let result = work();
    setrlimit(Resource::Nofile, limit).context("cannot raise the limit of descriptors again")?;
    Ok(result)
}

/// Parses the last line of the verifier's log (`print_verification_stats`, kernel/bpf/verifier.c).
fn processed(log: &str) -> Option<u32> {
    let line = log.lines().rev().find_map(|line| line.strip_prefix("processed "))?;
    line.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_in_the_log_s_last_line() {
        let log = "stack depth 128+0\nprocessed 4711 insns (limit 1000000) max_states_per_insn 4 \
                   total_states 30 peak_states 29 mark_read 9\n";
        assert_eq!(processed(log), Some(4711));
        assert_eq!(processed("invalid stack\n"), None);
    }
}
