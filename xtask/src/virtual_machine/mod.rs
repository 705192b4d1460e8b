//! The datapath's suites on Debian's kernels: each boots under QEMU, runs them, and goes.
//!
//! Everything that a machine needs is in its initramfs: there is no disk and no network. Its first
//! process is the program `guest` of the package `tests`, and what that says on the serial port is
//! all that comes back.

mod boot;
mod counts;
mod debian_kernel;
mod emulator;
mod guest;
mod initramfs;
mod modules;
mod report;
mod suites;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

pub(crate) use debian_kernel::Line;
pub(crate) use suites::Scope;

use crate::progress::Screen;
use crate::workspace::Workspace;
use counts::Counts;
use report::Report;

/// Whether kernels and an emulator are here, or can be had without installing anything. A machine
/// runs what is compiled for this one, so both are of one architecture.
pub(crate) fn is_obtainable(debian12: bool) -> bool {
    cfg!(target_arch = "x86_64")
        && emulator::is_obtainable(debian12)
        && debian_kernel::is_obtainable()
}

/// Runs the suites on kernels, one machine after the other: this one has better to do than two.
///
/// # Errors
/// A suite fails on a kernel, or a machine does not come to its end; the other kernels' suites have
/// run by then, too.
pub(crate) fn run(
    workspace: &Workspace,
    screen: &Screen,
    lines: &[Line],
    scope: Scope,
) -> Result<()> {
    let emulator = emulator::ready(workspace, screen)?;
    let kernels = lines.iter().map(|line| debian_kernel::ready(workspace, screen, *line));
    let kernels = kernels.collect::<Result<Vec<_>>>()?;
    let programs = guest::build(workspace, screen)?;
    let mut counts = Counts::read(workspace)?;
    counts.set("host", verify_here(workspace, screen, &programs)?);
    let mut failures = Vec::new();
    for kernel in &kernels {
        let line = kernel.line.name();
        match boot_and_test(workspace, screen, &emulator, kernel, &programs, scope) {
            Ok(report) => counts.set(line, report.verified),
            Err(error) if crate::process::caught() == 0 => {
                screen.warn(&format!("{line}: {error:#}"));
                failures.push(line);
            }
            Err(error) => return Err(error),
        }
    }
    for text in counts.table() {
        screen.note(&text);
    }
    if counts.write(workspace)? {
        screen.note(&format!("{} has changed: commit it", counts::PATH));
    }
    if failures.is_empty() {
        Ok(())
    } else {
        bail!("suites failed on Linux {}", failures.join(", "))
    }
}

/// What this machine's own kernel's verifier says, for comparison.
fn verify_here(
    workspace: &Workspace,
    screen: &Screen,
    programs: &guest::Programs,
) -> Result<report::Verified> {
    let log = workspace.log("verifier-host");
    let mut command = workspace.command(programs.suite("verifier")?);
    command.arg("--nocapture").env("TOPO_LB_EBPF_OBJECT", workspace.object());
    crate::process::run_logged(screen, "this machine's verifier", &mut command, &log)?;
    Ok(Report::read(&read(&log)?).verified)
}

fn boot_and_test(
    workspace: &Workspace,
    screen: &Screen,
    emulator: &emulator::Emulator,
    kernel: &debian_kernel::DebianKernel,
    programs: &guest::Programs,
    scope: Scope,
) -> Result<Report> {
    let line = kernel.line.name();
    let suites = suites::selection(scope);
    let initramfs = workspace.target.join("virtual-machine").join(format!("initramfs-{line}"));
    guest::pack(workspace, kernel, programs, &suites, &initramfs)?;
    let log = workspace.log(&format!("linux-{line}"));
    let machine = boot::Machine { emulator, image: &kernel.image, initramfs: &initramfs };
    let title = format!("Linux {}", kernel.release);
    let ended = machine.run(workspace, screen, &title, &log, limit(scope));
    let said = read(&log)?;
    let report = Report::read(&said);
    for text in report.lines() {
        screen.note(&format!("  {text}"));
    }
    if let Err(error) = ended.and_then(|()| suites::judge(&suites, &report)) {
        for text in report::excerpt(&said) {
            screen.note(&format!("│ {text}"));
        }
        return Err(error.context(format!("all that it said is in {}", log.display())));
    }
    // It is as large as all programs together.
    fs::remove_file(&initramfs)
        .with_context(|| format!("cannot remove {}", initramfs.display()))?;
    Ok(report)
}

/// Several times what it takes on two cores with other work.
fn limit(scope: Scope) -> Duration {
    let minutes = match scope {
        Scope::Short => 15,
        Scope::Whole => 90,
    };
    Duration::from_secs(minutes * 60)
}

fn read(log: &PathBuf) -> Result<String> {
    let bytes = fs::read(log).with_context(|| format!("cannot read {}", log.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
