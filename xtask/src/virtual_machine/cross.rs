//! Programs for another architecture than this machine's: compiled here as static programs, or taken
//! from Debian's packages.

use fs_err as fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use object::build::elf::{Builder, Dynamic, SectionData};
use object::elf::DT_NEEDED;

use super::architecture::Architecture;
use super::debian_kernel::Line;
use super::suites::SUITES;
use crate::cache;
use crate::debian::{self, Archive};
use crate::process::run_logged;
use crate::suites;
use crate::toolchain::Toolchain;
use crate::workspace::Workspace;

/// The target, and the start of the names of its C compiler's programs.
const TARGET: &str = "aarch64-unknown-linux-gnu";
const TOOLS: &str = "aarch64-linux-gnu";
/// The line of kernels that these programs run on.
const LINE: Line = Line::Arm64;

/// The programs that the machine needs besides the suites.
const BINARIES: [&str; 3] = ["topo-lb", "guest", "pod"];

/// Compiles the suites and [`BINARIES`]. Returns Cargo's messages.
pub(super) fn build(workspace: &Workspace, compiler: &Toolchain) -> Result<String> {
    let mut build = suites::cargo_for(workspace, "build", SUITES.map(|suite| suite.name));
    build.args(BINARIES.iter().flat_map(|name| ["--bin", *name]));
    // The system's compiler has no standard library for the target, but its sources.
    build.args(["--target", TARGET, "-Zbuild-std=std,panic_unwind"]);
    build.args(["--message-format", "json-render-diagnostics"]);
    let mut command = workspace.command(compiler.bin.join("cargo"));
    command.args(build.get_args());
    let under = |name: &str| format!("{name}_{}", TARGET.replace('-', "_"));
    let linker = under("CARGO_TARGET").to_uppercase() + "_LINKER";
    command
        .env("CARGO_TARGET_DIR", folder(workspace))
        .env("RUSTC", compiler.bin.join("rustc"))
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static")
        .env("CARGO_PROFILE_DEV_DEBUG", "none")
        .env(linker, format!("{TOOLS}-gcc"))
        .env(under("CC"), format!("{TOOLS}-gcc"))
        .env(under("AR"), format!("{TOOLS}-ar"))
        .env("TOPO_LB_EBPF_OBJECT", workspace.object())
        // These settings are for this machine's own target.
        .env_remove("CARGO_BUILD_TARGET")
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER");
    let log = workspace.log("build-suites-arm64");
    run_logged("compiling the suites for arm64", &mut command, &log)?;
    Ok(fs::read_to_string(&log)?)
}

/// The path of one of [`BINARIES`].
pub(super) fn binary(workspace: &Workspace, name: &str) -> PathBuf {
    folder(workspace).join(TARGET).join("debug").join(name)
}

/// A separate folder: builds with other flags and compilers would discard each other's results.
fn folder(workspace: &Workspace) -> PathBuf {
    workspace.target.join(LINE.name())
}

/// A folder with Debian's `ip` and its libraries. Downloads them if necessary.
pub(super) fn debian_tools(workspace: &Workspace) -> Result<PathBuf> {
    let folder = cache::folder("arm64-tools")?;
    cache::make_once(&folder, |room| {
        let sources = debian::sources(LINE.suite());
        let architecture = Architecture::Arm64.debian();
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

/// The names of the shared libraries and of the dynamic linker that a program or library names.
pub(super) fn needed(program: &[u8]) -> Result<Vec<String>> {
    let program = Builder::read(program).context("it is no ELF program")?;
    let mut names = Vec::new();
    for section in &program.sections {
        match &section.data {
            SectionData::Dynamic(entries) => {
                names.extend(entries.iter().filter_map(|it| match it {
                    Dynamic::String { tag, val } if *tag == DT_NEEDED => Some(text(val)),
                    _ => None,
                }))
            }
            SectionData::Data(path) if section.name[..] == *b".interp" => {
                let path = text(path);
                let path = path.trim_end_matches('\0');
                names.extend(path.rsplit('/').next().map(str::to_owned));
            }
            _ => {}
        }
    }
    Ok(names)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_names_its_libraries_and_its_linker() {
        let program = fs::read(std::env::current_exe().unwrap()).unwrap();
        let names = needed(&program).unwrap();
        assert!(names.contains(&"libc.so.6".to_owned()), "{names:?}");
        assert!(names.iter().any(|name| name.starts_with("ld-linux")), "{names:?}");
    }
}
