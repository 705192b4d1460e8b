//! Finds the processes that hold sockets. A socket that no process has open belongs to the kernel
//! (NFS, a tunnel) or is about to close, and looks the same otherwise.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::{OwnedFd, RawFd};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Duplicates those of `sockets`, by inode, that one of `processes` has open. Stops as soon as all
/// are found. A duplicate keeps the socket open, even if its process closes it.
///
/// # Errors
/// This process may not duplicate another's descriptors: that needs CAP_SYS_PTRACE.
pub(super) fn held(
    processes: impl IntoIterator<Item = u32>,
    mut sockets: HashSet<u32>,
) -> io::Result<HashMap<u32, OwnedFd>> {
    let mut held = HashMap::new();
    for process in processes {
        if sockets.is_empty() {
            break;
        }
        // A process that has just ended has no descriptors.
        for entry in fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten() {
            let Some(inode) = fs::read_link(entry.path()).ok().as_deref().and_then(|target| {
                socket(target.to_str()?).filter(|inode| sockets.contains(inode))
            }) else {
                continue;
            };
            let number = entry.file_name().to_str().and_then(|number| number.parse().ok());
            let Some(number) = number else { continue };
            match duplicate(process, number) {
                Ok(descriptor) => {
                    sockets.remove(&inode);
                    held.insert(inode, descriptor);
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
                // The process closed it meanwhile.
                Err(_) => {}
            }
        }
    }
    Ok(held)
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
    fn only_sockets_are_sockets() {
        assert_eq!(socket("socket:[4026]"), Some(4026));
        assert_eq!(socket("pipe:[4026]"), None);
        assert_eq!(socket("socket:[x]"), None);
    }
}
