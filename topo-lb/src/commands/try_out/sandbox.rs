//! Where `try` lives: a network namespace with addresses for Pods, and a mount namespace with a bpffs and
//! a folder of its own. The kernel removes both with the last process in them, however it ends. Only
//! cgroups are the machine's own; those of a command that was killed go with the next one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use netlink_packet_core::NLM_F_ACK;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::aside::say;
use topo_lb_kernel::datapath::host::mount::cgroup2_root;
use topo_lb_kernel::netlink::{Netlink, request};

/// The start of the names of its cgroups; the process id follows.
const NAME: &str = "topo-lb-try-";
/// Folders to mount on, in a namespace where nobody else sees it: one of them is on any system.
const PLACES: [&str; 3] = ["/tmp", "/run", "/mnt"];
/// How long an empty cgroup may take to go.
const PATIENCE: Duration = Duration::from_secs(5);

/// The namespaces of this process, and its cgroup.
#[derive(Debug)]
pub(super) struct Sandbox {
    folder: PathBuf,
    cgroup: PathBuf,
    /// `cgroup.procs` of the cgroup in which the process was.
    home: PathBuf,
}

impl Sandbox {
    /// Moves this process, which has one thread, into namespaces of its own.
    ///
    /// # Errors
    /// It is not root, or the kernel refuses; one sentence about what is missing.
    pub(super) fn enter() -> anyhow::Result<Self> {
        ensure!(
            rustix::process::geteuid().is_root(),
            "`try` makes namespaces and cgroups and loads eBPF programs: run it as root, for example with sudo"
        );
        // SAFETY: neither flag touches open files or memory, and no other thread has begun.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::NEWNET) }.context(
            "cannot make namespaces: it takes CAP_SYS_ADMIN, which most containers do not have",
        )?;
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private).context("cannot keep mounts to this process")?;
        let place = PLACES.iter().map(Path::new).find(|place| place.is_dir());
        let place = place.context("there is neither /tmp nor /run nor /mnt to mount on")?;
        make_mount("tmpfs", place)?;
        let bpffs = place.join("bpf");
        fs::create_dir(&bpffs)?;
        make_mount("bpf", &bpffs)?;
        let root = match cgroup2_root() {
            Some(root) => root,
            None => {
                let root = place.join("cgroup");
                fs::create_dir(&root)?;
                make_mount("cgroup2", &root)?;
                root
            }
        };
        set_up_addresses().context("cannot give the namespace addresses")?;
        sweep(&root);
        let said = fs::read_to_string("/proc/self/cgroup")?;
        let here = said.lines().find_map(|line| line.strip_prefix("0::/"));
        let home = here.context("this process is in no cgroup of version 2")?;
        let home = root.join(home).join("cgroup.procs");
        let cgroup = root.join(format!("{NAME}{}", process::id()));
        make_cgroup(&cgroup)?;
        Ok(Self { folder: place.to_owned(), cgroup, home })
    }

    /// The folder that only this process sees.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The directory for the pins of a node.
    pub(super) fn pins(&self, node: &str) -> PathBuf {
        self.folder.join("bpf").join(node)
    }

    /// Makes a cgroup for a node.
    pub(super) fn make_cgroup(&self, node: &str) -> anyhow::Result<PathBuf> {
        let path = self.cgroup.join(node);
        make_cgroup(&path)?;
        Ok(path)
    }

    /// Moves this process into a cgroup until the result is dropped.
    pub(super) fn move_into(&self, cgroup: &Path) -> anyhow::Result<impl Drop + use<>> {
        let inside = Inside(self.home.clone());
        let door = cgroup.join("cgroup.procs");
        fs::write(&door, "0").with_context(|| format!("cannot join {}", door.display()))?;
        Ok(inside)
    }

    /// Removes the cgroups; the rest goes with the process.
    ///
    /// # Errors
    /// The kernel does not let one go.
    pub(super) fn leave(self) -> anyhow::Result<()> {
        let begun = Instant::now();
        // The last process in it may still be ending.
        loop {
            match remove(&self.cgroup) {
                Ok(()) => return Ok(()),
                Err(error) if begun.elapsed() > PATIENCE => {
                    bail!("cannot remove {}: {error}", self.cgroup.display())
                }
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

/// This process in the cgroup of a node. Dropping it brings the process home.
struct Inside(PathBuf);

impl Drop for Inside {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.0, "0") {
            say(format_args!("cannot return to {}: {error}", self.0.display()));
        }
    }
}

fn make_mount(kind: &str, place: &Path) -> anyhow::Result<()> {
    mount(kind, place, kind, MountFlags::empty(), None).with_context(|| {
        format!(
            "cannot mount {kind} on {}: the kernel lacks it, or forbids it here",
            place.display()
        )
    })
}

fn make_cgroup(path: &Path) -> anyhow::Result<()> {
    fs::create_dir(path).with_context(|| {
        format!(
            "cannot make the cgroup {}: cgroup2 is mounted read-only, or not for this user",
            path.display()
        )
    })
}

/// Removes a cgroup and those below, which are all empty.
fn remove(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path())?;
        }
    }
    fs::remove_dir(path)
}

/// Removes the cgroups of commands that were killed.
fn sweep(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(NAME));
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            // Another command may do the same.
            let _ = remove(&entry.path());
        }
    }
}

/// Sets the loopback device up, with a network whose every address is local: `ip link set lo up; ip
/// address add 10.244.0.1/16 dev lo`. On this device, all addresses of a network are local.
fn set_up_addresses() -> io::Result<()> {
    // include/uapi/linux/rtnetlink.h and if_addr.h. The first device of each namespace is `lo`.
    const RTM_NEWLINK: u16 = 16;
    const RTM_NEWADDR: u16 = 20;
    const NLM_F_CREATE: u16 = 0x400;
    const LO: u32 = 1;
    const IFF_UP: u32 = 1;
    const IFA_LOCAL: u16 = 2;
    // struct ifinfomsg: family and kind, device, flags, mask of flags.
    let up: Vec<u8> = [0, LO, IFF_UP, IFF_UP].iter().flat_map(|it| it.to_ne_bytes()).collect();
    // struct ifaddrmsg: family, prefix length, flags, scope, device; then the address as an attribute.
    let mut address = vec![2, 16, 0, 0];
    address.extend(LO.to_ne_bytes());
    address.extend([8, IFA_LOCAL].iter().flat_map(|it| it.to_ne_bytes()));
    address.extend([10, 244, 0, 1]);
    let socket = Netlink::open(None)?;
    socket.ask(&request(RTM_NEWLINK, NLM_F_ACK, &up), |_, _| {})?;
    socket.ask(&request(RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE, &address), |_, _| {})
}
