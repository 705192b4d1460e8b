//! Attaches the programs to the hooks of a cgroup, all or none.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use tracing::{debug, info, warn};

use super::place::{self, Position};
use crate::datapath::Datapath;
use crate::datapath::error::AttachError;
use crate::datapath::hook::{Hook, ProgramIds};
use crate::datapath::host::syscall;
use crate::datapath::link::{DIRECTORY, Link, cgroup_id, pin_path, pin_path_new};
use crate::datapath::programs::load::program;

/// How many hooks were attached, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attached {
    /// Hooks that had no link of ours.
    pub new: usize,
    /// Hooks with a link that got the new program in one step.
    pub updated: usize,
    /// Hooks with a link on another cgroup, on a removed one, or behind other programs.
    pub moved: usize,
}

/// A hook that keeps its pinned link, and the program to restore on failure.
struct Update {
    hook: Hook,
    link: Link,
    previous: Option<OwnedFd>,
}

struct Fresh {
    hook: Hook,
    link: OwnedFd,
    replaces: bool,
}

impl Datapath {
    /// Attaches all eight programs to the cgroup root. Those that decide run before foreign
    /// programs if the kernel supports it. The pinned link of an earlier agent gets the new
    /// program, unless it is on another cgroup or a new link would run earlier: then a new link is
    /// attached, and the old one removed after that. A connection opened between these two steps
    /// runs through both programs: it reaches its endpoint, and may show that endpoint as its peer.
    ///
    /// # Errors
    /// All hooks are as before; dropping `self` removes what [`open`](Self::open) pinned.
    pub fn attach(&mut self) -> Result<Attached, AttachError> {
        let pin_dir = self.options.pin_dir.clone();
        let root = self.options.cgroup_root.clone();
        let failed = |error| AttachError::CgroupRoot(root.clone(), error);
        let cgroup = File::open(&root).map_err(failed)?;
        let id = cgroup_id(&cgroup).map_err(failed)?;

        let (mut updates, mut fresh) = (Vec::new(), Vec::new());
        for hook in Hook::ALL {
            let path = pin_path(&pin_dir, hook);
            let unusable = |error| AttachError::Link(path.clone(), error);
            match Link::open(&path).map_err(unusable)? {
                Some(link)
                    if link.is_on(hook.attach_type(), id) && !is_beaten(hook, &cgroup, &link) =>
                {
                    // Without CAP_SYS_ADMIN the old program cannot be opened, and so not restored.
                    let previous = link.program().ok();
                    updates.push(Update { hook, link, previous });
                }
                // Not pinned yet: dropping the link detaches it.
                other => {
                    let link = self.link(hook, &cgroup)?;
                    fresh.push(Fresh { hook, link, replaces: other.is_some() });
                }
            }
        }
        let attached = Attached {
            new: fresh.iter().filter(|fresh| !fresh.replaces).count(),
            updated: updates.len(),
            moved: fresh.iter().filter(|fresh| fresh.replaces).count(),
        };
        self.update(&updates)?;
        if let Err(error) = pin(&pin_dir, fresh) {
            revert(&updates);
            return Err(error);
        }
        self.made.keep();
        if let Err(error) = self.hold_links() {
            warn!("the links are not held open ({error}): who removes their pins detaches them");
        }
        if let Some(renewal) = self.renewal.take() {
            // Also what the old programs wrote until now.
            renewal.copy_state();
            self.carried = Some(renewal.connections());
            if let Err(error) = renewal.finish() {
                warn!("the new maps are not in their places: {error}; the next start tries again");
            }
        }
        let Attached { new, updated, moved } = attached;
        info!(new, updated, moved, cgroup = %root.display(), "programs are attached");
        Ok(attached)
    }

    /// Attaches a program by a link that is not pinned yet, and allows others at the hook.
    pub(crate) fn link(&mut self, hook: Hook, cgroup: &File) -> Result<OwnedFd, AttachError> {
        let root = self.options.cgroup_root.clone();
        let program =
            program(&mut self.ebpf, hook)?.fd().map_err(|error| AttachError::Refused {
                hook: hook.name(),
                cgroup: root.clone(),
                reason: error.to_string(),
            })?;
        place::attach(hook, program.as_fd(), cgroup.as_fd(), Position::First).map_err(|error| {
            let (hook, cgroup) = (hook.name(), root.clone());
            match error.raw_os_error() {
                // cgroup_bpf_attach, kernel/bpf/cgroup.c: hierarchy_allows_attach, or other flags.
                Some(libc::EPERM) => AttachError::Exclusive { hook, cgroup },
                _ => AttachError::Refused { hook, cgroup, reason: error.to_string() },
            }
        })
    }

    /// The ids of the programs that decide, by hook.
    ///
    /// # Errors
    /// The kernel does not return one.
    pub fn programs(&mut self) -> Result<ProgramIds, AttachError> {
        let mut ours = ProgramIds::new();
        for hook in Hook::deciding() {
            let info = program(&mut self.ebpf, hook)?.info();
            let info = info.map_err(|error| AttachError::Refused {
                hook: hook.name(),
                cgroup: self.options.cgroup_root.clone(),
                reason: error.to_string(),
            })?;
            ours.insert(hook, info.id());
        }
        Ok(ours)
    }

    /// Switches the links that stay to the new programs; restores the old ones on failure.
    fn update(&mut self, updates: &[Update]) -> Result<(), AttachError> {
        for (done, update) in updates.iter().enumerate() {
            let program = program(&mut self.ebpf, update.hook)?;
            let result = match program.fd() {
                Ok(fd) => update.link.update(fd.as_fd()),
                Err(error) => Err(io::Error::other(error)),
            };
            if let Err(error) = result {
                revert(&updates[..done]);
                let path = pin_path(&self.options.pin_dir, update.hook);
                return Err(AttachError::Link(path, error));
            }
        }
        Ok(())
    }
}

/// Whether a new link would run before programs before this one. `false` if that is unknown.
fn is_beaten(hook: Hook, cgroup: &File, link: &Link) -> bool {
    place::is_beaten(hook, cgroup.as_fd(), link.program_id()).unwrap_or_else(|error| {
        debug!(hook = hook.name(), %error, "the kernel does not say which programs run first");
        false
    })
}

/// Restores the previous programs of the links.
fn revert(updates: &[Update]) {
    for Update { hook, link, previous } in updates {
        let reverted = match previous {
            Some(program) => link.update(program.as_fd()),
            None => Err(io::ErrorKind::PermissionDenied.into()),
        };
        if let Err(error) = reverted {
            warn!(hook = hook.name(), %error, "the hook keeps the new program");
        }
    }
}

/// Pins all new links or none.
fn pin(pin_dir: &Path, fresh: Vec<Fresh>) -> Result<(), AttachError> {
    if fresh.is_empty() {
        return Ok(());
    }
    let failed = |hook: Hook, reason: String| AttachError::Pin { hook: hook.name(), reason };
    let directory = pin_dir.join(DIRECTORY);
    let first = fresh[0].hook;
    let made = match fs::create_dir(&directory) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(failed(first, error.to_string())),
    };
    let mut pinned = Vec::new();
    let mut result = Ok(());
    for Fresh { hook, link, .. } in fresh {
        let path = pin_path_new(pin_dir, hook);
        // An agent that was killed between pinning and renaming left it.
        let _ = fs::remove_file(&path);
        match syscall::pin(link.as_fd(), &path) {
            Ok(()) => pinned.push((hook, path, link)),
            Err(error) => {
                result = Err(failed(hook, error.to_string()));
                break;
            }
        }
    }
    let mut in_place = Vec::new();
    if result.is_ok() {
        for (hook, path, _) in &pinned {
            let place = pin_path(pin_dir, *hook);
            if let Err(error) = fs::rename(path, &place) {
                result = Err(failed(*hook, error.to_string()));
                break;
            }
            in_place.push(place);
        }
    }
    if result.is_err() {
        for path in pinned.iter().map(|(_, path, _)| path).chain(&in_place) {
            let _ = fs::remove_file(path);
        }
        if made {
            let _ = fs::remove_dir(&directory);
        }
    }
    result
}

/// Whether programs are attached by links that are pinned below `pin_dir`.
#[must_use]
pub fn is_attached(pin_dir: &Path) -> bool {
    Hook::ALL.into_iter().any(|hook| pin_path(pin_dir, hook).exists())
}
