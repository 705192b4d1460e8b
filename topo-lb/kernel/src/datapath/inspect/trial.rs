//! A temporary datapath without pins, to test a host and to measure costs beside an agent.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use aya::Ebpf;
use aya::maps::{Array, HashMap, Map, MapError};
use aya::programs::ProgramInfo;
use thiserror::Error;
use topo_lb_common::address::Frontend4;
use topo_lb_common::maps;
use topo_lb_common::range::Range;
use topo_lb_common::record::Record4;

use crate::datapath::attach::place::{self, Position};
use crate::datapath::error::{LoadError, causes};
use crate::datapath::hook::Hook;
use crate::datapath::maps::pinned::Raw;
use crate::datapath::maps::spec::map_specs;
use crate::datapath::programs::load::{load, program};
use crate::datapath::programs::object::{Constants, TcpPeer};
use topo_lb_core::plan::Capacity;

/// Why a trial cannot be created.
#[derive(Debug, Error)]
pub enum TrialError {
    /// The cgroup cannot be created.
    #[error("a cgroup cannot be made below {}: {}", .0.display(), .1)]
    Cgroup(PathBuf, #[source] io::Error),
    /// The kernel refuses programs or maps.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A program cannot be attached.
    #[error("{hook} cannot be attached to a cgroup: {reason}")]
    Attach {
        /// The hook's name.
        hook: &'static str,
        /// The kernel's answer.
        reason: String,
    },
    /// A map cannot be written.
    #[error("{map} cannot be written: {reason}")]
    Write {
        /// The map.
        map: &'static str,
        /// The kernel's answer.
        reason: String,
    },
}

/// A cgroup for a trial; removed when dropped.
#[derive(Debug)]
pub struct TrialCgroup {
    path: PathBuf,
}

/// Prefix of the names of trial cgroups.
const PREFIX: &str = "topo-lb-trial-";
/// An empty trial cgroup of this age was left by a killed process.
const LEFTOVER: Duration = Duration::from_secs(60);

impl TrialCgroup {
    /// Creates one below `root`, and removes old ones that were left there.
    ///
    /// # Errors
    /// `root` is not a cgroup v2 directory that this process may write to.
    pub fn make(root: &Path) -> Result<Self, TrialError> {
        remove_leftovers(root);
        // Processes of several PID namespaces may do this at once, so the pid alone is not unique.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let path = root.join(format!("{PREFIX}{}-{}", std::process::id(), now.as_nanos()));
        match fs::create_dir(&path) {
            Ok(()) => Ok(Self { path }),
            Err(error) => Err(TrialError::Cgroup(root.to_owned(), error)),
        }
    }

    /// Its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file that moves processes into it: writing `0` moves the writer.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn processes(&self) -> io::Result<File> {
        File::options().write(true).open(self.path.join("cgroup.procs"))
    }
}

impl Drop for TrialCgroup {
    fn drop(&mut self) {
        // A process that was just killed leaves its cgroup a moment later.
        for _ in 0..50 {
            match fs::remove_dir(&self.path) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    thread::sleep(Duration::from_millis(10));
                }
                _ => return,
            }
        }
    }
}

/// Whether this is the name of a trial's cgroup.
pub(crate) fn is_trial(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| name.starts_with(PREFIX))
}

fn remove_leftovers(root: &Path) {
    let Ok(entries) = fs::read_dir(root) else { return };
    for entry in entries.flatten() {
        let is_ours = is_trial(&entry.file_name());
        let age = entry.metadata().and_then(|data| data.modified()).map(|made| made.elapsed());
        if is_ours && matches!(age, Ok(Ok(age)) if age > LEFTOVER) {
            // Fails if it is in use; then it stays.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Programs and maps that are removed when this is dropped.
#[derive(Debug)]
pub struct Trial {
    ebpf: Ebpf,
    links: Vec<OwnedFd>,
    /// Records in use.
    records: u32,
    reports_refused: bool,
}

impl Trial {
    /// Loads programs and maps of this capacity. With no `range` written, all addresses are looked
    /// up.
    ///
    /// # Errors
    /// As [`Datapath::open`](crate::datapath::Datapath::open), as far as the kernel is concerned.
    pub fn load(capacity: &Capacity, tcp_peer: TcpPeer) -> Result<Self, TrialError> {
        let constants = Constants::probe(tcp_peer, capacity.services);
        let ebpf = load(&map_specs(capacity), &constants, None)?;
        Ok(Self {
            ebpf,
            links: Vec::new(),
            records: 0,
            reports_refused: constants.reports_refused(),
        })
    }

    /// Attaches all programs to a cgroup, until this is dropped; they run after an agent's.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn attach(&mut self, cgroup: &Path) -> Result<(), TrialError> {
        let failed = |error| TrialError::Cgroup(cgroup.to_owned(), error);
        let directory = File::open(cgroup).map_err(failed)?;
        for hook in Hook::ALL {
            let failed = |reason| TrialError::Attach { hook: hook.name(), reason };
            let program = program(&mut self.ebpf, hook)?;
            let program = program.fd().map_err(|error| failed(error.to_string()))?;
            let link = place::attach(hook, program.as_fd(), directory.as_fd(), Position::Behind)
                .map_err(|error| failed(error.to_string()))?;
            self.links.push(link);
        }
        Ok(())
    }

    /// Whether refused connections get `ECONNREFUSED` instead of `EPERM`.
    #[must_use]
    pub fn reports_refused(&self) -> bool {
        self.reports_refused
    }

    /// Adds an IPv4 Service, or replaces it with a new record.
    ///
    /// # Errors
    /// A map is full.
    pub fn write4(&mut self, record: Record4) -> Result<(), TrialError> {
        let (index, Record4 { address, port, protocol, .. }) = (self.records, record);
        self.records += 1;
        let mut records: Array<_, Raw<Record4>> =
            self.map(maps::RECORDS4).and_then(Array::try_from).map_err(failed(maps::RECORDS4))?;
        records.set(index, Raw(record), 0).map_err(failed(maps::RECORDS4))?;
        let failed = failed(maps::SERVICES4);
        let mut services: HashMap<_, Raw<Frontend4>, u32> =
            self.map(maps::SERVICES4).and_then(HashMap::try_from).map_err(&failed)?;
        let frontend = Frontend4 { address, port, protocol, reserved: 0 };
        services.insert(Raw(frontend), index, 0).map_err(failed)
    }

    /// Restricts the addresses that are looked up.
    ///
    /// # Errors
    /// The map cannot be written.
    pub fn write_range(&mut self, range: Range) -> Result<(), TrialError> {
        let failed = failed(maps::RANGE);
        let mut entry: Array<_, Raw<Range>> =
            self.map(maps::RANGE).and_then(Array::try_from).map_err(&failed)?;
        entry.set(0, Raw(range), 0).map_err(failed)
    }

    fn map(&mut self, name: &str) -> Result<&mut Map, MapError> {
        self.ebpf.map_mut(name).ok_or(MapError::KeyNotFound)
    }

    /// The kernel's information about a hook's program.
    ///
    /// # Errors
    /// The kernel does not return it.
    pub fn info(&mut self, hook: Hook) -> Result<ProgramInfo, TrialError> {
        program(&mut self.ebpf, hook)?
            .info()
            .map_err(|error| TrialError::Attach { hook: hook.name(), reason: causes(&error) })
    }
}

fn failed(map: &'static str) -> impl Fn(MapError) -> TrialError {
    move |error| TrialError::Write { map, reason: causes(&error) }
}
