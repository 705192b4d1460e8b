//! Loads programs and maps into the kernel. Attaches nothing.

use std::path::Path;

use aya::maps::MapError;
use aya::programs::{CgroupSockAddr, ProgramError, SchedClassifier, Xdp};
use aya::{Ebpf, EbpfError};
use tracing::debug;

use super::object::{Constants, OBJECT, loader};
use crate::datapath::direction::{Direction, Role};
use crate::datapath::error::{LoadError, causes};
use crate::datapath::hook::Hook;
use crate::datapath::maps::spec::MapSpec;
use topo_lb_core::flag::{MAX_CONNECTIONS, MAX_ENDPOINTS, MAX_FLOWS, MAX_SERVICES};

/// Loads maps and programs; pins the maps in `pin_dir` if given.
pub(crate) fn load(
    map_specs: &[MapSpec],
    constants: &Constants,
    pin_dir: Option<&Path>,
) -> Result<Ebpf, LoadError> {
    let mut ebpf = loader(map_specs, constants, pin_dir).load(OBJECT).map_err(explain)?;
    for hook in Hook::ALL {
        program(&mut ebpf, hook)?.load().map_err(|error| refused(hook.name(), error))?;
    }
    Ok(ebpf)
}

pub(crate) fn program(ebpf: &mut Ebpf, hook: Hook) -> Result<&mut CgroupSockAddr, LoadError> {
    ebpf.program_mut(hook.name())
        .and_then(|program| <&mut CgroupSockAddr>::try_from(program).ok())
        .ok_or_else(|| lacks(hook.name()))
}

pub(crate) fn classifier(
    ebpf: &mut Ebpf,
    role: Role,
    direction: Direction,
) -> Result<&mut SchedClassifier, LoadError> {
    let name = role.program(direction);
    ebpf.program_mut(name)
        .and_then(|program| <&mut SchedClassifier>::try_from(program).ok())
        .ok_or_else(|| lacks(name))
}

/// The program of XDP, loaded; that for frames in several buffers if the kernel has these.
pub(crate) fn xdp(ebpf: &mut Ebpf) -> Result<&Xdp, LoadError> {
    const BOTH: [&str; 2] = ["topo_lb_xdp_frags", "topo_lb_xdp"];
    let [frags, plain] = BOTH;
    let name = if named(ebpf, frags)?.load().is_ok() { frags } else { plain };
    let program = named(ebpf, name)?;
    if name == plain {
        program.load().map_err(|error| refused(plain, error))?;
    }
    Ok(program)
}

fn named<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp, LoadError> {
    ebpf.program_mut(name)
        .and_then(|program| <&mut Xdp>::try_from(program).ok())
        .ok_or_else(|| lacks(name))
}

fn lacks(program: &str) -> LoadError {
    LoadError::Object(format!("it has no program {program}"))
}

/// Loads both classifiers of a role.
pub(crate) fn load_classifiers(ebpf: &mut Ebpf, role: Role) -> Result<(), LoadError> {
    for direction in Direction::BOTH {
        let program = classifier(ebpf, role, direction)?;
        program.load().map_err(|error| refused(role.program(direction), error))?;
    }
    Ok(())
}

pub(crate) fn refused(program: &'static str, error: ProgramError) -> LoadError {
    match error {
        ProgramError::LoadError { io_error, .. }
            if io_error.raw_os_error() == Some(libc::EPERM) =>
        {
            LoadError::NotPermitted(io_error)
        }
        ProgramError::LoadError { io_error, verifier_log } => {
            let log = verifier_log.to_string();
            debug!(program, %log, "the verifier's log");
            let last = log
                .lines()
                .rev()
                .find(|line| {
                    !["", "processed", "stack", "verification"].contains(&first_word(line))
                })
                .unwrap_or("the verifier said nothing");
            LoadError::Verifier { program, reason: format!("{io_error}; {last}") }
        }
        other => LoadError::Verifier { program, reason: causes(&other) },
    }
}

/// The verifier's log ends with its statistics; each of these lines has its own first word.
fn first_word(line: &str) -> &str {
    line.split_ascii_whitespace().next().unwrap_or_default()
}

fn no_memory() -> String {
    format!(
        "the kernel has no memory for a map of its size: raise the memory limit of the agent's container, \
         or take smaller maps ({MAX_SERVICES}, {MAX_ENDPOINTS}, {MAX_FLOWS}, {MAX_CONNECTIONS})"
    )
}

fn explain(error: EbpfError) -> LoadError {
    match error {
        EbpfError::MapError(MapError::CreateError { io_error, .. })
            if io_error.raw_os_error() == Some(libc::EPERM) =>
        {
            LoadError::NotPermitted(io_error)
        }
        EbpfError::MapError(MapError::CreateError { name, io_error })
            if io_error.raw_os_error() == Some(libc::ENOMEM) =>
        {
            LoadError::Map { name, reason: no_memory() }
        }
        EbpfError::MapError(MapError::CreateError { name, io_error }) => {
            LoadError::Map { name, reason: io_error.to_string() }
        }
        EbpfError::MapError(MapError::PinError { name, error }) => {
            LoadError::Map { name: name.unwrap_or_default(), reason: causes(&error) }
        }
        other => LoadError::Object(causes(&other)),
    }
}
