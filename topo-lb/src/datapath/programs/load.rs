//! Brings programs and maps into the kernel: maps that are pinned are used again if they are what
//! they must be, and others are made beside them if not; nothing is attached yet.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use aya::maps::{Map, MapError};
use aya::programs::{CgroupSockAddr, ProgramError, SchedClassifier};
use aya::{Ebpf, EbpfError};
use thiserror::Error;
use tracing::debug;

use super::object::{Constants, Hook, MapSpec, OBJECT, TcpPeer, loader, map_specs};
use crate::datapath::attach::devices::{AttachMode, Direction};
use crate::datapath::attach::link::Link;
use crate::datapath::host::capability;
use crate::datapath::host::feature::{self, Feature};
use crate::datapath::host::lock::{Lock, LockError};
use crate::datapath::host::mount::{MountError, check_bpffs, check_cgroup2};
use crate::datapath::maps::renewal::{self, Pinned, Renewal};
use crate::datapath::maps::reply_filter::ReplyFilter;
use crate::plan::Capacity;

/// Where and how the datapath is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory on bpffs that maps and links are pinned in; made where it is missing.
    pub pin_dir: PathBuf,
    /// The cgroup v2 directory whose processes are served.
    pub cgroup_root: PathBuf,
    /// How much the maps hold.
    pub capacity: Capacity,
    /// What the peer of a translated TCP connection is to its application.
    pub tcp_peer: TcpPeer,
    /// Whether Pods can be excluded.
    pub exclusions: bool,
    /// How tc is attached; where nothing is said, by tcx if the kernel has it.
    pub tc_attach_mode: Option<AttachMode>,
}

/// Why the datapath does not come into the kernel. Nothing new is left behind.
#[derive(Debug, Error)]
pub enum LoadError {
    /// A file system is not there.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The pin directory cannot be made.
    #[error("the pin directory {} cannot be made: {source}", path.display())]
    PinDirectory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The pin directory is another agent's.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The process may not do it.
    #[error(
        "loading eBPF programs takes {}, which this process does not have: run it as root, or give \
         it these capabilities (CAP_SYS_ADMIN and CAP_NET_ADMIN before Linux 5.8)", .0.join(" and ")
    )]
    Capabilities(Vec<&'static str>),
    /// The kernel said no although the capabilities are there.
    #[error(
        "the kernel does not let this process load eBPF programs ({}): {source}",
        if capability::in_user_namespace() {
            "it runs in a user namespace, where no capability is enough"
        } else {
            "look for a seccomp profile that allows bpf(2) only with CAP_SYS_ADMIN, kernel lockdown, \
             a security module, or RLIMIT_MEMLOCK before Linux 5.11"
        }
    )]
    NotPermitted {
        /// What the kernel answered.
        source: io::Error,
    },
    /// The kernel lacks what the programs need.
    #[error("this kernel ({}) is too old: {}", feature::kernel_release(), list(.0))]
    KernelTooOld(Vec<Feature>),
    /// There is no way to wait for programs that run.
    #[error(
        "the agent cannot wait for running programs to end, because membarrier(2) does not serve: \
         allow it in the seccomp profile, and boot without `nohz_full`, which takes it away"
    )]
    NoMembarrier,
    /// A later version of topo-lb made the pins.
    #[error(
        "the maps in {} were made by a newer topo-lb (layout {found}; this one knows {own}), and \
         are left alone: run that version again, or `topo-lb cleanup` for connections to Services \
         to be untouched until this version has started", path.display()
    )]
    Newer {
        /// The pin directory.
        path: PathBuf,
        /// Layout of the pins.
        found: u32,
        /// Layout of this version.
        own: u32,
    },
    /// A map cannot be made, or a pinned one cannot be read.
    #[error("the map {name} cannot be had: {reason}")]
    Map {
        /// The map.
        name: String,
        /// Why.
        reason: String,
    },
    /// The verifier does not take a program.
    #[error(
        "this kernel ({}) refuses the program {program}: {reason} (more at log level debug)",
        feature::kernel_release()
    )]
    Verifier {
        /// The program.
        program: &'static str,
        /// What the kernel answered, and what the verifier said last.
        reason: String,
    },
    /// The object inside this binary is damaged or was built for another version.
    #[error("the eBPF object inside this binary cannot be used: {0}")]
    Object(String),
}

fn list(features: &[Feature]) -> String {
    let each =
        features.iter().map(|feature| format!("it lacks {feature} (Linux {})", feature.since()));
    each.collect::<Vec<_>>().join(", ")
}

/// The datapath in the kernel, held by this process alone. Pins that it made go with it, unless it
/// was attached.
#[derive(Debug)]
pub struct Datapath {
    pub(crate) options: Options,
    pub(crate) ebpf: Ebpf,
    reports_refused: bool,
    /// Held open once they are attached.
    pub(crate) links: Vec<(Hook, Link)>,
    /// Where the pinned maps did not fit, until the hooks have the new ones.
    pub(crate) renewal: Option<Renewal>,
    /// Once tc is attached.
    pub(crate) answerers: Option<ReplyFilter>,
    /// Before the lock, so that it is undone before the lock is given back.
    pub(crate) made: Made,
    pub(crate) lock: Lock,
}

impl Datapath {
    /// Looks whether this host lets [`open`](Self::open) succeed, and makes nothing. Takes some
    /// milliseconds.
    ///
    /// # Errors
    ///
    /// As those of [`open`](Self::open), as far as they can be told without making anything.
    pub fn check_host(options: &Options) -> Result<(), LoadError> {
        check_bpffs(&options.pin_dir)?;
        check_cgroup2(&options.cgroup_root)?;
        let missing = capability::missing();
        if !missing.is_empty() {
            return Err(LoadError::Capabilities(missing));
        }
        if let Some(source) = feature::forbidden() {
            return Err(LoadError::NotPermitted { source });
        }
        let missing = feature::missing();
        if !missing.is_empty() {
            return Err(LoadError::KernelTooOld(missing));
        }
        if !feature::has_membarrier() {
            return Err(LoadError::NoMembarrier);
        }
        if options.pin_dir.exists() {
            Lock::take(&options.pin_dir)?;
            renewal::look(&options.pin_dir, &map_specs(&options.capacity))?;
        }
        Ok(())
    }

    /// Takes the pin directory, loads the programs, makes and pins the maps that are not there,
    /// and takes those that are. Nothing is attached.
    ///
    /// # Errors
    ///
    /// Each says in a sentence what is missing and what to do.
    pub fn open(options: Options) -> Result<Self, LoadError> {
        Self::check_host(&options)?;
        let is_new = make_directory(&options.pin_dir)?;
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
        made.directories.extend(renewal::mark(&options.pin_dir)?);
        let constants = Constants::probe(options.tcp_peer).with_exclusions(options.exclusions);
        let directory = renewal.as_ref().map_or(&*options.pin_dir, Renewal::directory);
        let mut ebpf = load(&map_specs, &constants, Some(directory))?;
        if options.capacity.connections != 0 {
            for direction in Direction::BOTH {
                classifier(&mut ebpf, direction)?
                    .load()
                    .map_err(|error| refused(direction.program(), error))?;
            }
        }
        let reports_refused = constants.reports_refused();
        Ok(Self {
            options,
            ebpf,
            reports_refused,
            renewal,
            made,
            links: Vec::new(),
            answerers: None,
            lock,
        })
    }

    /// Copies what was counted and remembered in pinned maps of another layout, if there are any. Comes
    /// right before the first plan: until then, the programs that are attached count in the old maps.
    pub fn copy_old_state(&self) {
        if let Some(renewal) = &self.renewal {
            renewal.copy_books();
            renewal.copy_state();
        }
    }

    /// Where the maps of these programs are pinned: in the pin directory, or below it until
    /// [`attach`](Self::attach) has put them in the place of others.
    #[must_use]
    pub fn maps_directory(&self) -> &Path {
        self.renewal.as_ref().map_or(&self.options.pin_dir, Renewal::directory)
    }

    /// Where and how it is.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Whether refused connections are `ECONNREFUSED`; otherwise they are `EPERM`, because the
    /// kernel lacks `bpf_set_retval`.
    #[must_use]
    pub fn reports_refused(&self) -> bool {
        self.reports_refused
    }

    /// The maps that are here, with their names of `topo_lb_common::maps`.
    pub fn maps(&self) -> impl Iterator<Item = (&str, &Map)> {
        self.ebpf.maps()
    }

    /// A map by its name of `topo_lb_common::maps`; `None` for a name that is no map's, and after
    /// [`take_map`](Self::take_map).
    #[must_use]
    pub fn map(&self, name: &str) -> Option<&Map> {
        self.ebpf.map(name)
    }

    /// Gives a map away, to be wrapped in its type; the kernel keeps it, pinned.
    pub fn take_map(&mut self, name: &str) -> Option<Map> {
        self.ebpf.take_map(name)
    }
}

/// What of the pin directory is new, and goes again unless it is kept.
#[derive(Debug)]
pub(crate) struct Made {
    /// From above to below.
    directories: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

impl Made {
    pub(crate) fn keep(&mut self) {
        self.directories.clear();
        self.files.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // The error that brings us here is the one to tell; what cannot be removed now,
        // `topo-lb cleanup` removes.
        for file in self.files.drain(..) {
            let _ = fs::remove_file(file);
        }
        for directory in self.directories.drain(..).rev() {
            let _ = fs::remove_dir(directory);
        }
    }
}

/// Makes a directory and those above it; whether it was not there.
fn make_directory(path: &Path) -> Result<bool, LoadError> {
    let is_new = !path.exists();
    fs::create_dir_all(path)
        .map_err(|source| LoadError::PinDirectory { path: path.to_owned(), source })?;
    Ok(is_new)
}

/// Loads maps and programs, pinning the maps in `pin_dir` where one is given.
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

/// The program of a hook.
pub(crate) fn program(ebpf: &mut Ebpf, hook: Hook) -> Result<&mut CgroupSockAddr, LoadError> {
    ebpf.program_mut(hook.name())
        .and_then(|program| <&mut CgroupSockAddr>::try_from(program).ok())
        .ok_or_else(|| LoadError::Object(format!("it has no program {}", hook.name())))
}

/// The program of a direction.
pub(crate) fn classifier(
    ebpf: &mut Ebpf,
    direction: Direction,
) -> Result<&mut SchedClassifier, LoadError> {
    let name = direction.program();
    ebpf.program_mut(name)
        .and_then(|program| <&mut SchedClassifier>::try_from(program).ok())
        .ok_or_else(|| LoadError::Object(format!("it has no program {name}")))
}

fn refused(program: &'static str, error: ProgramError) -> LoadError {
    match error {
        ProgramError::LoadError { io_error, .. }
            if io_error.raw_os_error() == Some(libc::EPERM) =>
        {
            LoadError::NotPermitted { source: io_error }
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

/// The verifier's log ends with its statistics, each line beginning with a word of its own.
fn first_word(line: &str) -> &str {
    line.split_ascii_whitespace().next().unwrap_or_default()
}

const NO_MEMORY: &str = "the kernel has no memory for a map of its size: raise the memory limit of \
    the agent's container, or take smaller maps (--max-services, --max-endpoints, --max-flows, \
    --max-connections)";

fn explain(error: EbpfError) -> LoadError {
    match error {
        EbpfError::MapError(MapError::CreateError { io_error, .. })
            if io_error.raw_os_error() == Some(libc::EPERM) =>
        {
            LoadError::NotPermitted { source: io_error }
        }
        EbpfError::MapError(MapError::CreateError { name, io_error })
            if io_error.raw_os_error() == Some(libc::ENOMEM) =>
        {
            LoadError::Map { name, reason: NO_MEMORY.into() }
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

/// An error with all that caused it, in one line.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let next_text = next.to_string();
        if !text.contains(&next_text) {
            text.push_str(": ");
            text.push_str(&next_text);
        }
        cause = next.source();
    }
    text
}
