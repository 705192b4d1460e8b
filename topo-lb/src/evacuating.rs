//! `topo-lb evacuate` and `topo-lb restore`: writes and deletes evacuations of the whole cluster.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::bail;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use topo_lb::aside::{self, say};
use topo_lb::cli::{EvacuateArgs, Output, RestoreArgs, WriteArgs, kube_target, name};
use topo_lb_common::selection::SPILL_ONE;
use topo_lb_core::explain::{empty, some};
use topo_lb_core::topology::evacuation::{Evacuation, object_name, time};
use topo_lb_core::topology::label::ZONE;
use topo_lb_core::what_if::{self, Proxied};
use topo_lb_kube::source::clock::now;
use topo_lb_kube::source::kube::{Server, connect, in_words};
use topo_lb_kube::{evacuation, server_clock};

use crate::block_on;
use crate::planning::rehearse;
use crate::printing::{colours, print, write};
use crate::reading::{cluster, known_scope, read_api_server, unknown};

/// Clocks that differ by more, in seconds, are told.
const APART: u64 = 60;

pub(crate) fn run_evacuate(args: &EvacuateArgs) -> anyhow::Result<ExitCode> {
    let target = || kube_target(args.target.kubeconfig.as_deref(), &args.target.api_server);
    if args.labels.is_empty() {
        return list(args);
    }
    let mut options = String::new();
    if let Some(duration) = &args.duration {
        let now = block_on(async { clock(&connect(&target()).await?).await })??;
        options += &format!("; until={}", after(duration, now)?);
    }
    for (option, value) in [("ramp", &args.ramp), ("allow-strict", &args.allow_strict)] {
        options.extend(value.iter().map(|value| format!("; {option}={value}")));
    }
    if args.force {
        options += "; force=true";
    }
    let text = |labels: &str| format!("{labels}{options}");
    let all = text(&args.labels.join(","));
    Evacuation::read(&all)?;
    if args.ramp.is_some() && args.duration.is_none() {
        bail!("a ramp begins at an end: say when it ends with --for, or give --ramp to `restore`");
    }

    let state = cluster(read_api_server(&target(), false)?.updates, "");
    for label in args.labels.iter().filter(|_| !args.force) {
        if let Some(why) = unknown(split(label), &state) {
            bail!("{why}; nothing is written. --force writes it all the same");
        }
    }
    let scope = known_scope(&args.scope, Some(target())).unwrap_or_default();
    if args.dry_run {
        for label in &args.labels {
            let object = evacuation::manifest(&named(label), &text(label));
            aside::line(object);
        }
    } else {
        block_on(async {
            let server = connect(&target()).await?;
            for label in &args.labels {
                let name = named(label);
                let written = evacuation::write(&server, &name, &text(label)).await;
                written.map_err(|error| refused(&error))?;
                say(format_args!("ClusterTopologyPolicy {name} is written"));
            }
            anyhow::Ok(())
        })??;
    }
    let mut after = state.clone();
    what_if::evacuate(&mut after, &all)?;
    let (before, after) = (Proxied::of(state, scope), Proxied::of(after, scope));
    let report = what_if::compare(&before, &after, ZONE, &BTreeSet::new(), None);
    let code = rehearse(args.output, [&before, &after], &all, report, &BTreeSet::new())?;
    // What is written is done: only a rehearsal fails for what it would refuse.
    Ok(if args.dry_run { code } else { ExitCode::SUCCESS })
}

pub(crate) fn run_restore(args: &RestoreArgs) -> anyhow::Result<ExitCode> {
    let mut missing = Vec::new();
    let there = block_on(async {
        let server = of(&args.target).await?;
        let there = evacuation::list(&server).await.map_err(|error| refused(&error))?;
        let now = if args.ramp.is_some() { clock(&server).await? } else { now() };
        for label in &args.labels {
            let name = named(label);
            let Some((_, text)) = there.iter().find(|(own, _)| *own == name) else {
                missing.push(label.clone());
                continue;
            };
            match &args.ramp {
                Some(ramp) => {
                    let Some(text) = returning(text, ramp, now)? else {
                        say(format_args!(
                            "nothing to restore: {label} has ended, or comes back already: {text}"
                        ));
                        continue;
                    };
                    let written = evacuation::write(&server, &name, &text).await;
                    written.map_err(|error| refused(&error))?;
                    say(format_args!("{label} comes back within {ramp}"));
                }
                None => {
                    let deleted = evacuation::delete(&server, &name).await;
                    deleted.map_err(|error| refused(&error))?;
                    say(format_args!("ClusterTopologyPolicy {name} is deleted"));
                }
            }
        }
        anyhow::Ok(there)
    })??;
    // What is restored already is no mistake; what others evacuate is not this command's to end.
    let holds = |label: &str, text: &str| {
        let is_of = |it: &Evacuation<'_>| it.labels.contains(&split(label));
        let is_over = |it: &Evacuation<'_>| it.share(Some(now())).parts() == 0;
        Evacuation::read(text).is_ok_and(|it| is_of(&it) && !is_over(&it))
    };
    missing.retain(|label| {
        let is_evacuated = there.iter().any(|(_, text)| holds(label, text));
        if !is_evacuated {
            say(format_args!("nothing to restore: {label} is not evacuated"));
        }
        is_evacuated
    });
    if missing.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let there: Vec<String> =
        there.iter().map(|(name, text)| format!("{text} (ClusterTopologyPolicy {name})")).collect();
    bail!(
        "{} is not evacuated by this command; what is: {}; `kubectl delete` ends what others wrote",
        missing.join(", "),
        some(there.iter().map(String::as_str), 5)
    )
}

/// What is evacuated now.
fn list(args: &EvacuateArgs) -> anyhow::Result<ExitCode> {
    let found = block_on(async {
        let server = of(&args.target).await?;
        evacuation::list(&server).await.map_err(|error| refused(&error))
    })??;
    let row = |(name, text): &(String, String)| json!({"name": name, "evacuate": text, "state": state_of(text)});
    let rows: Vec<_> = found.iter().map(row).collect();
    if found.is_empty() && args.output == Output::Table {
        write("nothing is evacuated")?;
        return Ok(ExitCode::SUCCESS);
    }
    print(args.output, &rows, || {
        let mut table = empty(colours());
        table.set_header(["POLICY", "EVACUATES", "STATE"]);
        table.add_rows(
            found.iter().map(|(name, text)| [name.as_str(), text.as_str(), state_of(text)]),
        );
        table.to_string()
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Whether an evacuation holds, by this machine's clock.
fn state_of(text: &str) -> &'static str {
    match Evacuation::read(text).map(|it| it.share(Some(now())).parts()) {
        Err(_) => "ignored: it breaks a rule",
        Ok(SPILL_ONE) => "in force",
        Ok(0) => "ended",
        Ok(_) => "comes back",
    }
}

async fn of(target: &WriteArgs) -> anyhow::Result<Server> {
    Ok(connect(&kube_target(target.kubeconfig.as_deref(), &target.api_server)).await?)
}

/// Why the API server did not do it.
fn refused(error: &kube::Error) -> anyhow::Error {
    let words = in_words(error);
    match error {
        kube::Error::Api(status) if status.code == 404 => anyhow::anyhow!(
            "{words}; the cluster has no ClusterTopologyPolicy: `{} crds | kubectl apply -f -`",
            name::called()
        ),
        _ => anyhow::anyhow!("{words}"),
    }
}

/// What time it is, in seconds since 1970: by the API server if its clock and this machine's differ much.
async fn clock(server: &Server) -> anyhow::Result<i64> {
    let own = now();
    let its = server_clock::now(server).await.map_err(|error| refused(&error))?;
    let Some(its) = its.filter(|its| its.abs_diff(own) > APART) else { return Ok(own) };
    let (apart, how) = (its.abs_diff(own), if its < own { "ahead of" } else { "behind" });
    say(format_args!(
        "this machine's clock is {} min {} s {how} that of the API server, which counts here",
        apart / 60,
        apart % 60
    ));
    Ok(its)
}

/// The moment that is so much later than now.
fn after(duration: &str, now: i64) -> anyhow::Result<Timestamp> {
    let time = time(duration)?;
    if time.is_zero() {
        bail!("--for 0s would end it before it begins");
    }
    Ok(Timestamp::from_second(now.saturating_add_unsigned(time.as_secs()))?)
}

/// The text of an evacuation that ends now, and returns within `ramp`; `None`: it has ended, or does so already.
fn returning(text: &str, ramp: &str, now: i64) -> anyhow::Result<Option<String>> {
    let now = Timestamp::from_second(now)?;
    let until = Evacuation::read(text)?.until;
    if until.is_some_and(|until| until <= now.as_second()) {
        return Ok(None);
    }
    let is_replaced =
        |one: &str| ["until", "ramp"].contains(&one.split('=').next().unwrap_or("").trim());
    let kept = text.split(';').map(str::trim);
    let kept: Vec<&str> = kept.filter(|one| !one.is_empty() && !is_replaced(one)).collect();
    Ok(Some(format!("{}; until={now}; ramp={ramp}", kept.join("; "))))
}

/// The name of the policy for `LABEL=VALUE`.
fn named(label: &str) -> String {
    let (key, value) = split(label);
    object_name(key, value)
}

/// Label and value.
fn split(label: &str) -> (&str, &str) {
    let (key, value) = label.split_once('=').unwrap_or((label, ""));
    (key.trim(), value.trim())
}
