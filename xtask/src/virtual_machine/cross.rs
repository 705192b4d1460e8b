//! Programs for another architecture than this machine's: compiled here as static programs, or taken
//! from Debian's packages.

use fs_err as fs;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::debian_kernel::Line;
use crate::architecture::Architecture;
use crate::cache;
use crate::debian::{self, Archive};
use crate::process::run_logged;
use crate::static_program;
use crate::suites;
use crate::toolchain::Toolchain;
use crate::workspace::{Profile, Workspace};

/// The line of kernels that these programs run on.
const LINE: Line = Line::Arm64;

/// The programs that the machine needs besides the suites and the agent.
const BINARIES: [&str; 2] = ["guest", "pod"];

/// Compiles the suites and [`BINARIES`]. Returns the path of the suites by their name.
pub(super) fn build(
    workspace: &Workspace,
    compiler: &Toolchain,
) -> Result<BTreeMap<String, PathBuf>> {
    let build = suites::cargo_for(workspace, "build", [suites::DATAPATH]);
    let arguments: Vec<&str> = build.get_args().filter_map(|it| it.to_str()).collect();
    let program = compiler.bin.join("cargo");
    let mut command =
        static_program::cargo(workspace, Architecture::Arm64, compiler, &program, &arguments);
    command.args(BINARIES.iter().flat_map(|name| ["--bin", *name]));
    command.args(["--message-format", suites::MESSAGES]);
    command.env("CARGO_PROFILE_DEV_DEBUG", "none");
    let log = workspace.log("build-suites-arm64");
    run_logged("compiling the suites for arm64", &mut command, &log)?;
    suites::executables(&fs::read_to_string(&log)?, &[suites::DATAPATH])
}

/// The path of the agent, which is one for a release, or of one of [`BINARIES`].
pub(super) fn binary(workspace: &Workspace, name: &str) -> PathBuf {
    let profile = if BINARIES.contains(&name) { "debug" } else { Profile::Deployed.name() };
    static_program::folder(workspace, Architecture::Arm64, profile).join(name)
}

/// A folder with Debian's `ip` and its libraries. Downloads them if necessary.
pub(super) fn debian_tools(workspace: &Workspace) -> Result<PathBuf> {
    let folder = cache::folder("arm64-tools")?;
    cache::make_once(&folder, |room| {
        let sources = debian::sources(LINE.suite());
        let architecture = Architecture::Arm64.name();
        let archive = Archive::open_for(workspace, room, "arm64", &sources, architecture)?;
        let packages = archive.download_with_dependencies("`ip` for arm64", &["iproute2"])?;
        let root = room.join("root");
        archive.unpack("unpacking it", &packages, &root)?;
        Ok(root)
    })?;
    Ok(folder)
}

/// A program or a library below a folder of [`debian_tools`].
pub(super) fn find(folder: &Path, name: &str) -> Result<PathBuf> {
    const PLACES: [&str; 4] = ["usr/bin", "usr/sbin", "usr/lib/aarch64-linux-gnu", "usr/lib"];
    let mut paths = PLACES.map(|place| folder.join(place).join(name)).into_iter();
    let found = paths.find(|path| path.is_file());
    found.with_context(|| format!("no {name} in {}", folder.display()))
}
