//! The walk over open TCP connections: two iterators of the kernel, pinned. Whoever reads their files
//! makes the kernel count what each connection has moved so far.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use aya::programs::Iter;
use aya::{Btf, BtfError, Ebpf};
use thiserror::Error;
use topo_lb_common::maps;

use crate::datapath::error::{LoadError, causes};
use crate::datapath::host::syscall;
use crate::datapath::link::DIRECTORY;
use crate::datapath::maps::error::OpenError;
use crate::datapath::maps::pinned;
use crate::datapath::programs::load::refused;

/// The programs, and the maps that they walk over. A pinned link has its program's name.
const WALKS: [(&str, &str); 2] = [("walk4", maps::CONNECTED4), ("walk6", maps::CONNECTED6)];
/// Linux 5.9 (5ce6e77c7edf, "bpf: Implement bpf iterator for sock local storage map").
const KIND: &str = "bpf_sk_storage_map";

/// Why open connections are not counted.
#[derive(Debug, Error)]
pub enum WalkError {
    /// The kernel's types cannot be read.
    #[error("the kernel's BTF cannot be used: {0}")]
    Btf(#[from] BtfError),
    /// The kernel takes other programs of this process, but not these.
    #[error("this kernel refuses iterators over socket storage, as some hosted kernels do")]
    Forbidden,
    /// A program is refused.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A map cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// An iterator cannot be made or pinned.
    #[error("the iterator {0} cannot be made: {1}")]
    Make(&'static str, #[source] io::Error),
}

/// Loads the programs and pins the iterators, in place of an earlier agent's.
pub(super) fn pin(ebpf: &mut Ebpf, pin_dir: &Path) -> Result<(), WalkError> {
    let btf = Btf::from_sys_fs()?;
    for (name, map) in WALKS {
        let program: Option<&mut Iter> =
            ebpf.program_mut(name).and_then(|program| program.try_into().ok());
        let program =
            program.ok_or_else(|| LoadError::Object(format!("it has no program {name}")))?;
        if program.fd().is_err() {
            program.load(KIND, &btf).map_err(|error| match refused(name, error) {
                LoadError::NotPermitted(_) => WalkError::Forbidden,
                error => error.into(),
            })?;
        }
        let program = program.fd().map_err(|error| LoadError::Object(causes(&error)))?;
        let map = pinned::data(pin_dir, map)?;
        let made = syscall::link_iterator(program.as_fd(), map.fd().as_fd()).and_then(|link| {
            let [place, new] = paths(pin_dir, name);
            // An agent that was killed between pinning and renaming left it.
            let _ = fs::remove_file(&new);
            syscall::pin(link.as_fd(), &new)?;
            fs::rename(new, place)
        });
        made.map_err(|error| WalkError::Make(name, error))?;
    }
    Ok(())
}

/// Counts what open connections have moved so far; 0.5 µs for each. Nothing if the walk is not pinned.
///
/// # Errors
/// The path of an iterator that cannot be read.
pub fn run(pin_dir: &Path) -> Result<(), (PathBuf, io::Error)> {
    for (name, _) in WALKS {
        let [path, _] = paths(pin_dir, name);
        let read = File::open(&path).and_then(|mut file| io::copy(&mut file, &mut io::sink()));
        match read {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err((path, error)),
            _ => {}
        }
    }
    Ok(())
}

/// Removes the iterators.
///
/// # Errors
/// The path of a pin that cannot be removed.
pub(super) fn remove(pin_dir: &Path) -> Result<(), (PathBuf, io::Error)> {
    for path in WALKS.iter().flat_map(|(name, _)| paths(pin_dir, name)) {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err((path, error)),
            _ => {}
        }
    }
    Ok(())
}

/// Where the iterators are pinned.
pub(super) fn pins(pin_dir: &Path) -> impl Iterator<Item = PathBuf> {
    WALKS.iter().map(|(name, _)| {
        let [place, _] = paths(pin_dir, name);
        place
    })
}

/// Where an iterator is pinned, and where until it replaces the old one.
fn paths(pin_dir: &Path, name: &str) -> [PathBuf; 2] {
    let directory = pin_dir.join(DIRECTORY);
    [directory.join(name), directory.join(format!("{name}_new"))]
}
