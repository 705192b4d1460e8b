//! Static programs: they run on any Linux of their architecture, whatever its C library, and every
//! checkout gives the same bytes.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::architecture::Architecture;
use crate::process::output_of;
use crate::toolchain::Toolchain;
use crate::workspace::{INCREMENTAL, Workspace, cargo_home};

/// The folder for static programs. A separate one: builds with other flags and compilers would discard
/// each other's results.
pub(crate) fn folder(workspace: &Workspace, architecture: Architecture, profile: &str) -> PathBuf {
    workspace.target.join("static").join(architecture.target()).join(profile)
}

/// `program`, which is a `cargo` or calls one, with arguments that begin with Cargo's subcommand. The
/// compiler's own C library for another architecture comes from Debian's cross compiler, and its
/// standard library from source.
pub(crate) fn cargo(
    workspace: &Workspace,
    architecture: Architecture,
    compiler: &Toolchain,
    program: &Path,
    arguments: &[&str],
) -> Command {
    let target = architecture.target();
    let mut command = workspace.command(program);
    command.args(arguments).args(["--target", target]);
    let mut flags = remapped(workspace, compiler);
    flags.push("-Ctarget-feature=+crt-static".to_owned());
    if architecture == Architecture::X86_64 {
        // 47,000 relocations in 0.1 MB instead of 1.1 MB, all of which is read when a program starts.
        // Debian 12's linker packs them only for x86-64 (binutils NEWS, 2.38).
        flags.push("-Clink-arg=-Wl,-z,pack-relative-relocs".to_owned());
    }
    command
        .env("CARGO", compiler.bin.join("cargo"))
        .env("CARGO_TARGET_DIR", workspace.target.join("static"))
        .env(INCREMENTAL, "0")
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        .env("RUSTC", compiler.bin.join("rustc"))
        .env("TOPO_LB_EBPF_OBJECT", workspace.object())
        // These settings are for this machine's own target.
        .env_remove("CARGO_BUILD_TARGET")
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER");
    if !architecture.is_here() {
        command.arg("-Zbuild-std=std,panic_unwind").env("RUSTC_BOOTSTRAP", "1");
        let under = |name: &str| format!("{name}_{}", target.replace('-', "_"));
        let tool = |name: &str| format!("{}-{name}", architecture.tools());
        command
            .env(under("CARGO_TARGET").to_uppercase() + "_LINKER", tool("gcc"))
            .env(under("CC"), tool("gcc"))
            .env(under("AR"), tool("ar"));
    }
    command
}

/// Flags of rustc that replace this machine's folders in what it compiles. Cargo leaves them out of the
/// hashes in the names of symbols.
pub(crate) fn remapped(workspace: &Workspace, compiler: &Toolchain) -> Vec<String> {
    let print = ["--print", "sysroot"];
    let sysroot = output_of(Command::new(compiler.bin.join("rustc")).args(print));
    let library = sysroot.map(|it| Path::new(it.trim()).join("lib/rustlib/src/rust"));
    let places =
        [(library, "/rust"), (cargo_home(), "/cargo"), (Some(workspace.root.clone()), "/topo-lb")];
    let flag = |(from, to): (Option<PathBuf>, &str)| {
        Some(format!("--remap-path-prefix={}={to}", from?.display()))
    };
    places.into_iter().filter_map(flag).collect()
}
