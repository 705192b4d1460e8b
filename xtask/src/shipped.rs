//! The programs of a release: one static `topo-lb` per architecture. Each lists its libraries in its
//! section `.dep-v0`, which `cargo audit bin` reads.

use fs_err as fs;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::architecture::Architecture;
use crate::build_ebpf;
use crate::libraries;
use crate::needs::Need;
use crate::plan::object_tools;
use crate::process::run_logged;
use crate::static_program;
use crate::workspace::{Profile, Workspace, find_cargo_program};

/// Compiles the programs for these architectures; for all, if there are none.
///
/// # Errors
/// The machine lacks a compiler, or it has made a program that is not static.
pub(crate) fn build(
    workspace: &Workspace,
    architectures: &[Architecture],
) -> Result<Vec<(Architecture, PathBuf)>> {
    let wanted = if architectures.is_empty() { &Architecture::ALL[..] } else { architectures };
    let wanted: BTreeSet<Architecture> = wanted.iter().copied().collect();
    let mut needs = vec![Need::Auditable];
    for foreign in wanted.iter().filter(|it| !it.is_here()) {
        ensure!(
            *foreign == Architecture::Arm64,
            "{} is compiled only on {0}: name another one with --arch",
            foreign.name()
        );
        needs.push(Need::Arm64Compiler);
    }
    let machine = build_ebpf::ready(workspace, &needs)?;
    let (compiler, _) = object_tools(&machine).context("no compiler was found")?;
    let auditable = find_cargo_program("cargo-auditable").context("no cargo-auditable")?;
    let profile = Profile::Deployed.name();
    let arguments =
        ["auditable", "build", "--locked", "--profile", profile, "--package", "topo-lb"];
    let build = |architecture: Architecture| {
        let name = architecture.name();
        let mut command =
            static_program::cargo(workspace, architecture, compiler, &auditable, &arguments);
        let log = workspace.log(&format!("build-shipped-{name}"));
        let title = format!("topo-lb for {name}, by {}", compiler.display());
        run_logged(title, command.args(["--bin", "topo-lb"]), &log)?;
        let program = static_program::folder(workspace, architecture, profile).join("topo-lb");
        is_static(&program)?;
        ensure!(
            libraries::has_section(&fs::read(&program)?, b".dep-v0")?,
            "{} does not list its libraries: cargo-auditable has not",
            program.display()
        );
        Ok((architecture, program))
    };
    wanted.into_iter().map(build).collect()
}

fn is_static(program: &Path) -> Result<()> {
    let needed = libraries::needed(&fs::read(program)?)?;
    ensure!(
        needed.is_empty(),
        "{} is not static: it needs {}",
        program.display(),
        needed.join(", ")
    );
    Ok(())
}
