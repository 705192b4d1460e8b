//! Guards: a process of the host cannot bind a node port while clients outside are served. Its socket
//! would get no connection, because topo-lb's programs see each one first.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use aya::programs::CgroupSock;
use aya_obj::generated::bpf_attach_type;
use tracing::{debug, warn};

use super::link::DIRECTORY;
use crate::datapath::Datapath;
use crate::datapath::host::syscall;

/// The programs, and their hooks. A pinned link has its program's name.
const GUARDS: [(&str, bpf_attach_type); 2] = [
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
        for (name, hook) in GUARDS {
            match self.guard(name, hook, &pin_dir) {
                Ok(()) => debug!(name, "binds to node ports are refused"),
                Err(error) => warn!(
                    "{name}: {error}: a process of this host can bind a node port, and gets no \
                     connection there"
                ),
            }
        }
    }

    fn guard(&mut self, name: &str, hook: bpf_attach_type, pin_dir: &Path) -> io::Result<()> {
        let program = self.ebpf.program_mut(name).ok_or(io::ErrorKind::NotFound)?;
        let program: &mut CgroupSock = program.try_into().map_err(io::Error::other)?;
        program.load().map_err(io::Error::other)?;
        let cgroup = File::open(&self.options.cgroup_root)?;
        let program = program.fd().map_err(io::Error::other)?;
        let link = syscall::link_cgroup(program.as_fd(), cgroup.as_fd(), hook, 0)?;
        let [place, new] = paths(pin_dir, name);
        // An agent that was killed between pinning and renaming left it.
        let _ = fs::remove_file(&new);
        syscall::pin(link.as_fd(), &new)?;
        // For a moment both refuse, the earlier agent's and this one.
        fs::rename(new, place)
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
