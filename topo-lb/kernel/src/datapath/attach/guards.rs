//! Guards: a process of the host cannot bind a node port while clients outside are served. Its socket
//! would get no connection, because topo-lb's programs see each one first.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use aya::programs::CgroupSock;
use aya_obj::generated::bpf_attach_type;
use tracing::{debug, warn};

use super::repair::{Held, Repairs};
use crate::datapath::hook::Guard;
use crate::datapath::host::syscall;
use crate::datapath::link::{DIRECTORY, Link};
use crate::datapath::{Datapath, Options};

const GUARDS: [Guard; 2] = [
    ("post_bind4", bpf_attach_type::BPF_CGROUP_INET4_POST_BIND),
    ("post_bind6", bpf_attach_type::BPF_CGROUP_INET6_POST_BIND),
];

impl Datapath {
    /// Attaches the guards in place of those of an earlier agent, if clients outside are served;
    /// removes them otherwise. A guard that the kernel refuses is logged: nothing depends on it.
    pub fn guard_node_ports(&mut self) {
        let pin_dir = self.options.pin_dir.clone();
        if self.masquerade.is_none() {
            if let Err((path, error)) = remove(&pin_dir) {
                warn!("{} cannot be removed: {error}", path.display());
            }
            return;
        }
        for guard in GUARDS {
            match self.guard(guard, &pin_dir) {
                Ok(link) => {
                    debug!(name = guard.0, "binds to node ports are refused");
                    self.guards.push((guard, link));
                }
                Err(error) => warn!(
                    "{}: {error}: a process of this host can bind a node port, and gets no \
                     connection there",
                    guard.0
                ),
            }
        }
    }

    /// Puts back the guards that another process removed.
    pub(super) fn repair_guards(&mut self, options: &Options, repairs: &mut Repairs) {
        let mut guards = std::mem::take(&mut self.guards);
        for (guard, link) in &mut guards {
            let held = Held { name: guard.0, attach_type: guard.1, link };
            held.repair(options, repairs, |cgroup| {
                self.link_guard(*guard, cgroup).map_err(|error| error.to_string())
            });
        }
        self.guards = guards;
    }

    fn guard(&mut self, guard: Guard, pin_dir: &Path) -> io::Result<Link> {
        let cgroup = File::open(&self.options.cgroup_root)?;
        let link = self.link_guard(guard, &cgroup)?;
        let [place, new] = paths(pin_dir, guard.0);
        // An agent that was killed between pinning and renaming left it.
        let _ = fs::remove_file(&new);
        syscall::pin(link.as_fd(), &new)?;
        // For a moment both refuse, the earlier agent's and this one.
        fs::rename(new, &place)?;
        Link::open(&place)?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn link_guard(&mut self, (name, attach_type): Guard, cgroup: &File) -> io::Result<OwnedFd> {
        let program = self.ebpf.program_mut(name).ok_or(io::ErrorKind::NotFound)?;
        let program: &mut CgroupSock = program.try_into().map_err(io::Error::other)?;
        if program.fd().is_err() {
            program.load().map_err(io::Error::other)?;
        }
        let program = program.fd().map_err(io::Error::other)?;
        syscall::link_cgroup(program.as_fd(), cgroup.as_fd(), attach_type, 0)
    }
}

/// Removes the guards. Returns the names of those that were there.
pub(crate) fn remove(pin_dir: &Path) -> Result<Vec<&'static str>, (PathBuf, io::Error)> {
    let mut removed = Vec::new();
    for (name, _) in GUARDS {
        for path in paths(pin_dir, name) {
            match fs::remove_file(&path) {
                Ok(()) => removed.push(name),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err((path, error)),
            }
        }
    }
    removed.dedup();
    Ok(removed)
}

/// Where a guard's link is pinned, and where until it replaces the old one.
fn paths(pin_dir: &Path, name: &str) -> [PathBuf; 2] {
    let directory = pin_dir.join(DIRECTORY);
    [directory.join(name), directory.join(format!("{name}_new"))]
}
