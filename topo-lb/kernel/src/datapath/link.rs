//! A pinned link, which keeps a program attached while no agent runs.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use aya_obj::generated::bpf_attach_type;

use crate::datapath::hook::Hook;
use crate::datapath::host::syscall::{self, LinkInfo, LinkTarget};

/// Directory below the pin directory.
pub const DIRECTORY: &str = "links";

/// Path of a hook's pinned link.
#[must_use]
pub fn pin_path(pin_dir: &Path, hook: Hook) -> PathBuf {
    pin_dir.join(DIRECTORY).join(hook.name())
}

/// Path of a new link until it replaces the old one; bpffs allows no dot in a name.
pub(crate) fn pin_path_new(pin_dir: &Path, hook: Hook) -> PathBuf {
    pin_dir.join(DIRECTORY).join(format!("{}_new", hook.name()))
}

#[derive(Debug)]
pub(crate) struct Link {
    fd: OwnedFd,
    info: LinkInfo,
}

impl Link {
    /// Opens the link pinned at `path`; `None` if there is none.
    pub(crate) fn open(path: &Path) -> io::Result<Option<Self>> {
        Ok(syscall::open_link(path)?.map(|(fd, info)| Self { fd, info }))
    }

    /// Whether it is attached to a hook of the cgroup with this id; false if its cgroup is gone.
    pub(crate) fn is_on(&self, hook: bpf_attach_type, cgroup_id: u64) -> bool {
        is_on(&self.info, hook, cgroup_id)
    }

    /// The id of the cgroup to which it is attached at a hook; `None` if the cgroup is gone.
    pub(crate) fn cgroup(&self, hook: bpf_attach_type) -> Option<u64> {
        match self.info.target {
            LinkTarget::Cgroup { id, .. } if id != 0 && self.is_on(hook, id) => Some(id),
            _ => None,
        }
    }

    /// As [`is_on`](Self::is_on), but asks the kernel again.
    pub(crate) fn is_still_on(&self, hook: bpf_attach_type, cgroup_id: u64) -> io::Result<bool> {
        Ok(is_on(&syscall::link_info(self.fd.as_fd())?, hook, cgroup_id))
    }

    pub(crate) fn update(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        syscall::update_link(self.fd.as_fd(), program)
    }

    /// The kernel's id of its program when it was opened.
    pub(crate) fn program_id(&self) -> u32 {
        self.info.program
    }

    /// Its program when it was opened.
    pub(crate) fn program(&self) -> io::Result<OwnedFd> {
        syscall::program_by_id(self.info.program)
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn is_on(info: &LinkInfo, hook: bpf_attach_type, id: u64) -> bool {
    info.target == LinkTarget::Cgroup { id, attach_type: hook as u32 }
}

/// The id of an open cgroup directory: its inode number on 64-bit kernels.
pub(crate) fn cgroup_id(cgroup: &File) -> io::Result<u64> {
    cgroup.metadata().map(|metadata| metadata.ino())
}
