//! The network namespaces of a cgroup's processes, and going into them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace by its inode on nsfs.
pub(super) type Inode = u64;

/// What is found in a cgroup.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Processes by their network namespace.
    pub(super) namespaces: BTreeMap<Inode, Vec<u32>>,
    /// Processes that cannot be seen from here: of another pid namespace, or without permission.
    pub(super) hidden: usize,
}

impl Found {
    /// Looks through a cgroup and all below. Processes that come and go meanwhile may be missed.
    pub(super) fn in_cgroup(root: &Path) -> Self {
        let mut found = Self::default();
        let mut folders = vec![root.to_owned()];
        while let Some(folder) = folders.pop() {
            let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
            let is_folder = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|it| it.is_dir());
            folders.extend(entries.filter(is_folder).map(|entry| entry.path()));
            // A threaded cgroup does not say; its processes are said by the one above.
            let processes = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            for process in processes.lines().filter_map(|line| line.parse().ok()) {
                found.take_in(process);
            }
        }
        found
    }

    fn take_in(&mut self, process: u32) {
        // Zero: a process that has no number in the pid namespace of the reader.
        let inode =
            if process == 0 { Err(io::ErrorKind::PermissionDenied.into()) } else { of(process) };
        match inode {
            Ok(inode) => self.namespaces.entry(inode).or_default().push(process),
            // It has ended; the kernel says that in several ways.
            Err(_) if process != 0 && !fs::exists(format!("/proc/{process}")).unwrap_or(true) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => self.hidden += 1,
        }
    }
}

/// The network namespace of a process.
fn of(process: u32) -> io::Result<Inode> {
    Ok(fs::metadata(path(process))?.ino())
}

fn path(process: u32) -> PathBuf {
    format!("/proc/{process}/ns/net").into()
}

/// A thread that goes into network namespaces, and the one that it is at home in.
#[derive(Debug)]
pub(super) struct NetnsSwitcher {
    home: File,
    home_inode: Inode,
}

impl NetnsSwitcher {
    /// At home where this thread is.
    ///
    /// # Errors
    /// `/proc` does not say where that is.
    pub(super) fn new() -> io::Result<Self> {
        let home = File::open("/proc/thread-self/ns/net")?;
        let home_inode = home.metadata()?.ino();
        Ok(Self { home, home_inode })
    }

    /// Does `work` in a namespace that one of `processes` is in, and comes home. What is opened there
    /// stays there. Home takes no privileges; going elsewhere takes CAP_SYS_ADMIN.
    ///
    /// # Errors
    /// `NotFound` where all of the processes have ended; that it may not be entered; or `work`'s.
    pub(super) fn within<T>(
        &self,
        inode: Inode,
        processes: &[u32],
        work: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        if inode == self.home_inode {
            return work();
        }
        // A number may have become another process's meanwhile.
        let is_it = |file: &File| file.metadata().is_ok_and(|it| it.ino() == inode);
        let mut files = processes.iter().filter_map(|process| File::open(path(*process)).ok());
        let namespace = files.find(is_it).ok_or(io::ErrorKind::NotFound)?;
        enter(&namespace)?;
        let outcome = work();
        enter(&self.home)?;
        outcome
    }
}

fn enter(namespace: &File) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}
