//! A pinned link: what keeps a program attached while no agent runs.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::datapath::hook::Hook;
use crate::datapath::host::syscall::{self, LinkInfo, LinkTarget};

/// Directory below the pin directory.
pub const DIRECTORY: &str = "links";

/// Where the link of a hook is pinned.
#[must_use]
pub fn pin_path(pin_dir: &Path, hook: Hook) -> PathBuf {
    pin_dir.join(DIRECTORY).join(hook.name())
}

/// Where a link is pinned until it takes another's place; bpffs allows no dot in a name.
pub(crate) fn pin_path_new(pin_dir: &Path, hook: Hook) -> PathBuf {
    pin_dir.join(DIRECTORY).join(format!("{}_new", hook.name()))
}

/// An open link of a hook.
#[derive(Debug)]
pub(crate) struct Link {
    fd: OwnedFd,
    info: LinkInfo,
}

impl Link {
    /// Opens what is pinned at `path`; `None` where nothing is.
    pub(crate) fn open(path: &Path) -> io::Result<Option<Self>> {
        Ok(syscall::open_link(path)?.map(|(fd, info)| Self { fd, info }))
    }

    /// Whether it attaches to `hook` of the cgroup with this id. A link whose cgroup is gone is
    /// on none.
    pub(crate) fn is_on(&self, hook: Hook, cgroup_id: u64) -> bool {
        is_on(&self.info, hook, cgroup_id)
    }

    /// The id of the cgroup where it is attached to `hook`; `None` where the cgroup is gone.
    pub(crate) fn cgroup(&self, hook: Hook) -> Option<u64> {
        match self.info.target {
            LinkTarget::Cgroup { id, .. } if id != 0 && self.is_on(hook, id) => Some(id),
            _ => None,
        }
    }

    /// Whether it is attached there now.
    pub(crate) fn is_still_on(&self, hook: Hook, cgroup_id: u64) -> io::Result<bool> {
        Ok(is_on(&syscall::link_info(self.fd.as_fd())?, hook, cgroup_id))
    }

    /// Puts `program` behind the link.
    pub(crate) fn update(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        syscall::update_link(self.fd.as_fd(), program)
    }

    /// The kernel's id of the program behind it when it was opened.
    pub(crate) fn program_id(&self) -> u32 {
        self.info.program
    }

    /// The program that was behind it when it was opened.
    pub(crate) fn program(&self) -> io::Result<OwnedFd> {
        syscall::program_by_id(self.info.program)
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn is_on(info: &LinkInfo, hook: Hook, id: u64) -> bool {
    info.target == LinkTarget::Cgroup { id, attach_type: hook.attach_type() as u32 }
}

/// The id of an open cgroup directory: its inode number, on kernels of 64 bits.
pub(crate) fn cgroup_id(cgroup: &File) -> io::Result<u64> {
    cgroup.metadata().map(|metadata| metadata.ino())
}
