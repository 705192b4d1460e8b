//! The bill, step by step as docs/cost.md has it: what is paid now, what to bind, what it costs afterwards. Each
//! figure is compared with what curl says that it moved.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use serde_json::{Value, json};
use topo_lb_tests::binary::{Binary, json_of, row};
use topo_lb_tests::folder::Folder;
use topo_lb_tests::prefix::Prefix;
use topo_lb_tests::requirements;
use topo_lb_tests::wait::until;

use super::SOON;
use super::answers::{POOLS, answers, client_of, only_from, shell_on};
use super::load::Stage;

/// The Services of this scenario: one has servers in the second pool alone, which is zone b; the other in both.
const FAR: &str = "billed-far";
const BOTH: &str = "billed-both";
/// Requests of a pool's client to a Service in one turn.
const TURN: u32 = 40;
/// So much for a GB that a few requests cost something: a byte costs a thousandth.
const PRICES: &str = "zone=1000000,region=1000000";
const BYTE: f64 = 0.001;

/// TCP payload of a Service's connections, both ways together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Moved {
    /// Between a client and a server of its own zone.
    near: u64,
    far: u64,
}

type Bill = BTreeMap<&'static str, Moved>;

pub(crate) fn the_bill_is_what_pods_move(stage: &mut Stage<'_>) -> Result<()> {
    let server = json!({"app": "united-deployment1"});
    let far = json!({"app": "united-deployment1", "pool": POOLS[1].0});
    let services = [(FAR, far), (BOTH, server)].map(|(name, selector)| {
        let ports = [json!({"port": 80, "targetPort": 9_376})];
        let spec = json!({"selector": selector, "ports": ports});
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
    });
    stage.kubernetes.plane().create(services)?;
    for service in [FAR, BOTH] {
        until("answers of the new Service", SOON, || {
            let script = format!("curl -s -o /dev/null -m 2 {service}:80 && echo up || echo down");
            let client = client_of(POOLS[0].0);
            let said = stage.kubernetes.kubectl(&["exec", &client, "--", "sh", "-c", &script])?;
            Ok(if said.contains("up") { Ok(()) } else { Err(said) })
        })?;
    }
    // What the look at whether they answer has moved is no part of it.
    let begun = settled(stage)?;

    // What is paid now?
    let now = take_a_turn(stage)?;
    let counted = until_counted(stage, &begun, &now)?;
    let [far_now, both_now] = [FAR, BOTH].map(|name| now[name].far);
    ensure!(far_now > 0 && both_now > 0 && now[BOTH].near > 0, "{now:?}");

    // What is to be bound?
    let metrics = save_metrics(stage)?;
    let advice = {
        let mut command = Binary::new(requirements::agent()?).command(&[
            "plan",
            "--advise",
            "--scope",
            "opt-in",
            "--price",
            PRICES,
            "-o",
            "json",
            "--metrics",
        ]);
        command.arg(metrics.path()).arg("--kubeconfig").arg(stage.kubernetes.kubeconfig()?);
        json_of(command)?
    };
    let advised = row(&advice["services"], "name", BOTH)?;
    let left = row(&advice["left"], "name", FAR)?;
    let is_of = |money: &Value, service| {
        let bytes = counted[service].far as f64;
        money.as_f64().is_some_and(|it| (it / BYTE - bytes).abs() < 0.5)
    };
    ensure!(is_of(&advised["money"]["before"], BOTH), "{advised}, and {counted:?}");
    ensure!(is_of(&left["money"], FAR), "{left}, and {counted:?}");
    ensure!(advised["money"]["after"] == 0.0, "{advised}");
    let predicted = far_now as f64;

    // The worst one is bound, with the words of the advice.
    let command = advised["command"].as_str().context("no command")?;
    let words = command.split_whitespace().skip(1).map(|word| word.trim_matches('\''));
    stage.kubernetes.kubectl(&words.collect::<Vec<_>>())?;
    for (pool, _) in POOLS {
        until("answers of the own pool alone", SOON, || {
            let answers = answers(&stage.kubernetes, &client_of(pool), BOTH)?;
            Ok(only_from(pool, &answers).map_err(|error| error.to_string()))
        })?;
    }

    // What did it save?
    let bound = settled(stage)?;
    let then = take_a_turn(stage)?;
    until_counted(stage, &bound, &then)?;
    let afterwards = (then[FAR].far + then[BOTH].far) as f64;
    let ratio = predicted / afterwards;
    eprintln!(
        "    {} B out of the zone, {predicted} predicted, {afterwards} afterwards",
        far_now + both_now
    );
    ensure!((0.98..=1.02).contains(&ratio), "{predicted} predicted, {afterwards} afterwards");
    stage.kubernetes.kubectl(&["delete", "service", FAR, BOTH]).map(drop)
}

/// Clients of all pools ask both Services. Returns what that has moved, as curl counts it.
fn take_a_turn(stage: &Stage<'_>) -> Result<Bill> {
    let mut bill = Bill::from([FAR, BOTH].map(|name| (name, Moved::default())));
    for (pool, _) in POOLS {
        for (service, moved) in &mut bill {
            let script = format!(
                "for i in $(seq {TURN}); do curl -s -m 15 -w ' %{{size_request}} %{{size_header}} \
                 %{{size_download}}\\n' http://{service}/hostname; done"
            );
            let client = client_of(pool);
            let said = stage.kubernetes.kubectl(&["exec", &client, "--", "sh", "-c", &script])?;
            for line in said.lines() {
                let [server, sizes @ ..] = &line.split(' ').collect::<Vec<_>>()[..] else {
                    anyhow::bail!("{said}");
                };
                let bytes: u64 =
                    sizes.iter().map(|size| size.parse::<u64>()).sum::<Result<_, _>>()?;
                let is_near = server.starts_with(&format!("united-deployment1-{pool}-"));
                *(if is_near { &mut moved.near } else { &mut moved.far }) += bytes;
            }
            ensure!(said.lines().count() == TURN as usize, "{service} from {pool}: {said}");
        }
    }
    Ok(bill)
}

/// The agents' metrics, a file for each node.
fn save_metrics(stage: &Stage<'_>) -> Result<Folder> {
    let folder = Folder::make(Prefix::new().folder())?;
    for worker in stage.kubernetes.workers() {
        let url = format!("http://{}:19876/metrics", worker.address());
        let text = shell_on(worker, &format!("curl -sf -m 5 {url}"))?;
        fs::write(folder.path().join(worker.name()), text)?;
    }
    Ok(folder)
}

/// What agents have counted of both Services since they started.
fn counted(stage: &Stage<'_>) -> Result<Bill> {
    let mut bill = Bill::from([FAR, BOTH].map(|name| (name, Moved::default())));
    let metrics = save_metrics(stage)?;
    for worker in stage.kubernetes.workers() {
        for line in fs::read_to_string(metrics.path().join(worker.name()))?.lines() {
            let is_bytes = ["sent", "received"]
                .iter()
                .any(|way| line.starts_with(&format!("topo_lb_tcp_{way}_bytes_total{{")));
            for (service, moved) in &mut bill {
                if is_bytes && line.contains(&format!("service=\"{service}\"")) {
                    let number = line.rsplit(' ').next().unwrap_or_default().parse::<f64>()?;
                    let near = ["node", "zone"].map(|it| format!("locality=\"{it}\""));
                    let is_near = near.iter().any(|label| line.contains(label));
                    *(if is_near { &mut moved.near } else { &mut moved.far }) += number as u64;
                }
            }
        }
    }
    Ok(bill)
}

/// The same once it stays as it is: ends of connections are counted each second.
fn settled(stage: &Stage<'_>) -> Result<Bill> {
    let mut last = counted(stage)?;
    let mut same = 0;
    until("counts that stay", SOON, || {
        let now = counted(stage)?;
        same = if now == last { same + 1 } else { 0 };
        last = now;
        Ok(if same == 5 { Ok(()) } else { Err(format!("{last:?}")) })
    })?;
    Ok(last)
}

/// Waits until agents have counted what was moved since then, to the byte. Returns all that they have counted.
fn until_counted(stage: &Stage<'_>, begun: &Bill, moved: &Bill) -> Result<Bill> {
    let sum = |service| {
        let (before, moved): (Moved, Moved) = (begun[service], moved[service]);
        (service, Moved { near: before.near + moved.near, far: before.far + moved.far })
    };
    let wanted = Bill::from([FAR, BOTH].map(sum));
    until("what curl has moved in the agents' metrics", SOON, || {
        let now = counted(stage)?;
        Ok(if now == wanted { Ok(()) } else { Err(format!("{now:?} in place of {wanted:?}")) })
    })?;
    Ok(wanted)
}
