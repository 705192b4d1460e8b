//! What the kernel's verifier says of each program.

use std::fs::File;

use anyhow::{Context as _, Result, bail};
use aya::programs::{Program, ProgramError};
use aya::{EbpfLoader, VerifierLogLevel};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use topo_lb::datapath::programs::object::{Constants, TcpPeer};
use topo_lb_common::maps;

use crate::packets::object;

/// Instructions of all paths through one program that the kernel looks at, at most
/// (`BPF_COMPLEXITY_LIMIT_INSNS`, include/linux/bpf.h).
pub const LIMIT: u32 = 1_000_000;

/// What a verifier counts of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Instructions that it looked at, on all paths.
    pub instructions: u32,
    /// States of registers and stack that it has kept in all. Together with the next this is what is
    /// known of how deep it went: it refuses more than 8,192 branches that wait for their turn
    /// (`BPF_COMPLEXITY_LIMIT_JMP_SEQ`), and does not say how many did.
    pub states: u32,
    /// States that it has kept at once.
    pub peak_states: u32,
}

/// What this kernel's verifier counts of each program, programs by name.
///
/// The kernel says so in a log, and since 5.16 of loaded programs too; aya has the log only of
/// programs that are not loaded. So here none is: this process runs out of file descriptors just
/// before a program that is found good gets its own.
///
/// # Errors
/// The object is not built, or the verifier refuses a program.
pub fn counts() -> Result<Vec<(String, Verified)>> {
    let path = object()?;
    // As the agent has them: what the kernel lacks is never reached.
    let constants = Constants::probe(TcpPeer::Service).with_exclusions(true);
    let mut loader = EbpfLoader::new();
    loader.btf(None).verifier_log_level(VerifierLogLevel::STATS);
    constants.put(&mut loader);
    for name in maps::ALL.iter().filter(|name| !name.starts_with("connected")) {
        // Sizes are nothing to the verifier, except those of single entries.
        if !matches!(
            *name,
            maps::RANGE
                | maps::EXCLUSION
                | maps::REVISION
                | maps::PACKETS
                | maps::REFUSALS
                | maps::TORN
        ) {
            loader.map_max_entries(name, 16);
        }
    }
    let mut ebpf = loader.load_file(&path).with_context(|| {
        format!("cannot load {}: build it with cargo xtask build-ebpf", path.display())
    })?;
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

/// Does something while this process can open nothing.
fn without_descriptors<T>(work: impl FnOnce() -> T) -> Result<T> {
    use std::os::fd::AsRawFd as _;
    let limit = getrlimit(Resource::Nofile);
    // The kernel gives the lowest number that is free.
    let next = File::open("/dev/null").context("cannot open /dev/null")?.as_raw_fd();
    let none = Rlimit { current: u64::try_from(next).ok(), ..limit };
    setrlimit(Resource::Nofile, none).context("cannot lower the limit of descriptors")?;
    let result = work();
    setrlimit(Resource::Nofile, limit).context("cannot raise the limit of descriptors again")?;
    Ok(result)
}

/// From the last line of the verifier's log (`print_verification_stats`, kernel/bpf/verifier.c).
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
