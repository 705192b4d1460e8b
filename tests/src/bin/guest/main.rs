//! The first process of a virtual machine that `cargo xtask test --kernel` boots: prepares the
//! kernel, runs suites, reports their results on the console, and powers off.
//!
//! Lines for xtask begin with `@guest`; everything else is output of the suites. The last such
//! line, `@guest end`, appears only if everything has run: a machine that panics powers off, too.

mod kernel;
mod plan;
mod suites;

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};

use plan::Plan;

fn main() -> ExitCode {
    // Otherwise it would mount file systems on this machine, and power it off.
    if std::process::id() != 1 {
        eprintln!("guest: the first process of a virtual machine, started by cargo xtask test");
        return ExitCode::FAILURE;
    }
    if let Err(error) = work() {
        say(&format!("trouble {error:#}"));
    }
    kernel::switch_off()
}

fn work() -> Result<()> {
    let plan = Plan::read()?;
    kernel::mount_all(&plan.mounts)?;
    say(&format!("booted {}", kernel::release()));
    if let Some(cgroup) = &plan.nested {
        kernel::enter_cgroup_namespace(cgroup)?;
    }
    kernel::load_modules(&plan.modules)?;
    kernel::write_all(&plan.writes)?;
    kernel::bring_up_loopback()?;
    let has_mptcp = kernel::has_mptcp();
    let mut failed = 0;
    for suite in &plan.suites {
        failed += u32::from(!suites::run(suite, &plan.environment, has_mptcp)?);
    }
    let count = u32::try_from(plan.suites.len()).context("fewer suites")?;
    ensure!(count > 0, "the plan has no suite");
    say(&format!("end {} passed {failed} failed", count - failed));
    Ok(())
}

/// Prints a line for xtask. Starts with a newline: a suite may have left an unfinished line.
fn say(text: &str) {
    println!("\n@guest {text}");
}
