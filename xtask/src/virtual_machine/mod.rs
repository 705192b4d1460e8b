//! The datapath's suites on Debian's kernels: each kernel boots under QEMU, runs them, and powers
//! off.
//!
//! A machine has neither disk nor network; its initramfs has everything, and its two cards lead to each other.
//! Its first process is the program `guest` of the package `tests`, which reports on the serial port.

mod accepted;
mod boot;
mod counts;
mod cross;
mod debian_kernel;
mod emulator;
mod guest;
mod initramfs;
mod modules;
mod report;
mod suites;
mod variants;
mod verdict;

use fs_err as fs;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use debian_kernel::DebianKernel;
use debian_kernel::Line;
use suites::Scope;
pub(crate) use variants::{ALL, VARIANTS, Variant};

use crate::architecture::Architecture;
use crate::process::caught;
use crate::progress::{self, Running, clock};
use crate::summary::{Outcome, unchecked};
use crate::toolchain::Toolchain;
use crate::workspace::Workspace;
use boot::Machine;
use counts::Counts;
use report::Report;
use suites::Suite;
use verdict::Verdict;

/// The variable that has the suite `verifier` search all pending jumps, and load programs with all flags of the
/// agent: `true` or `false`.
const ALL_OF_VERIFIER: &str = "TOPO_LB_ALL_OF_VERIFIER";

/// Whether kernels and emulator are present, or can be downloaded. A virtual machine runs programs
/// compiled for this machine, so both have the same architecture.
pub(crate) fn is_obtainable() -> bool {
    cfg!(target_arch = "x86_64") && are_obtainable(Architecture::X86_64, &Line::HERE)
}

/// As [`is_obtainable`], for arm64, whose programs are cross-compiled.
pub(crate) fn is_arm64_obtainable() -> bool {
    are_obtainable(Architecture::Arm64, &[Line::Arm64])
}

/// Compiles what [`run`] takes for arm64 with every kernel; nothing if it will not boot that one.
///
/// # Errors
/// The machine lacks a compiler, a kernel cannot be fetched, or the suites do not compile.
pub(crate) fn compile_for_arm64(workspace: &Workspace, compiler: &Toolchain) -> Result<()> {
    let inputs = accepted::of(workspace, &ready(workspace, &Line::ALL)?)?;
    if Counts::read(workspace)?.are_of(&inputs) {
        return Ok(());
    }
    guest::build(workspace, Architecture::Arm64, compiler).map(drop)
}

fn ready(workspace: &Workspace, lines: &[Line]) -> Result<Vec<DebianKernel>> {
    lines.iter().map(|line| debian_kernel::ready(workspace, *line)).collect()
}

fn are_obtainable(architecture: Architecture, lines: &[Line]) -> bool {
    emulator::is_obtainable(architecture) && debian_kernel::are_obtainable(lines)
}

/// What a run of the kernels is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    /// The machines of the command line.
    pub(crate) variants: &'a [&'static Variant],
    pub(crate) counting: Counting,
    /// Whether machines that passed, and have not changed since, are booted all the same.
    pub(crate) anew: bool,
}

impl Asked<'_> {
    /// Whether [`run`] takes the arm64 agent of a release: only the whole of the suites calls the agent there.
    pub(crate) fn takes_arm64_agent(&self) -> bool {
        self.variants.iter().any(|it| it.line == Line::Arm64)
    }
}

/// Runs the suites on all kernels at once: their tests wait often.
///
/// # Errors
/// A suite fails, or a machine does not finish; the other kernels' suites still run.
pub(crate) fn run(
    workspace: &Workspace,
    compiler: &Toolchain,
    asked: Asked<'_>,
) -> Result<Outcome> {
    let counting = asked.counting;
    let (variants, mut scope) = match asked.variants.is_empty() {
        true => (Variant::plain().collect(), Scope::Short),
        false => (asked.variants.to_vec(), Scope::Whole),
    };
    let lines: Vec<Line> = variants.iter().map(|it| it.line).collect();
    let kernels = ready(workspace, &lines)?;
    let mut counts = Counts::read(workspace)?;
    let inputs = accepted::of(workspace, &kernels)?;
    let mut guests: Vec<_> = variants.into_iter().zip(kernels).collect();
    if scope == Scope::Short
        && counting == Counting::Compare
        && !asked.anew
        && counts.are_of(&inputs)
    {
        scope = Scope::Accepted;
        guests.retain(|(variant, _)| !suites::of(scope, variant).is_empty());
    }
    let scope_of = |variant: &Variant| if variant.is_variant() { Scope::Variant } else { scope };
    let has_plain = guests.iter().any(|(variant, _)| !variant.is_variant());
    let mut supplies = BTreeMap::new();
    for architecture in guests.iter().map(|it| it.0.line.architecture()).collect::<BTreeSet<_>>() {
        let emulator = emulator::ready(workspace, architecture)?;
        let programs = guest::build(workspace, architecture, compiler)?;
        supplies.insert(architecture, (emulator, programs));
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    // Otherwise the suite searches the pending jumps only of programs with another number of
    // instructions than in the repository: a verifier that counts the same has done the same.
    let all_of_verifier = scope == Scope::Whole;
    let here = supplies.get(&Architecture::X86_64).filter(|_| has_plain);
    let here = here.map(|(_, programs)| programs);
    let mut unchecked = match (counts::host_column(release.trim()), here) {
        (_, None) => None,
        (Some(column), Some(programs)) => {
            let output = verify_here(workspace, programs, all_of_verifier)?;
            let verified = Report::read(&output).verified;
            let unchecked = unchecked([output.as_str()]);
            match &unchecked {
                None => counts.set(column, verified),
                Some(_) => counts.set_part(column, verified),
            }
            unchecked
        }
        (None, _) => Some(format!(
            "this machine's verifier was NOT compared: {} has no column for Linux {}",
            counts::PATH,
            release.trim()
        )),
    };
    let mut machines = Vec::new();
    for (variant, kernel) in &guests {
        let name = variant.name;
        let architecture = variant.line.architecture();
        let (emulator, programs) = supplies.get(&architecture).context("no emulator")?;
        let initramfs = workspace.target.join("virtual-machine").join(format!("initramfs-{name}"));
        let scope = scope_of(variant);
        // Beside the other machines, arm64 needs more than half an hour for this.
        let all_of_verifier = scope == Scope::Whole
            && (architecture == Architecture::X86_64 || counting == Counting::Keep);
        guest::pack(workspace, variant, kernel, programs, scope, all_of_verifier, &initramfs)?;
        let log = workspace.log(&format!("linux-{name}"));
        let limit = limit(scope, counting);
        let machine = Machine { variant, emulator, image: &kernel.image, initramfs, log, limit };
        let verdict = Verdict::of(workspace, &machine)?;
        machines.push((machine, verdict));
    }
    let ends = boot(workspace, &machines, asked.anew);
    if caught() != 0 {
        bail!("interrupted");
    }
    let mut failures = Vec::new();
    let mut unchanged = 0;
    for (((variant, kernel), (machine, verdict)), end) in guests.iter().zip(&machines).zip(ends) {
        let how = match &end {
            End::Unchanged => "unchanged since it passed".to_owned(),
            End::Booted(_, took) => clock(*took),
        };
        let release = &kernel.release;
        progress::note(&match variant.is_variant() {
            true => format!("{}, Linux {release}: {how}", variant.name),
            false => format!("Linux {release}: {how}"),
        });
        unchanged += u32::from(matches!(end, End::Unchanged));
        let (name, scope) = (variant.name, scope_of(variant));
        match judge(machine, &suites::of(scope, variant), scope, end) {
            Ok(report) => {
                verdict.keep(&read(&machine.log)?)?;
                if matches!(scope, Scope::Short | Scope::Whole) {
                    counts.set(name, report.verified);
                }
            }
            Err(error) => {
                verdict.forget();
                progress::warn(&format!("{name}: {error:#}"));
                failures.push(name);
            }
        }
    }
    if has_plain {
        for text in counts.table() {
            progress::note(&text);
        }
    }
    if !failures.is_empty() {
        bail!("suites failed on {}", failures.join(", "));
    }
    if let unknown @ [_, ..] = &counts.unknown()[..] {
        unchecked = Some(format!(
            "the verifier's counts on {} were NOT compared: {} has none; --bless writes them",
            unknown.join(", "),
            counts::PATH
        ));
    }
    let drifts = counts.drifts();
    match counting {
        Counting::Keep => {
            let is_of_all = scope == Scope::Short;
            counts.write(workspace, is_of_all.then_some(inputs.as_str()))?;
        }
        Counting::Compare if drifts.is_empty() => {}
        Counting::Compare => bail!(
            "the verifiers count other numbers than {}:\n  {}\n  if that is intended, run this \
             again with --bless, and commit the file",
            counts::PATH,
            drifts.join("\n  ")
        ),
    }
    let mut remarks = Vec::new();
    if scope == Scope::Accepted {
        let path = counts::PATH;
        remarks.push(format!(
            "Debian's verifiers not asked: nothing has changed for them since {path}"
        ));
    }
    if unchanged > 0 {
        let all = guests.len();
        remarks.push(format!("{unchanged} of {all} unchanged since they passed"));
    }
    let remark = (!remarks.is_empty())
        .then(|| format!("{}; --only kernels does all again", remarks.join("; ")));
    Ok(match (unchecked, remark) {
        (None, remark) => Outcome::Passed(remark),
        (Some(what), None) => Outcome::Unchecked(what),
        (Some(what), Some(remark)) => Outcome::Unchecked(format!("{what}; {remark}")),
    })
}

/// What to do with the verifiers' counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    /// Compare them with the file in the repository.
    Compare,
    /// Write them to the file in the repository.
    Keep,
}

/// What the suite `verifier` prints with this machine's own kernel.
fn verify_here(
    workspace: &Workspace,
    programs: &guest::Programs,
    all_of_verifier: bool,
) -> Result<String> {
    let log = workspace.log("verifier-host");
    let mut command = workspace.command(programs.suites());
    command.args([&crate::suites::filter("verifier"), "--nocapture"]);
    command.env("TOPO_LB_EBPF_OBJECT", workspace.object());
    command.env(ALL_OF_VERIFIER, all_of_verifier.to_string());
    crate::process::run_logged("this machine's verifier", &mut command, &log)?;
    read(&log)
}

/// How a machine ended.
enum End {
    /// It passed earlier, and was not booted again.
    Unchanged,
    Booted(Result<()>, Duration),
}

/// Boots machines, and waits until they end. Unless `anew`, leaves out those that are as when they
/// passed; their logs get the output of that time.
fn boot(workspace: &Workspace, machines: &[(Machine<'_>, Verdict)], anew: bool) -> Vec<End> {
    let names: Vec<&str> = machines.iter().map(|(machine, _)| machine.variant.name).collect();
    let running = Running::start(format!("Linux {}", names.join(", ")));
    let run = |(machine, verdict): &(Machine<'_>, Verdict)| {
        if let Some(output) = verdict.passed().filter(|_| !anew)
            && fs::write(&machine.log, output).is_ok()
        {
            return End::Unchanged;
        }
        let begun = Instant::now();
        let ended = machine.run(workspace, |line| running.tick(line));
        End::Booted(ended, begun.elapsed())
    };
    // The tests of plain machines wait often, and those of variants are many.
    let has_variants = machines.iter().any(|(machine, _)| machine.variant.is_variant());
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let lanes = if has_variants { cores } else { machines.len() };
    let next = AtomicUsize::new(0);
    let lane = || {
        let mut ends = Vec::new();
        while let place = next.fetch_add(1, Ordering::Relaxed)
            && let Some(machine) = machines.get(place)
        {
            ends.push((place, run(machine)));
        }
        ends
    };
    let mut ends: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
        threads
            .into_iter()
            .flat_map(|it| it.join().unwrap_or_else(|it| resume_unwind(it)))
            .collect()
    });
    ends.sort_by_key(|(place, _)| *place);
    let ends: Vec<_> = ends.into_iter().map(|(_, end)| end).collect();
    running.end(!ends.iter().any(|end| matches!(end, End::Booted(Err(_), _))));
    ends
}

/// Reads the report of a machine that has ended.
fn judge(machine: &Machine<'_>, suites: &[Suite], scope: Scope, end: End) -> Result<Report> {
    let said = read(&machine.log)?;
    let report = Report::read(&said);
    for text in report.lines() {
        progress::note(&format!("  {text}"));
    }
    let ended = if let End::Booted(ended, _) = end { ended } else { Ok(()) };
    if let Err(error) = ended.and_then(|()| suites::judge(suites, scope, &report)) {
        for text in report::excerpt(&said) {
            progress::note(&format!("│ {text}"));
        }
        return Err(error.context(format!("its whole output: {}", machine.log.display())));
    }
    // The file is as large as all programs together.
    fs::remove_file(&machine.initramfs)?;
    Ok(report)
}

/// Several times what two cores need.
fn limit(scope: Scope, counting: Counting) -> Duration {
    let minutes = match (scope, counting) {
        (Scope::Accepted, _) | (Scope::Short, Counting::Compare) => 30,
        _ => 90,
    };
    Duration::from_secs(minutes * 60)
}

fn read(log: &Path) -> Result<String> {
    let bytes = fs::read(log)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
