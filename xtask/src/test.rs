//! `cargo xtask test`: all checks and tests.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use clap::ValueEnum;

use crate::beside::Beside;
use crate::install;
use crate::needs::Need;
use crate::process::caught;
use crate::progress::{self, clock};
use crate::stage::{self, Stage};
use crate::summary::{Outcome, Row, table};
use crate::virtual_machine::{ALL, Asked, Counting, VARIANTS, Variant};
use crate::workspace::Workspace;

/// Runs every check and every test, and stops at the first failure.
///
/// The lab's suites run on this machine's own kernel, with real sockets in namespaces and cgroups,
/// and need root. Those of the datapath also run on Debian's kernels under QEMU: some of their tests,
/// or all if `--kernel` names the kernels; one is for 64-bit ARM. A kernel that passed is not booted
/// again as long as nothing that it runs has changed, unless it or its stage is named.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask test                 everything, as continuous integration does
  cargo xtask test --only lab      one stage, with what it needs
  cargo xtask test --only format --only clippy
  cargo xtask test --strict        fails if anything cannot be checked here
  cargo xtask test --kernel 5.10,6.12     all tests of the datapath on two kernels
  cargo xtask test --kernel arm64         the same on an emulated 64-bit ARM
  cargo xtask test --kernel no-ipv6       short suites on a kernel without IPv6; variants: all such")]
pub(crate) struct Args {
    /// Run only the suites, on these kernels: `host` is the lab on this machine's kernel; 5.10, 6.1,
    /// 6.12 and arm64 are Debian's, with all tests of the datapath; others are variants of these, with short
    /// suites, and `variants` is all of those
    #[arg(long, value_delimiter = ',', value_parser = kernels)]
    kernel: Vec<Kernels>,
    /// Write what the kernels' verifiers count to tests/verifier.tsv, instead of comparing
    #[arg(long)]
    bless: bool,
    /// Run only this stage (may be given more than once)
    #[arg(long, value_name = "STAGE")]
    only: Vec<Stage>,
    /// Fail if something cannot be checked, such as advisories without a network. Without this
    /// option, the summary warns about it
    #[arg(long)]
    strict: bool,
}

/// What a name of kernels stands for: the machines to boot; none: this machine's own kernel.
type Kernels = Vec<&'static Variant>;

/// Parses a name of kernels.
fn kernels(text: &str) -> Result<Kernels, String> {
    let named: Kernels = match text {
        "host" => return Ok(Kernels::new()),
        VARIANTS => Variant::variants().collect(),
        name => ALL.iter().filter(|it| it.name == name).collect(),
    };
    if named.is_empty() {
        let names: Vec<_> = ALL.iter().map(|it| it.name).collect();
        return Err(format!("the kernels are host, {VARIANTS}, {}", names.join(", ")));
    }
    Ok(named)
}

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let stages = selection(&args.only, &args.kernel);
    let counting = if args.bless { Counting::Keep } else { Counting::Compare };
    let begun = Instant::now();
    progress::headline("set-up");
    let variants = args.kernel.concat();
    let needs: BTreeSet<Need> = stages.iter().flat_map(|it| it.needs()).copied().collect();
    // A stage that is named runs, also if nothing has changed.
    let anew = args.bless || !args.only.is_empty() || !args.kernel.is_empty();
    let asked = Asked { variants: &variants, counting, anew };
    let machine = install::ready(workspace, &needs)?;
    let elapsed = begun.elapsed();
    progress::note(&format!("ready after {}", clock(elapsed)));

    let mut beside = Beside::default();
    let mut rows =
        vec![Row { title: "set-up".to_owned(), outcome: Outcome::Passed(None), elapsed }];
    let failure = run_stages(&stages, &mut rows, args.strict, |together| {
        progress::headline(&title(together));
        let rest: Vec<Stage> = stages.iter().copied().filter(|it| *it >= together[0]).collect();
        beside.begin(workspace, &rest)?;
        stage::run(together, workspace, &machine, asked)
    });
    drop(beside);
    progress::headline("summary");
    for line in table(&rows) {
        progress::line(&line);
    }
    let is_whole = !rows
        .iter()
        .any(|row| matches!(row.outcome, Outcome::Unchecked(_) | Outcome::NothingToCheck(_)));
    match failure {
        None => {
            let what = if is_whole { "all passed" } else { "all that was checked passed" };
            progress::headline(&format!("{what} in {}", clock(begun.elapsed())));
            Ok(())
        }
        Some((together, error)) => {
            let values = together.iter().filter_map(ValueEnum::to_possible_value);
            let only: String = values.map(|it| format!(" --only {}", it.get_name())).collect();
            bail!("{error:#}\n  to run this again: cargo xtask test{only}")
        }
    }
}

/// Runs the stages, some beside each other, until one fails, and records the outcomes.
fn run_stages<'a>(
    stages: &'a [Stage],
    rows: &mut Vec<Row>,
    strict: bool,
    mut run: impl FnMut(&[Stage]) -> Result<Outcome>,
) -> Option<(&'a [Stage], anyhow::Error)> {
    let mut failure = None;
    for together in stages.chunk_by(|one, next| one.is_beside(*next)) {
        let title = title(together);
        if failure.is_some() || caught() != 0 {
            rows.push(Row { title, outcome: Outcome::NotRun, elapsed: Duration::ZERO });
            continue;
        }
        let begun = Instant::now();
        let result = run(together);
        let elapsed = begun.elapsed();
        let outcome = match result {
            Ok(Outcome::Unchecked(what)) if strict => {
                failure = Some((together, anyhow!("--strict: {what}")));
                Outcome::Failed
            }
            Ok(outcome) => outcome,
            Err(error) => {
                failure = Some((together, error));
                Outcome::Failed
            }
        };
        rows.push(Row { title, outcome, elapsed });
    }
    failure
}

/// The titles of stages that run beside each other.
fn title(together: &[Stage]) -> String {
    together.iter().map(|stage| stage.title()).collect::<Vec<_>>().join(", ")
}

/// The stages to run, in order, with the object if one needs it. A named kernel selects its stage.
fn selection(only: &[Stage], named: &[Kernels]) -> Vec<Stage> {
    let stage = |it: &Kernels| if it.is_empty() { Stage::Lab } else { Stage::Kernels };
    let mut stages: BTreeSet<Stage> = only.iter().copied().collect();
    if stages.is_empty() {
        stages.extend(named.iter().map(stage));
    }
    if stages.is_empty() {
        return Stage::value_variants().to_vec();
    }
    if stages.iter().any(|stage| stage.needs().contains(&Need::Object)) {
        stages.insert(Stage::Object);
    }
    stages.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_selection_everything_runs() {
        assert_eq!(selection(&[], &[]), Stage::value_variants());
    }

    #[test]
    fn a_selection_keeps_the_order_and_brings_the_object() {
        let stages = selection(&[Stage::Lab, Stage::Format, Stage::Lab], &[]);
        assert_eq!(stages, [Stage::Format, Stage::Object, Stage::Lab]);
        assert_eq!(selection(&[Stage::Deny], &[]), [Stage::Deny]);
    }

    #[test]
    fn named_kernels_stand_for_what_runs_on_them() {
        let [old, new, host] = ["5.10", "6.12", "host"].map(|name| kernels(name).unwrap());
        assert!(kernels("6.2").is_err());
        assert_eq!(selection(&[], &[new, old.clone()]), [Stage::Object, Stage::Kernels]);
        let both = [Stage::Object, Stage::Lab, Stage::Kernels];
        assert_eq!(selection(&[], &[old.clone(), host]), both);
        assert_eq!(selection(&[Stage::Deny], &[old]), [Stage::Deny]);
    }

    #[test]
    fn nothing_runs_after_the_first_failure() {
        let mut rows = Vec::new();
        let stages = [Stage::Format, Stage::Clippy, Stage::Lab];
        let failure = run_stages(&stages, &mut rows, false, |together| match together {
            [Stage::Format] => Ok(Outcome::Passed(Some("remark".to_owned()))),
            [Stage::Clippy] => bail!("a warning"),
            _ => panic!("{together:?} has run"),
        });
        assert_eq!(failure.map(|(together, _)| together), Some(&[Stage::Clippy][..]));
        let outcomes: Vec<_> = rows.into_iter().map(|row| row.outcome).collect();
        let remark = Outcome::Passed(Some("remark".to_owned()));
        assert_eq!(outcomes, [remark, Outcome::Failed, Outcome::NotRun]);
    }

    #[test]
    fn suites_of_clusters_and_fuzzing_run_beside_each_other() {
        let mut rows = Vec::new();
        let stages = [Stage::Unit, Stage::Lab, Stage::Cluster, Stage::ControlPlane, Stage::Kernels];
        assert!(run_stages(&stages, &mut rows, false, |_| Ok(Outcome::Passed(None))).is_none());
        let titles: Vec<_> = rows.iter().map(|row| row.title.as_str()).collect();
        assert_eq!(titles, ["unit tests", "lab", "cluster, control plane", "kernels"]);
    }

    #[test]
    fn what_no_machine_could_check_fails_no_strict_run() {
        let mut rows = Vec::new();
        let outcome = Outcome::NothingToCheck("no release".to_owned());
        let failure = run_stages(&[Stage::Lab], &mut rows, true, |_| Ok(outcome.clone()));
        assert!(failure.is_none() && rows[0].outcome == outcome, "{failure:?}, {rows:?}");
    }

    #[test]
    fn what_was_not_checked_fails_a_strict_run_alone() {
        let run = |strict| {
            let mut rows = Vec::new();
            let failure = run_stages(&[Stage::Deny, Stage::Docs], &mut rows, strict, |stage| {
                Ok(match stage {
                    [Stage::Deny] => Outcome::Unchecked("NOT checked".to_owned()),
                    _ => Outcome::Passed(None),
                })
            });
            let outcomes: Vec<_> = rows.into_iter().map(|row| row.outcome).collect();
            (failure.map(|(together, error)| (together[0], error.to_string())), outcomes)
        };
        let unchecked = Outcome::Unchecked("NOT checked".to_owned());
        assert_eq!(run(false), (None, vec![unchecked, Outcome::Passed(None)]));
        let failure = Some((Stage::Deny, "--strict: NOT checked".to_owned()));
        assert_eq!(run(true), (failure, vec![Outcome::Failed, Outcome::NotRun]));
    }
}
