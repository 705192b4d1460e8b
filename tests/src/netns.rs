//! Named network namespaces: `ip netns exec` can enter a running lab.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use fs_err::{self as fs, File};
use rustix::mount::{UnmountFlags, unmount};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::permit::permit;
use crate::process::{fed, printed};
use crate::requirements::{self, has_ipv6};

/// The folder of named network namespaces, as iproute2 has it.
pub const FOLDER: &str = "/run/netns";

/// A named network namespace made by this process. Dropping it removes the name; the kernel removes
/// the namespace and its devices with the last process inside.
#[derive(Debug)]
pub struct NetNs {
    path: PathBuf,
    file: File,
}

impl NetNs {
    /// Makes namespaces with one process. Uses no user namespace: root inside one cannot load BPF.
    pub fn make(names: &[String]) -> Result<Vec<Self>> {
        let _permit = permit();
        let lines = names.iter().map(|name| format!("netns add {name}")).collect::<Vec<_>>();
        batch(&lines).context("cannot make network namespaces")?;
        names
            .iter()
            .map(|name| {
                let path = Path::new(FOLDER).join(name);
                let file = File::open(&path)?;
                Ok(Self { path, file })
            })
            .collect()
    }

    /// The open namespace, for `setns`.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The file of its name.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs lines of `ip` inside, with one process. Leaves out those of IPv6 where the kernel has none.
    ///
    /// # Errors
    /// `ip` refuses a line; the error quotes it.
    pub fn ip(&self, lines: &[String]) -> Result<()> {
        // Every IPv6 address of a lab has two colons together, and no Ethernet address has.
        let known = lines.iter().filter(|line| has_ipv6() || !line.contains("::"));
        let known: Vec<_> = known.cloned().collect();
        self.run(|| batch(&known))
            .with_context(|| format!("cannot configure network namespace {}", self.path.display()))
    }

    /// Runs `tc` inside, and returns its output.
    pub fn tc(&self, arguments: &[&str]) -> Result<String> {
        self.run(|| printed(Command::new("tc").args(arguments)))
    }

    /// Gives lines to `nft` inside.
    pub fn nft(&self, rules: &str) -> Result<()> {
        requirements::command("nft", "nftables")?;
        self.run(|| printed(Command::new("nft").arg(rules)).map(drop))
    }

    /// Runs `work` on a thread inside. Use it for what a process makes in the kernel. A thread
    /// cannot join a cgroup alone, so its connections are outside every node's cgroup.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))
                    .with_context(|| format!("cannot enter {}", self.path.display()))?;
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Writes kernel parameters below `/proc/sys/net` in the namespace. Leaves out those of IPv6 where the kernel has
    /// none.
    ///
    /// # Errors
    /// The kernel has no such parameter, or refuses the value.
    pub fn set(&self, parameters: &[(&str, &str)]) -> Result<()> {
        self.run(|| {
            let known = |name: &str| has_ipv6() || !name.starts_with("ipv6/");
            for (name, value) in parameters.iter().filter(|(name, _)| known(name)) {
                let path = Path::new("/proc/sys/net").join(name);
                fs::write(&path, value)?;
            }
            Ok(())
        })
    }
}

impl Drop for NetNs {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            eprintln!("{error:#}");
        }
    }
}

/// Removes the name of a namespace; accepts that it is gone.
pub fn remove(path: &Path) -> Result<()> {
    // EINVAL: no longer mounted, or not yet.
    let _ = unmount(path, UnmountFlags::DETACH);
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Sends a command to a device of this thread's network namespace, as `ethtool` does. `order` is a
/// structure of include/uapi/linux/ethtool.h, which the kernel reads and fills in.
pub fn ethtool<T: bytemuck::Pod>(device: &str, order: &mut T) -> Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).context("cannot make a socket")?;
    // SAFETY: `ifreq` is plain data; all zero is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = std::ptr::from_mut(order).cast();
    // SAFETY: the name is terminated, request and order live until the call returns, and the
    // caller's structure is as long as what its command makes the kernel write.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    ensure!(result == 0, "{device}: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Feeds `lines` to `ip -batch`.
pub(crate) fn batch(lines: &[String]) -> Result<()> {
    let text = lines.join("\n") + "\n";
    let output = fed(Command::new("ip").args(["-batch", "-"]), &text).context("from iproute2")?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    // "Command failed -:3" names the line.
    let line = said
        .rsplit_once("-:")
        .and_then(|(_, number)| number.trim().parse::<usize>().ok())
        .and_then(|number| lines.get(number.saturating_sub(1)));
    match line {
        Some(line) => bail!("`ip {line}`: {}", said.lines().next().unwrap_or("failed")),
        None => bail!("`ip -batch`: {}", said.trim()),
    }
}
