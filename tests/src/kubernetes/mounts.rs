//! The mounts of a node: it sees the machine's files, with its own `/run`, `/var/lib`, `/var/log`,
//! bpffs and, as the root of cgroup2, its own cgroup.

use std::io;
use std::path::Path;
use std::thread;

use anyhow::{Context as _, Result};
use fs_err::{self as fs, File};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::cgroup;
use crate::requirements::BPFFS;

/// The kernel parameters that a kubelet sets, and its values (`setupKernelTunables`). They are the
/// whole machine's, so the node shows the kubelet these values, and it leaves the real ones alone.
const TUNABLES: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Makes the mount namespace of a node with files below `folder`. It lasts as long as the returned
/// file is open, or a process is inside.
pub(crate) fn make(folder: &Path, own_cgroup: &Path) -> Result<File> {
    for place in ["var/lib", "var/log", "parameters"] {
        fs::create_dir_all(folder.join(place))?;
    }
    let root = cgroup::root()?;
    thread::scope(|scope| {
        let thread = scope.spawn(|| inside(folder, own_cgroup, &root));
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs on a thread of its own, which leaves the machine's mounts.
fn inside(folder: &Path, own_cgroup: &Path, cgroup_root: &Path) -> Result<File> {
    // SAFETY: only this thread leaves the namespace, and shares no file descriptor table anew.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }
        .context("cannot make a mount namespace: the cluster needs CAP_SYS_ADMIN")?;
    let all = MountPropagationFlags::REC;
    // First, so that nothing below reaches the machine; then pods' mounts reach the node.
    mount_change("/", MountPropagationFlags::PRIVATE | all).context("cannot make / private")?;
    mount_change("/", MountPropagationFlags::SHARED | all).context("cannot make / shared")?;
    bind(own_cgroup, cgroup_root)?;
    fresh("bpf", Path::new(BPFFS))?;
    fresh("tmpfs", Path::new("/run"))?;
    for place in ["var/lib", "var/log"] {
        bind(&folder.join(place), &Path::new("/").join(place))?;
    }
    for (name, value) in TUNABLES {
        let copy = folder.join("parameters").join(name.replace('/', "."));
        fs::write(&copy, value)?;
        let parameter = Path::new("/proc/sys").join(name);
        if parameter.exists() {
            bind(&copy, &parameter)?;
        }
    }
    Ok(File::open("/proc/thread-self/ns/mnt")?)
}

fn bind(from: &Path, to: &Path) -> Result<()> {
    explained(mount_bind(from, to), to)
}

fn fresh(kind: &str, at: &Path) -> Result<()> {
    explained(mount(kind, at, kind, MountFlags::empty(), None), at)
}

fn explained(result: rustix::io::Result<()>, at: &Path) -> Result<()> {
    result
        .map_err(io::Error::from)
        .with_context(|| format!("cannot mount a node's {}", at.display()))
}
