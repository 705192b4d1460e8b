//! Finds the processes that hold sockets. A socket that no process has open belongs to the kernel
//! (NFS, a tunnel) or is about to close, and looks the same otherwise.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::{OwnedFd, RawFd};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Where a process has a socket open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    process: u32,
    descriptor: RawFd,
}

impl Place {
    /// Duplicates what is open there now. A duplicate keeps the socket open, even if its process closes it.
    pub(super) fn duplicate(self) -> io::Result<OwnedFd> {
        duplicate(self.process, self.descriptor)
    }
}

/// Duplicates those of `sockets`, by inode, that one of `processes` has open. Stops as soon as all
/// are found. A duplicate keeps the socket open, even if its process closes it.
///
/// # Errors
/// This process may not duplicate another's descriptors: that needs CAP_SYS_PTRACE.
pub(super) fn held(
    processes: impl IntoIterator<Item = u32>,
    sockets: HashSet<u32>,
) -> io::Result<HashMap<u32, OwnedFd>> {
    let mut held = HashMap::new();
    each_held(processes, sockets, |inode, _, descriptor| drop(held.insert(inode, descriptor)))?;
    Ok(held)
}

/// Calls `each` with the inode, the place and a duplicate of those of `sockets` that one of `processes` has open.
/// Stops as soon as all are found.
///
/// # Errors
/// As of [`held`].
pub(super) fn each_held(
    processes: impl IntoIterator<Item = u32>,
    mut sockets: HashSet<u32>,
    mut each: impl FnMut(u32, Place, OwnedFd),
) -> io::Result<()> {
    for process in processes {
        if sockets.is_empty() {
            break;
        }
        // A process that has just ended has no descriptors.
        for (number, inode) in sockets_of(process).into_iter().flatten() {
            if !sockets.contains(&inode) {
                continue;
            }
            match duplicate(process, number) {
                Ok(descriptor) => {
                    sockets.remove(&inode);
                    each(inode, Place { process, descriptor: number }, descriptor);
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
                // The process closed it meanwhile.
                Err(_) => {}
            }
        }
    }
    Ok(())
}

/// Calls `each` with a duplicate of every socket that a process has open. Returns how many processes
/// do not show their sockets: that needs CAP_SYS_PTRACE. Those of other pid namespaces are not seen
/// and not counted.
///
/// # Errors
/// The first of `each`.
pub fn every<E>(mut each: impl FnMut(&OwnedFd) -> Result<(), E>) -> Result<usize, E> {
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(number);
    let (mut seen, mut hidden) = (HashSet::new(), 0);
    for process in processes {
        let sockets = match sockets_of(process) {
            Ok(sockets) => sockets,
            Err(error) => {
                hidden += usize::from(error.kind() == io::ErrorKind::PermissionDenied);
                continue;
            }
        };
        for (number, _) in sockets.filter(|(_, inode)| seen.insert(*inode)) {
            match duplicate(process, number) {
                Ok(socket) => each(&socket)?,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    hidden += 1;
                    break;
                }
                // The process closed it meanwhile.
                Err(_) => {}
            }
        }
    }
    Ok(hidden)
}

/// The sockets that a process has open: descriptor and inode.
fn sockets_of(process: u32) -> io::Result<impl Iterator<Item = (RawFd, u32)>> {
    let entries = fs::read_dir(format!("/proc/{process}/fd"))?.flatten();
    Ok(entries.filter_map(|entry| {
        let target = fs::read_link(entry.path()).ok()?;
        Some((entry.file_name().to_str()?.parse().ok()?, socket(target.to_str()?)?))
    }))
}

/// `pidfd_getfd` needs Linux 5.6.
fn duplicate(process: u32, descriptor: RawFd) -> io::Result<OwnedFd> {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
    let process = pidfd_open(pid.ok_or(io::ErrorKind::NotFound)?, PidfdFlags::empty())?;
    Ok(pidfd_getfd(process, descriptor, PidfdGetfdFlags::empty())?)
}

/// The inode of `socket:[inode]`.
fn socket(target: &str) -> Option<u32> {
    target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd as _;

    use rustix::net::sockopt::socket_cookie;

    use super::*;

    #[test]
    fn a_socket_is_held_until_it_is_closed() {
        let open = UdpSocket::bind("127.0.0.1:0").unwrap();
        let target = fs::read_link(format!("/proc/self/fd/{}", open.as_raw_fd())).unwrap();
        let inode = socket(target.to_str().unwrap()).unwrap();
        let wanted = HashSet::from([inode, 0]);
        let me = std::process::id();
        let found = held([me], wanted.clone()).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), [&inode]);
        let twin = UdpSocket::from(found.into_values().next().unwrap());
        assert_eq!(twin.local_addr().unwrap(), open.local_addr().unwrap());
        drop((open, twin));
        assert!(held([me], wanted).unwrap().is_empty());
    }

    #[test]
    fn a_socket_that_is_open_twice_is_shown_once() {
        let open = UdpSocket::bind("127.0.0.1:0").unwrap();
        let _twin = open.try_clone().unwrap();
        let cookie = socket_cookie(&open).unwrap();
        let mut seen = 0;
        every(|socket| {
            seen += u32::from(socket_cookie(socket) == Ok(cookie));
            Ok::<_, io::Error>(())
        })
        .unwrap();
        assert_eq!(seen, 1);
    }

    #[test]
    fn only_sockets_are_sockets() {
        assert_eq!(socket("socket:[4026]"), Some(4026));
        assert_eq!(socket("pipe:[4026]"), None);
        assert_eq!(socket("socket:[x]"), None);
    }
}
