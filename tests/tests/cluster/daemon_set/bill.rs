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
use super::answers::{POOLS, client_of, shell_on};
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
    // Everything that was asked of them.
    let mut all = nothing();
    for service in [FAR, BOTH] {
        until("answers of the new Service", SOON, || {
            let answered = ask(stage, POOLS[0].0, service, 1)?;
            all.entry(service).or_default().add(answered);
            Ok(if answered == Moved::default() { Err("none") } else { Ok(()) })
        })?;
    }

    // What is paid now?
    let now = take_a_turn(stage, &mut all)?;
    ensure!(now[FAR].far > 0 && now[BOTH].far > 0 && now[BOTH].near > 0, "{now:?}");
    until_counted(stage, &all)?;

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
    let is_of = |money: &Value, bytes: u64| {
        money.as_f64().is_some_and(|it| (it / BYTE - bytes as f64).abs() < 0.5)
    };
    ensure!(is_of(&advised["money"]["before"], all[BOTH].far), "{advised}, and {all:?}");
    ensure!(is_of(&left["money"], all[FAR].far), "{left}, and {all:?}");
    // What it will cost, in money of all that was counted; a turn is this part of it.
    let after = [&left["money"], &advised["money"]["after"]];
    let after: f64 = after.iter().filter_map(|money| money.as_f64()).sum();
    let predicted = after / BYTE * now[FAR].far as f64 / all[FAR].far as f64;

    // The worst one is bound, with the words of the advice.
    let command = advised["command"].as_str().context("no command")?;
    let words = command.split_whitespace().skip(1).map(|word| word.trim_matches('\''));
    stage.kubernetes.kubectl(&words.collect::<Vec<_>>())?;
    until("a policy of both agents", SOON, || {
        let near = |pool| ask(stage, pool, BOTH, 8);
        let [one, other] = [near(POOLS[0].0)?, near(POOLS[1].0)?];
        all.entry(BOTH).or_default().add(one);
        all.entry(BOTH).or_default().add(other);
        Ok(if one.far + other.far == 0 { Ok(()) } else { Err(format!("{one:?}, {other:?}")) })
    })?;

    // What did it save?
    let then = take_a_turn(stage, &mut all)?;
    until_counted(stage, &all)?;
    let afterwards = (then[FAR].far + then[BOTH].far) as f64;
    eprintln!(
        "    out of the zone: {} B, predicted {predicted} B, afterwards {afterwards} B",
        now[FAR].far + now[BOTH].far
    );
    ensure!((0.98..=1.02).contains(&(predicted / afterwards)), "{now:?}, {then:?}");
    stage.kubernetes.kubectl(&["delete", "service", FAR, BOTH]).map(drop)
}

impl Moved {
    fn add(&mut self, more: Self) {
        self.near += more.near;
        self.far += more.far;
    }
}

fn nothing() -> Bill {
    [FAR, BOTH].map(|name| (name, Moved::default())).into()
}

/// Clients of all pools ask both Services. Returns what that has moved, and adds it to `all`.
fn take_a_turn(stage: &Stage<'_>, all: &mut Bill) -> Result<Bill> {
    let mut turn = nothing();
    for (pool, _) in POOLS {
        for (service, moved) in &mut turn {
            let answered = ask(stage, pool, service, TURN)?;
            moved.add(answered);
            all.entry(service).or_default().add(answered);
        }
    }
    Ok(turn)
}

/// A pool's client asks a Service so many times. Returns what that has moved, as curl counts it; without an answer
/// nothing.
fn ask(stage: &Stage<'_>, pool: &str, service: &str, times: u32) -> Result<Moved> {
    let script = format!(
        "for i in $(seq {times}); do curl -s -m 15 -w ' %{{size_request}} %{{size_header}} \
         %{{size_download}}\n' http://{service}/hostname; done; true"
    );
    let client = client_of(pool);
    let said = stage.kubernetes.kubectl(&["exec", &client, "--", "sh", "-c", &script])?;
    let mut moved = Moved::default();
    for line in said.lines() {
        let mut words = line.split(' ');
        let server = words.next().unwrap_or_default();
        let bytes: u64 =
            words.map(str::parse::<u64>).sum::<Result<_, _>>().context(said.clone())?;
        let is_near = server.starts_with(&format!("united-deployment1-{pool}-"));
        *(if is_near { &mut moved.near } else { &mut moved.far }) += bytes;
    }
    Ok(moved)
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

/// What agents have counted of both Services, but for direct dials: kubelets probe their Pods by address.
fn counted(stage: &Stage<'_>) -> Result<Bill> {
    let mut bill = nothing();
    let metrics = save_metrics(stage)?;
    for worker in stage.kubernetes.workers() {
        for line in fs::read_to_string(metrics.path().join(worker.name()))?.lines() {
            let has = |label: &str, value: &str| line.contains(&format!("{label}=\"{value}\""));
            let is_bytes = ["sent", "received"]
                .iter()
                .any(|way| line.starts_with(&format!("topo_lb_tcp_{way}_bytes_total{{")));
            for (service, moved) in &mut bill {
                if is_bytes && has("service", service) && !has("tier", "direct") {
                    let number: f64 = line.rsplit(' ').next().unwrap_or_default().parse()?;
                    let is_near = has("locality", "node") || has("locality", "zone");
                    *(if is_near { &mut moved.near } else { &mut moved.far }) += number as u64;
                }
            }
        }
    }
    Ok(bill)
}

/// Waits until agents have counted what was moved, to the byte.
fn until_counted(stage: &Stage<'_>, moved: &Bill) -> Result<()> {
    until("what curl has moved in the agents' metrics", SOON, || {
        let counted = counted(stage)?;
        let is_all = counted == *moved;
        Ok(if is_all { Ok(()) } else { Err(format!("{counted:?} in place of {moved:?}")) })
    })
    .map(drop)
}
