//! The work of an init system: file systems, modules, loopback, power off.

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fs_err::{self as fs, File};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, finit_module, reboot};
use socket2::{Domain, Protocol, Socket, Type};

/// File system types and mount points; a file system comes before those mounted inside it.
const MOUNTS: [(&str, &str); 7] = [
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("tmpfs", "/tmp"),
    ("tmpfs", "/run"),
    ("bpf", "/sys/fs/bpf"),
    ("cgroup2", "/sys/fs/cgroup"),
];

/// Mounts the file systems that suites need.
pub(crate) fn mount_everything() -> Result<()> {
    for (kind, place) in MOUNTS {
        fs::create_dir_all(place)?;
        match mount(kind, place, kind, MountFlags::empty(), None) {
            // The kernel may have mounted /dev itself.
            Ok(()) | Err(Errno::BUSY) => {}
            Err(error) => return Err(error).with_context(|| format!("cannot mount {place}")),
        }
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
