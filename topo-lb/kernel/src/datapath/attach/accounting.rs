//! Accounting: a program that hears of the begin and the end of TCP connections
//! (`BPF_CGROUP_SOCK_OPS`), and counts what they moved. Nothing else depends on it.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};

use aya::Ebpf;
use aya::programs::SockOps;
use aya_obj::generated::bpf_attach_type::{self, BPF_CGROUP_SOCK_OPS};
use thiserror::Error;

use super::repair::Repairs;
use super::walk::{self, WalkError};
use crate::datapath::Datapath;
use crate::datapath::error::{LoadError, causes};
use crate::datapath::host::btf::BtfError;
use crate::datapath::host::feature::{self, Feature};
use crate::datapath::host::syscall;
use crate::datapath::link::{DIRECTORY, Link, cgroup_id};
use crate::datapath::maps::error::{OpenError, StoreError};
use crate::datapath::maps::far_endpoints::FarEndpointsMap;
use crate::datapath::maps::totals::TotalsMap;
use crate::datapath::programs::load::refused;
use crate::datapath::programs::object::TcpPeer;
use topo_lb_core::flag::{ACCOUNTING, TCP_PEER};

/// Name of the program and of its pinned link.
pub(crate) const NAME: &str = "accounting";
/// Name of the program that counts beside the walk. It takes Linux 5.12, for atomic instructions.
const BESIDE: &str = "accounting_beside";
/// Its hook.
pub(crate) const ATTACH_TYPE: bpf_attach_type = BPF_CGROUP_SOCK_OPS;

/// Why TCP connections are not accounted.
#[derive(Debug, Error)]
pub enum AccountingError {
    /// The flag says so.
    #[error("{ACCOUNTING} off")]
    Off,
    /// No socket has what it dialled.
    #[error("with {TCP_PEER} endpoint, sockets do not keep which Service they dialled")]
    NoStorage,
    /// Where the kernel counts is not known.
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// The program is refused.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The map cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The map cannot be written.
    #[error(transparent)]
    Write(#[from] StoreError),
    /// The program cannot be attached.
    #[error("the hook sock_ops of {} cannot be attached: {}", .0.display(), .1)]
    Attach(PathBuf, #[source] io::Error),
}

impl Datapath {
    /// Attaches the program, in one step in place of an earlier agent's, so that each connection is
    /// counted once. Call it after [`attach`](Self::attach): then the maps are in their places.
    ///
    /// # Errors
    /// The programs of an earlier agent are detached, and TCP connections are not accounted. `Ok` with an
    /// error: connections count only when they end.
    pub fn account(&mut self) -> Result<Option<WalkError>, AccountingError> {
        let attached = self.try_to_account();
        self.accounting.clear();
        if attached.is_err() {
            // It cannot be worse: nothing depends on it.
            let _ = remove(&self.options.pin_dir);
        } else {
            self.hold_accounting();
        }
        attached
    }

    /// Holds the links of accounting open: without its pin, a link would be gone.
    fn hold_accounting(&mut self) {
        let pin_dir = &self.options.pin_dir;
        let [own, _] = paths(pin_dir);
        for path in walk::pins(pin_dir).chain([own]) {
            if let Ok(Some(link)) = syscall::open_pin(&path) {
                self.accounting.push((path, link));
            }
        }
    }

    /// Pins the links of accounting again whose pins are gone.
    pub(super) fn repair_accounting(&self, repairs: &mut Repairs) {
        for (path, link) in self.accounting.iter().filter(|(path, _)| !path.exists()) {
            match syscall::pin(link.as_fd(), path) {
                Ok(()) => repairs.done.push(format!("the pin {} was gone", path.display())),
                Err(error) => {
                    repairs.failed.push(format!("{} cannot be put back: {error}", path.display()));
                }
            }
        }
    }

    fn try_to_account(&mut self) -> Result<Option<WalkError>, AccountingError> {
        if !self.options.accounting {
            return Err(AccountingError::Off);
        }
        if self.options.tcp_peer == TcpPeer::Endpoint {
            return Err(AccountingError::NoStorage);
        }
        let missing = feature::lacking(Feature::ACCOUNTING);
        if !missing.is_empty() {
            return Err(LoadError::KernelTooOld(missing).into());
        }
        if let Some(error) = self.no_tcp_fields.take() {
            return Err(error.into());
        }
        let pin_dir = &self.options.pin_dir;
        TotalsMap::open(pin_dir)?.make_others()?;
        FarEndpointsMap::open(pin_dir)?.make_others()?;
        let root = &self.options.cgroup_root;
        let attached = |program: &SockOps| -> Result<(), AccountingError> {
            let fd = program.fd().map_err(|error| LoadError::Object(causes(&error)))?;
            attach(fd.as_fd(), root, pin_dir)
                .map_err(|error| AccountingError::Attach(root.clone(), error))
        };
        let missing = feature::lacking(&[Feature::ATOMIC_EXCHANGE]);
        if !missing.is_empty() {
            attached(load(&mut self.ebpf, NAME)?)?;
            return Ok(Some(LoadError::KernelTooOld(missing).into()));
        }
        attached(load(&mut self.ebpf, BESIDE)?)?;
        Ok(walk::pin(&mut self.ebpf, pin_dir).err())
    }
}

fn load<'a>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut SockOps, LoadError> {
    let program = ebpf.program_mut(name).and_then(|program| program.try_into().ok());
    let program: &mut SockOps =
        program.ok_or_else(|| LoadError::Object(format!("it has no program {name}")))?;
    if program.fd().is_err() {
        program.load().map_err(|error| refused(name, error))?;
    }
    Ok(program)
}

fn attach(program: BorrowedFd<'_>, root: &Path, pin_dir: &Path) -> io::Result<()> {
    let cgroup = File::open(root)?;
    let [place, new] = paths(pin_dir);
    if let Some(link) = Link::open(&place)?
        && link.is_on(ATTACH_TYPE, cgroup_id(&cgroup)?)
    {
        return link.update(program);
    }
    let link = syscall::link_cgroup(program, cgroup.as_fd(), ATTACH_TYPE, 0)?;
    // An agent that was killed between pinning and renaming left it.
    let _ = fs::remove_file(&new);
    syscall::pin(link.as_fd(), &new)?;
    fs::rename(new, place)
}

/// Detaches the program. Returns whether it was there.
///
/// # Errors
/// The path of a pin that cannot be removed.
pub(crate) fn remove(pin_dir: &Path) -> Result<bool, (PathBuf, io::Error)> {
    walk::remove(pin_dir)?;
    let mut removed = false;
    for path in paths(pin_dir) {
        match fs::remove_file(&path) {
            Ok(()) => removed = true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err((path, error)),
        }
    }
    Ok(removed)
}

/// Where the link is pinned, and where until it replaces the old one.
pub(crate) fn paths(pin_dir: &Path) -> [PathBuf; 2] {
    let directory = pin_dir.join(DIRECTORY);
    [directory.join(NAME), directory.join(format!("{NAME}_new"))]
}
