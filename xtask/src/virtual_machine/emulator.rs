//! QEMU: the installed one, or Debian's, unpacked in the user's cache. xtask does not install it,
//! as that can remove other packages: it conflicts with `qemu-utils` of Debian's backports.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::architecture::Architecture;
use crate::cache;
use crate::debian::{self, Archive};
use crate::progress;
use crate::workspace::{Workspace, find_program};

/// The library folders of the unpacked packages.
const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];

/// A QEMU that can run.
#[derive(Debug)]
pub(super) struct Emulator {
    program: PathBuf,
    /// Its library folders, if its libraries are not installed.
    libraries: Option<OsString>,
}

impl Emulator {
    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    pub(super) fn command(&self, workspace: &Workspace) -> Command {
        let mut command = workspace.command(&self.program);
        if let Some(libraries) = &self.libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        command
    }
}

/// The name in the user's cache.
fn folder(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::X86_64 => "qemu",
        Architecture::Arm64 => "qemu-arm64",
    }
}

/// Whether QEMU is present, or can be downloaded. The download needs libraries of Debian 12.
pub(super) fn is_obtainable(architecture: Architecture) -> bool {
    find_program(architecture.emulator().0).is_some()
        || cache::has(folder(architecture))
        || (debian::is_12() && debian::is_obtainable())
}

/// The installed QEMU, or else the cached one. Downloads it if necessary.
pub(super) fn ready(workspace: &Workspace, architecture: Architecture) -> Result<Emulator> {
    let (program, package) = architecture.emulator();
    if let Some(program) = find_program(program) {
        return Ok(Emulator { program, libraries: None });
    }
    let folder = cache::folder(folder(architecture))?;
    cache::make_once(&folder, |room| {
        progress::note(&format!("QEMU is unpacked, not installed, once: {}", folder.display()));
        let archive = Archive::open(workspace, room, "qemu", &debian::sources("bookworm"))?;
        let packages = archive.download_with_dependencies("QEMU from Debian", &[package])?;
        let root = room.join("root");
        archive.unpack("unpacking QEMU", &packages, &root)?;
        Ok(root)
    })?;
    let libraries = std::env::join_paths(LIBRARIES.map(|place| folder.join(place)))?;
    Ok(Emulator { program: folder.join("usr/bin").join(program), libraries: Some(libraries) })
}
