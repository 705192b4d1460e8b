//! Carries out a plan, step by step.

use std::collections::BTreeSet;

use anyhow::{Result, bail, ensure};

use crate::alone;
use crate::machine::Machine;
use crate::needs::Need;
use crate::plan::{self, Plan, Step};
use crate::process::{caught, run_logged};
use crate::progress;
use crate::workspace::Workspace;

/// Prepares the machine for the needs. Quick and silent if nothing is missing.
pub(crate) fn ready(workspace: &Workspace, needs: &BTreeSet<Need>) -> Result<Machine> {
    let mut done: BTreeSet<String> = BTreeSet::new();
    loop {
        let machine = Machine::inspect(workspace, needs);
        let plan = plan::plan(&machine, needs);
        refuse_missing(&plan)?;
        if plan.steps.is_empty() {
            return Ok(machine);
        }
        let titles: Vec<_> = plan.steps.iter().map(|step| step.title.as_str()).collect();
        alone::may_get(&titles.join("; "))?;
        // After the first plan, a second one may be necessary. Repeating a step would not help.
        for step in &plan.steps {
            ensure!(
                done.insert(step.display()),
                "`{}` succeeded, but this is still missing: {}",
                step.display(),
                step.title
            );
            carry_out(workspace, step)?;
        }
    }
}

fn carry_out(workspace: &Workspace, step: &Step) -> Result<()> {
    let (program, arguments) = match step.command.split_first() {
        // The cargo that started xtask may not be on the path.
        Some((program, arguments)) if program == "cargo" => {
            (workspace.cargo_path().as_os_str(), arguments)
        }
        Some((program, arguments)) => (program.as_ref(), arguments),
        None => bail!("{}: no command", step.title),
    };
    let mut command = workspace.command(program);
    command.args(arguments).envs(step.environment.iter().map(|(name, value)| (name, value)));
    let result = run_logged(&step.title, &mut command, &workspace.log(step.log));
    match result {
        Err(error) if step.may_fail && caught() == 0 => {
            progress::warn(&format!("continuing without it: {error:#}"));
            Ok(())
        }
        other => other,
    }
}

/// Fails if only a person can install something that is missing.
pub(crate) fn refuse_missing(plan: &Plan) -> Result<()> {
    if plan.missing.is_empty() {
        return Ok(());
    }
    let sentences = plan.missing.iter().map(|it| format!("{}; try:\n    {}", it.what, it.command));
    bail!("{}", sentences.collect::<Vec<_>>().join("\n  "))
}
