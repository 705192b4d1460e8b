//! What the kernel's verifier counts for each program.

use anyhow::{Context as _, Result, bail};
use aya::programs::{Program, ProgramError};
use aya::{EbpfLoader, VerifierLogLevel};
use fs_err::File;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use topo_lb::datapath::programs::object::{Constants, TcpPeer};

use crate::packets::load_object;

/// The most instructions, over all paths of one program, that the kernel checks
/// (`BPF_COMPLEXITY_LIMIT_INSNS`, include/linux/bpf.h).
pub const LIMIT: u32 = 1_000_000;

/// The verifier's counts for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Instructions checked, over all paths.
    pub instructions: u32,
    /// States of registers and stack kept in total. This and `peak_states` are the only signs of
    /// the search's depth: the verifier refuses more than 8,192 pending branches
    /// (`BPF_COMPLEXITY_LIMIT_JMP_SEQ`), but does not report their number.
    pub states: u32,
    /// States kept at the same time.
    pub peak_states: u32,
}

/// The counts of this kernel's verifier for each program, with the program's name.
///
/// The kernel writes them to a log, and since 5.16 also reports them for loaded programs; aya
/// returns the log only for programs that fail to load. So loading is made to fail: this process
/// has no file descriptor left for a program that the verifier accepts.
///
/// # Errors
/// The object is not built, or the verifier refuses a program.
pub fn counts() -> Result<Vec<(String, Verified)>> {
    // As in the agent: paths that need what the kernel lacks are unreachable.
    let constants = Constants::probe(TcpPeer::Service, 16).with_exclusions(true);
    let mut loader = EbpfLoader::new();
    loader.verifier_log_level(VerifierLogLevel::STATS);
    // Sizes do not matter to the verifier, except that of maps with a single entry.
    let mut ebpf = load_object(&mut loader, &constants, 16)?;
    let mut found = Vec::new();
    for (name, program) in ebpf.programs_mut() {
        let result = without_descriptors(|| match program {
            Program::CgroupSockAddr(program) => program.load(),
            Program::SchedClassifier(program) => program.load(),
            _ => Ok(()),
        })?;
        match result {
            Err(ProgramError::LoadError { io_error, verifier_log })
                if io_error.raw_os_error() == Some(libc::EMFILE) =>
            {
                let log = verifier_log.to_string();
                let count = processed(&log).with_context(|| format!("{name}: no count: {log}"))?;
                found.push((name.to_owned(), count));
            }
            Err(error) => return Err(error).with_context(|| format!("{name} is refused")),
            Ok(()) => bail!("{name} was loaded without a file descriptor"),
        }
    }
    found.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(found)
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
fn processed(log: &str) -> Option<Verified> {
    let line = log.lines().rev().find(|line| line.starts_with("processed "))?;
    let mut words = line.split(' ');
    let mut after =
        |name: &str| words.by_ref().skip_while(|word| *word != name).nth(1)?.parse().ok();
    Some(Verified {
        instructions: after("processed")?,
        states: after("total_states")?,
        peak_states: after("peak_states")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_in_the_log_s_last_line() {
        let log = "stack depth 128+0\nprocessed 4711 insns (limit 1000000) max_states_per_insn 4 \
                   total_states 30 peak_states 29 mark_read 9\n";
        let expected = Verified { instructions: 4711, states: 30, peak_states: 29 };
        assert_eq!(processed(log), Some(expected));
        assert_eq!(processed("invalid stack\n"), None);
    }
}
