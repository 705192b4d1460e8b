//! QEMU: the one that is installed, or Debian's, unpacked among the user's caches. It is not
//! installed from here, since that can take other packages away: machines with a `qemu-utils` of
//! Debian's backports refuse to have the two together.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::cache;
use crate::debian::{self, Archive};
use crate::progress;
use crate::workspace::{Workspace, find_program};

const PROGRAM: &str = "qemu-system-x86_64";
const PACKAGE: &str = "qemu-system-x86";
/// Among the user's caches.
const FOLDER: &str = "qemu";
/// What of the unpacked packages holds libraries.
const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];

/// A QEMU that can be started.
#[derive(Debug)]
pub(super) struct Emulator {
    program: PathBuf,
    /// Where its libraries are that are not installed.
    libraries: Option<OsString>,
}

impl Emulator {
    /// It, without arguments.
    pub(super) fn command(&self, workspace: &Workspace) -> Command {
        let mut command = workspace.command(&self.program);
        if let Some(libraries) = &self.libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        command
    }
}

/// Whether one is here, or can be had: Debian 12's needs that system's other libraries.
pub(super) fn is_obtainable() -> bool {
    find_program(PROGRAM).is_some()
        || cache::has(FOLDER)
        || (debian::is_12() && debian::is_obtainable())
}

/// The one that is installed; or else the other, downloaded where that was never done.
///
/// # Errors
/// The archive cannot be reached.
pub(super) fn ready(workspace: &Workspace) -> Result<Emulator> {
    if let Some(program) = find_program(PROGRAM) {
        return Ok(Emulator { program, libraries: None });
    }
    let folder = cache::folder(FOLDER)?;
    cache::make_once(&folder, |room| {
        progress::note(&format!("QEMU is unpacked, not installed, once: {}", folder.display()));
        let sources = [
            debian::source("deb", "debian", "bookworm"),
            debian::source("deb", "debian-security", "bookworm-security"),
        ];
        let archive = Archive::open(workspace, room, "qemu", &sources)?;
        let packages = archive.download_with_dependencies("QEMU from Debian", PACKAGE)?;
        let root = room.join("root");
        archive.unpack("unpacking QEMU", &packages, &root)?;
        Ok(root)
    })?;
    let libraries = std::env::join_paths(LIBRARIES.map(|place| folder.join(place)))?;
    Ok(Emulator { program: folder.join("usr/bin").join(PROGRAM), libraries: Some(libraries) })
}
