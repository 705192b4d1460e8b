//! The work of an init system: file systems, modules, loopback, power off.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fs_err::{self as fs, File};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::system::{RebootCommand, finit_module, reboot};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use socket2::{Domain, Protocol, Socket, Type};

/// Mounts file systems: type, place, and options.
pub(crate) fn mount_all(mounts: &[[String; 3]]) -> Result<()> {
    for [kind, place, options] in mounts {
        fs::create_dir_all(place)?;
        let options = CString::new(options.as_str())?;
        match mount(kind, place, kind, MountFlags::empty(), &*options) {
            // The kernel may have mounted /dev itself.
            Ok(()) | Err(Errno::BUSY) => {}
            Err(error) => return Err(error).with_context(|| format!("cannot mount {place}")),
        }
    }
    Ok(())
}

/// Makes a cgroup the root of this process and its children, and of what they see at `/sys/fs/cgroup`.
pub(crate) fn enter_cgroup_namespace(cgroup: &Path) -> Result<()> {
    const CGROUPS: &str = "/sys/fs/cgroup";
    fs::create_dir_all(cgroup)?;
    fs::write(cgroup.join("cgroup.procs"), "0")?;
    // SAFETY: this process has one thread, and shares its cgroup namespace with no code that relies on it.
    unsafe { unshare_unsafe(UnshareFlags::NEWCGROUP) }
        .context("cannot leave a cgroup namespace")?;
    unmount(CGROUPS, UnmountFlags::empty()).context("cannot unmount the cgroups")?;
    mount("cgroup2", CGROUPS, "cgroup2", MountFlags::empty(), None).context("cannot mount them")
}

/// Writes files, and makes their folders.
pub(crate) fn write_all(files: &[(PathBuf, String)]) -> Result<()> {
    for (path, content) in files {
        fs::create_dir_all(path.parent().unwrap_or(path))?;
        fs::write(path, content)?;
    }
    Ok(())
}

/// Loads modules in the given order.
pub(crate) fn load_modules(modules: &[PathBuf]) -> Result<()> {
    for path in modules {
        let file = File::open(path)?;
        match finit_module(&file, c"", 0) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot load {}", path.display()));
            }
        }
    }
    Ok(())
}

/// Brings `lo` up: agents listen there.
pub(crate) fn bring_up_loopback() -> Result<()> {
    let status = Command::new("ip").args(["link", "set", "lo", "up"]).status();
    ensure!(status.context("cannot run `ip`")?.success(), "`ip link set lo up` failed");
    Ok(())
}

/// Whether the kernel supports MPTCP; Debian's 5.10 does not.
pub(crate) fn has_mptcp() -> bool {
    Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)).is_ok()
}

/// `uname -r`.
pub(crate) fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

pub(crate) fn switch_off() -> ExitCode {
    // Waits until the last output has passed the serial port.
    thread::sleep(Duration::from_millis(200));
    if let Err(error) = reboot(RebootCommand::PowerOff) {
        eprintln!("cannot switch off: {error}");
    }
    // The first process exits: the kernel panics, which also ends the machine.
    ExitCode::FAILURE
}
