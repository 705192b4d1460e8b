//! Finds and enters the network namespaces of a cgroup's processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirEntryExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace, by its inode on nsfs.
pub(super) type Inode = u64;

#[derive(Debug, Default)]
pub(super) struct Found {
    /// Processes by their network namespace.
    pub(super) namespaces: BTreeMap<Inode, Vec<u32>>,
    /// Processes that cannot be inspected for want of a permission.
    pub(super) hidden: usize,
    /// Processes of other pid namespaces.
    pub(super) elsewhere: usize,
}

/// The inode of the first pid namespace, which has every process (`PROC_PID_INIT_INO`,
/// include/linux/proc_ns.h).
const HOST_PIDS: u64 = 0xefff_fffc;

impl Found {
    /// Searches a cgroup and all cgroups below. May miss processes that start or end meanwhile.
    pub(super) fn in_cgroup(root: &Path) -> Self {
        Self::outside_of(root, &BTreeSet::new())
    }

    /// The same without these cgroups, by their ids, and all below.
    pub(super) fn outside_of(root: &Path, cgroups: &BTreeSet<u64>) -> Self {
        let pids = fs::metadata("/proc/self/ns/pid").map(|it| it.ino());
        let sees_all = pids.is_ok_and(|inode| inode == HOST_PIDS);
        let mut found = Self::default();
        let mut folders = vec![root.to_owned()];
        while let Some(folder) = folders.pop() {
            let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
            let is_folder = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|it| it.is_dir());
            // The id of a cgroup is the inode number of its folder.
            let others = entries.filter(is_folder).filter(|it| !cgroups.contains(&it.ino()));
            folders.extend(others.map(|entry| entry.path()));
            // A threaded cgroup lists no processes; the cgroup above does.
            let processes = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            for process in processes.lines().filter_map(|line| line.parse().ok()) {
                found.take_in(process);
            }
        }
        if sees_all {
            // They have just ended.
            found.elsewhere = 0;
        }
        found
    }

    /// Processes whose sockets cannot be found.
    pub(super) fn unseen(&self) -> usize {
        self.hidden + self.elsewhere
    }

    fn take_in(&mut self, process: u32) {
        // Zero: the process has no number in the reader's pid namespace, or has just ended.
        if process == 0 {
            self.elsewhere += 1;
            return;
        }
        match of(process) {
            Ok(inode) => self.namespaces.entry(inode).or_default().push(process),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => self.hidden += 1,
            // The process has ended; the kernel reports that with several errors.
            Err(_) => {}
        }
    }
}

fn of(process: u32) -> io::Result<Inode> {
    Ok(fs::metadata(path(process))?.ino())
}

fn path(process: u32) -> PathBuf {
    format!("/proc/{process}/ns/net").into()
}

/// Enters network namespaces and returns to that of its thread.
#[derive(Debug)]
pub(super) struct NetnsSwitcher {
    home: File,
    home_inode: Inode,
}

impl NetnsSwitcher {
    /// The home namespace is the one of this thread.
    ///
    /// # Errors
    /// `/proc` does not show it.
    pub(super) fn new() -> io::Result<Self> {
        let home = File::open("/proc/thread-self/ns/net")?;
        let home_inode = home.metadata()?.ino();
        Ok(Self { home, home_inode })
    }

    /// Runs `work` in a namespace of one of `processes`, and returns home. What is opened there
    /// stays there. The home namespace needs no privileges; others need CAP_SYS_ADMIN.
    ///
    /// # Errors
    /// `NotFound` if all of the processes have ended; the namespace cannot be entered; or `work`'s
    /// error.
    pub(super) fn within<T>(
        &self,
        inode: Inode,
        processes: &[u32],
        work: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        if inode == self.home_inode {
            return work();
        }
        // The pid may belong to another process now.
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
