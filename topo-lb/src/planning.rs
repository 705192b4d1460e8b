//! `topo-lb plan`: what a change would do, which changes save most, and what one has saved.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};
use serde_json::json;
use topo_lb::aside::say;
use topo_lb::cli::{Output, PlanArgs, kube_target};
use topo_lb::commands::agent_metrics;
use topo_lb_core::cluster::{ServiceId, State};
use topo_lb_core::lint::{self, Finding, Severity};
use topo_lb_core::topology::Scope;
use topo_lb_core::topology::evacuation::Evacuation;
use topo_lb_core::what_if::{self, Chosen, Figures, Proxied, Report, SettingError};
use topo_lb_kube::source::Listing;

use crate::block_on;
use crate::printing::{colours, print};
use crate::reading::{cluster, known_scope, read_api_server, read_manifests, say_skipped, unknown};

pub(crate) fn run_plan(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    args.check().unwrap_or_else(|error| error.exit());
    if args.since.is_some() {
        return since(args);
    }
    let is_stdin = |path: &Path| path == Path::new("-");
    let is_both = [&args.from, &args.to].map(|path| path.as_deref().is_some_and(is_stdin));
    if is_both == [true, true] {
        bail!("--from and --to cannot both be standard input: name a file for one of them");
    }
    let mut faults = 0;
    let mut read = |place: String, listing: Listing| {
        listing.faults.iter().for_each(|it| say(&it.sentence));
        faults += listing.faults.len();
        let state = cluster(listing.updates, "");
        what_if::whole(&state).context(place)?;
        anyhow::Ok(state)
    };
    let before = match &args.from {
        Some(path) => read(format!("--from {}", path.display()), read_manifests(path)?)?,
        None => {
            let target = kube_target(args.kubeconfig.as_deref(), &args.api_server);
            read("the cluster".to_owned(), read_api_server(&target, false)?)?
        }
    };
    let target = || kube_target(args.kubeconfig.as_deref(), &args.api_server);
    let scope = known_scope(&args.scope, args.from.is_none().then(target)).unwrap_or_default();
    if args.advise {
        return advise(args, &before, scope);
    }
    let mut after = match &args.to {
        Some(path) => read(format!("--to {}", path.display()), read_manifests(path)?)?,
        None => before.clone(),
    };
    if let Some(text) = &args.without {
        if let Some(why) =
            Evacuation::read(text)?.labels.iter().find_map(|it| unknown(*it, &before))
        {
            bail!("--without: {why}");
        }
        what_if::evacuate(&mut after, text)?;
    }
    what_if::apply(&mut after, &args.set).map_err(|error| match error {
        SettingError::NoService(_) => anyhow!("--set: {error}; create it in a file for --to"),
        other => anyhow!("--set: {other}"),
    })?;
    let services = || before.services().chain(after.services());
    if let Some(missing) = missing(&args.services, services) {
        bail!("there is no {missing}");
    }
    let asked = services().filter(|id| args.services.iter().any(|one| one.has(id)));
    let asked: BTreeSet<ServiceId> = asked.cloned().collect();
    say_skipped(&after, &asked);
    if !before.nodes().chain(after.nodes()).any(|(_, labels)| labels.get(&args.by).is_some()) {
        say(format_args!("no Node carries the label {}, so all nodes are one group", args.by));
    }
    let (figures, doubts) = figures(args, &before)?;
    if args.costs_nothing() {
        say("--price needs the bytes that clients moved: --prometheus URL, or --metrics");
    }
    let new = brought(&before, &after, args.set.iter().map(what_if::Setting::service).collect());
    doubts.iter().chain(&new).for_each(say);
    let (before, after) = (Proxied::of(before, scope), Proxied::of(after, scope));
    let mut report = what_if::compare(&before, &after, &args.by, &asked, figures.as_ref());
    report.cost = figures.and_then(|it| what_if::cost(&before, &after, &it, args.prices()));
    if let Some(text) = &args.without {
        return rehearse(args.output, [&before, &after], text, report, &asked);
    }
    print(args.output, &report, || what_if::table(&report, colours()))?;
    let is_clean = faults == 0
        && new.is_empty()
        && !report.services.iter().any(what_if::ServicePort::is_problem);
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What an evacuation does, on one page; then what was asked for, in full. Fails if nodes are refused that are not
/// meant to be.
pub(crate) fn rehearse(
    output: Output,
    [before, after]: [&Proxied; 2],
    text: &str,
    mut report: Report<'_>,
    asked: &BTreeSet<ServiceId>,
) -> anyhow::Result<ExitCode> {
    let evacuation = Evacuation::read(text)?;
    let without = what_if::rehearse(before, after, &evacuation, &report);
    let is_clean = without.refused.iter().all(|it| it.intended);
    let both = json!({"without": without, "plan": report});
    print(output, &both, || {
        let page = what_if::without_table(&without, &report, colours());
        report.services.retain(|port| asked.contains(&port.service()));
        if report.services.is_empty() {
            page
        } else {
            page + "\n" + &what_if::table(&report, colours())
        }
    })?;
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The policies that save most.
fn advise(args: &PlanArgs, state: &State, scope: Scope) -> anyhow::Result<ExitCode> {
    if let Some(missing) = missing(&args.services, || state.services()) {
        bail!("there is no {missing}");
    }
    let (figures, doubts) = figures(args, state)?;
    doubts.iter().for_each(say);
    let figures = figures.context("--advise needs --metrics or --prometheus")?;
    let asked = what_if::Asked {
        scope,
        figures: &figures,
        prices: args.prices(),
        max_load: args.max_load,
        min_saving: args.min_saving,
        chosen: &args.services,
    };
    let advice = what_if::advise(state, &asked);
    if let Some(folder) = &args.manifests {
        fs::create_dir_all(folder).with_context(|| format!("the folder {}", folder.display()))?;
        for one in &advice.services {
            // Names of Kubernetes have no `_`.
            let path = folder.join(format!("{}_{}.yaml", one.namespace, one.name));
            fs::write(&path, one.manifest()).with_context(|| path.display().to_string())?;
        }
        let (made, s) = (advice.services.len(), if advice.services.len() == 1 { "" } else { "s" });
        let folder = folder.display();
        say(format_args!("{made} file{s} written: kubectl apply --server-side -f {folder}"));
    }
    print(args.output, &advice, || what_if::advice_table(&advice, colours()))?;
    Ok(ExitCode::SUCCESS)
}

/// The first of `chosen` that is none of the Services.
fn missing<'a, I: Iterator<Item = &'a ServiceId>>(
    chosen: &[Chosen],
    services: impl Fn() -> I,
) -> Option<&Chosen> {
    chosen.iter().find(|one| !services().any(|id| one.has(id)))
}

/// What has changed since a moment.
fn since(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let prometheus = args.asked().context("--since needs --prometheus")?;
    let (bytes, doubts) = block_on(prometheus.since())?.context("--prometheus")?;
    for doubt in &doubts {
        say(format_args!("--prometheus: {doubt}"));
    }
    let over = prometheus.over.as_str();
    let counted = || bytes.before.iter().chain(&bytes.after).map(|it| &it.service);
    if let Some(missing) = missing(&args.services, counted) {
        bail!(
            "--prometheus: it has no bytes of {missing} in the last {over} or in the {over} before"
        );
    }
    let since = what_if::since(over, args.prices(), &args.services, bytes);
    print(args.output, &since, || what_if::since_table(&since, colours()))?;
    Ok(ExitCode::SUCCESS)
}

/// What `lint` warns of in these Services after the change, and did not before.
fn brought(before: &State, after: &State, services: BTreeSet<&ServiceId>) -> Vec<String> {
    let known = lint::findings_on(before, Scope::All, services.iter().copied());
    let now = lint::findings_on(after, Scope::All, services);
    let is_new = |it: &Finding| it.severity < Severity::Info && !known.contains(it);
    let say = |it: Finding| format!("{}/{}: {}", it.namespace, it.name, it.message);
    now.into_iter().filter(is_new).map(say).collect()
}

/// What agents have counted, and sentences on what of it does not fit the cluster as it is.
fn figures(args: &PlanArgs, before: &State) -> anyhow::Result<(Option<Figures>, Vec<String>)> {
    let (flag, figures, doubts) = if let Some(prometheus) = args.asked() {
        let asked = block_on(prometheus.figures(before))?;
        let (figures, doubts) = asked.context("--prometheus")?;
        ("--prometheus", figures, doubts)
    } else if args.metrics.is_empty() {
        return Ok((None, Vec::new()));
    } else {
        let scraped = block_on(agent_metrics::read(&args.metrics))?.context("--metrics")?;
        let figures = agent_metrics::figures(&scraped).context("--metrics")?;
        let doubts = figures.doubts(before);
        ("--metrics", figures, doubts)
    };
    Ok((Some(figures), doubts.iter().map(|doubt| format!("{flag}: {doubt}")).collect()))
}
