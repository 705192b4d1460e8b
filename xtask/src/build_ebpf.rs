//! `cargo xtask build-ebpf`: the eBPF object that is compiled into the agent.

use fs_err as fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use object::build::elf::{Builder, SectionData};
use object::elf::SHT_STRTAB;

use crate::install;
use crate::machine::Machine;
use crate::needs::Need;
use crate::plan::object_tools;
use crate::process::run_logged;
use crate::progress;
use crate::static_program;
use crate::toolchain::{Linker, Toolchain};
use crate::workspace::Workspace;

/// Compiles the programs that run in the kernel, with BTF and without DWARF, to target/bpf/topo-lb.o,
/// and those of the stress test to topo-lb-reads.o.
///
/// It writes an object only if its bytes have changed, so that the agent is not built again for
/// nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask build-ebpf && cargo build -p topo-lb
  cargo xtask build-ebpf && bpftool btf dump file target/bpf/topo-lb.o
  cargo xtask build-ebpf --log                            # and run-agent --log")]
pub(crate) struct Args {
    /// Compile programs that say what they decide, to target/bpf/topo-lb-log.o instead
    #[arg(long)]
    log: bool,
}

/// The name of the package and of the object that the agent embeds.
const PACKAGE: &str = "topo-lb-ebpf";

/// The name of the stress test's object.
const READS: &str = "topo-lb-reads";

const TARGET: &str = "bpfel-unknown-none";

/// The profile in the workspace's `Cargo.toml`, and the name of its folder.
const PROFILE: &str = "bpf";

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let machine = ready(workspace, &[])?;
    let mut object = workspace.object();
    if args.log {
        with_log(workspace, &machine)?;
        object = workspace.log_object();
    }
    progress::note(&object.display().to_string());
    Ok(())
}

/// Builds the object whose programs say what they decide.
pub(crate) fn with_log(workspace: &Workspace, machine: &Machine) -> Result<()> {
    let built = compile(workspace, machine, "eBPF object that logs", LOG)?;
    publish_built(&built.join(PACKAGE), &workspace.log_object())
}

/// Prepares the machine for the needs, and builds the object.
pub(crate) fn ready(workspace: &Workspace, needs: &[Need]) -> Result<Machine> {
    let needs = needs.iter().copied().chain([Need::Object]).collect();
    let machine = install::ready(workspace, &needs)?;
    build(workspace, &machine)?;
    Ok(machine)
}

/// Builds the object with the machine's tools.
pub(crate) fn build(workspace: &Workspace, machine: &Machine) -> Result<()> {
    let folder = compile(workspace, machine, "eBPF object", &[])?;
    for (name, place) in [(PACKAGE, workspace.object()), (READS, workspace.reads_object())] {
        publish_built(&folder.join(name), &place)?;
    }
    Ok(())
}

/// Compiles the objects with these further arguments of Cargo; returns their folder.
fn compile(
    workspace: &Workspace,
    machine: &Machine,
    title: &str,
    more: &[&str],
) -> Result<PathBuf> {
    let (compiler, linker) = object_tools(machine).context("no compiler for eBPF was found")?;
    let mut command = cargo(workspace, compiler, linker);
    command.arg("build").args(ARGUMENTS).args(more);
    let title = format!("{title}, by {}", compiler.display());
    run_logged(title, &mut command, &workspace.log("build-ebpf"))?;
    Ok(build_folder(workspace).join(TARGET).join(PROFILE))
}

fn publish_built(built: &Path, place: &Path) -> Result<()> {
    let bytes = without_dwarf(&fs::read(built)?).with_context(|| format!("{}", built.display()))?;
    publish(&bytes, place)
}

/// Runs Clippy on the eBPF programs, with warnings as errors.
pub(crate) fn lint(workspace: &Workspace, machine: &Machine) -> Result<()> {
    let (compiler, linker) = object_tools(machine).context("no compiler for eBPF was found")?;
    for (what, more) in [("eBPF", &[][..]), ("eBPF that logs", LOG)] {
        let mut command = clippy(workspace, compiler, linker);
        command.arg("clippy").args(ARGUMENTS).args(more).args(["--", "-D", "warnings"]);
        let title = format!("Clippy for {what}, by {}", compiler.display());
        run_logged(title, &mut command, &workspace.log("clippy-ebpf"))?;
    }
    Ok(())
}

/// Arguments of Cargo for programs that say what they decide.
const LOG: &[&str] = &["--features", "log"];

const ARGUMENTS: &[&str] =
    &["--package", PACKAGE, "--target", TARGET, "--profile", PROFILE, "-Zbuild-std=core"];

/// A separate folder: builds with other flags and compilers would discard each other's results.
fn build_folder(workspace: &Workspace) -> PathBuf {
    workspace.target.join("bpf-build")
}

fn cargo(workspace: &Workspace, compiler: &Toolchain, linker: &Linker) -> Command {
    let mut command = workspace.command(compiler.bin.join("cargo"));
    for_kernel(&mut command, workspace, compiler, linker);
    command
}

/// Calls `cargo-clippy` directly: `cargo clippy` would call the first one on the path, which is
/// rustup's for another compiler. It finds its Cargo in the environment.
fn clippy(workspace: &Workspace, compiler: &Toolchain, linker: &Linker) -> Command {
    let mut command = workspace.command(compiler.bin.join("cargo-clippy"));
    for_kernel(&mut command, workspace, compiler, linker);
    command.env("CARGO", compiler.bin.join("cargo"));
    command
}

fn for_kernel(command: &mut Command, workspace: &Workspace, compiler: &Toolchain, linker: &Linker) {
    // bpf-linker makes BTF from DWARF.
    let mut flags = static_program::remapped(workspace, compiler);
    flags.extend(["-Cdebuginfo=2", "-Clink-arg=--btf"].map(str::to_owned));
    command
        .env("CARGO_TARGET_DIR", build_folder(workspace))
        .env("RUSTC", compiler.bin.join("rustc"))
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", &linker.path)
        // `build-std` is unstable, and Debian's compiler is a stable one.
        .env("RUSTC_BOOTSTRAP", "1")
        // These settings are for this machine's own target.
        .env_remove("CARGO_BUILD_TARGET")
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER");
}

/// Removes DWARF, four fifths of the object; only bpf-linker needs it, to make BTF.
fn without_dwarf(object: &[u8]) -> Result<Vec<u8>> {
    let mut object = Builder::read(object).context("it is no ELF object")?;
    for section in &mut object.sections {
        let names = [&b".debug_"[..], b".rel.debug_"];
        section.delete |= names.iter().any(|name| section.name.starts_with(name));
    }
    object.delete_orphans();
    // LLVM writes one table for the names of sections and symbols; `object` needs two.
    let names = object.sections.add();
    names.name = b".shstrtab"[..].into();
    names.sh_type = SHT_STRTAB;
    names.sh_addralign = 1;
    names.data = SectionData::SectionString;
    let mut bytes = Vec::new();
    object.write(&mut bytes).context("it cannot be written without DWARF")?;
    Ok(bytes)
}

/// Replaces the object in one step. Leaves an equal one unchanged, including its time.
fn publish(bytes: &[u8], place: &Path) -> Result<()> {
    if fs::read(place).is_ok_and(|present| present == bytes) {
        return Ok(());
    }
    fs::create_dir_all(place.parent().unwrap_or(place))?;
    let draft = place.with_extension("o.new");
    fs::write(&draft, bytes)?;
    Ok(fs::rename(&draft, place)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_equal_object_is_left_untouched() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("bpf/topo-lb.o");
        publish(b"first", &place).unwrap();
        let long_ago = std::time::SystemTime::UNIX_EPOCH;
        fs::File::options().write(true).open(&place).unwrap().set_modified(long_ago).unwrap();

        publish(b"first", &place).unwrap();
        assert_eq!(fs::metadata(&place).unwrap().modified().unwrap(), long_ago);

        publish(b"second", &place).unwrap();
        assert_eq!(fs::read(&place).unwrap(), b"second");
        assert!(!place.with_extension("o.new").exists());
    }
}
