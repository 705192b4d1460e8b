//! A pinned link: what keeps a program attached while no agent runs.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::datapath::host::syscall::{self, CgroupLinkInfo, LINK_TYPE_CGROUP};
use crate::datapath::inspect::attached::OnCgroup;
use crate::datapath::programs::object::Hook;

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
    info: CgroupLinkInfo,
}

impl Link {
    /// Opens what is pinned at `path`; `None` where nothing is.
    pub(crate) fn open(path: &Path) -> io::Result<Option<Self>> {
        let fd = match syscall::open_pin(path) {
            Ok(fd) => fd,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let info = syscall::link_info(fd.as_fd())?;
        Ok(Some(Self { fd, info }))
    }

    /// Whether it attaches to `hook` of the cgroup with this id. A link whose cgroup is gone is
    /// on none.
    pub(crate) fn is_on(&self, hook: Hook, cgroup_id: u64) -> bool {
        self.info.link_type == LINK_TYPE_CGROUP
            && self.info.attach_type == hook.attach_type()
            && self.info.cgroup_id == cgroup_id
    }

    /// Where it is attached, of a hook; `None` where its cgroup is gone.
    pub(crate) fn place(&self, hook: Hook) -> Option<OnCgroup> {
        let CgroupLinkInfo { program_id: program, cgroup_id: cgroup, .. } = self.info;
        (cgroup != 0 && self.is_on(hook, cgroup)).then_some(OnCgroup { program, cgroup })
    }

    /// Whether it is so now.
    pub(crate) fn is_still_on(&self, hook: Hook, cgroup_id: u64) -> io::Result<bool> {
        let info = syscall::link_info(self.fd.as_fd())?;
        Ok(info.attach_type == hook.attach_type() && info.cgroup_id == cgroup_id)
    }

    /// Puts `program` behind the link.
    pub(crate) fn update(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        syscall::update_link(self.fd.as_fd(), program)
    }

    /// The kernel's id of the program behind it when it was opened.
    pub(crate) fn program_id(&self) -> u32 {
        self.info.program_id
    }

    /// The program that was behind it when it was opened.
    pub(crate) fn program(&self) -> io::Result<OwnedFd> {
        syscall::program_by_id(self.info.program_id)
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The id of an open cgroup directory: its inode number, on kernels of 64 bits.
pub(crate) fn cgroup_id(cgroup: &File) -> io::Result<u64> {
    cgroup.metadata().map(|metadata| metadata.ino())
}
