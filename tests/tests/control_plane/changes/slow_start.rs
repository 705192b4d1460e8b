//! A pod that becomes Ready gets a share that grows, by the times that the controller of EndpointSlices writes.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use topo_lb_tests::scene::at;
use topo_lb_tests::wait::{until, until_is};

use super::town::{A, B, IN_SLICE, SOON, Town, WEB, service};

/// Long enough for an agent to restart within a step.
const SLOWLY: &str = "16s";
const STEP: Duration = Duration::from_secs(4);

impl Town<'_> {
    /// The share of each pod of `web` in the maps, in percent of what the most favoured one gets.
    fn shares(&self) -> Result<BTreeMap<String, u64>> {
        let listed = self.agent.list("endpoints")?;
        let rows = listed["endpoints"].as_array().context("endpoints")?;
        let share = |pod: &str| -> Result<f64> {
            let address = self.cluster.pod(pod)?.ipv4.to_string();
            let row = rows.iter().find(|row| {
                row["service"].as_str().is_some_and(|it| it.contains("/web:"))
                    && row["endpoint"]
                        .as_str()
                        .is_some_and(|it| it.starts_with(&format!("{address}:")))
            });
            Ok(row.map_or(0.0, |row| row["sharePercent"].as_f64().unwrap_or(1.0)))
        };
        let all = A.into_iter().chain(B).map(|pod| Ok((pod.to_owned(), share(pod)?)));
        let all: BTreeMap<String, f64> = all.collect::<Result<_>>()?;
        let most = all.values().copied().fold(0.01, f64::max);
        let there = all.into_iter().filter(|(_, share)| *share > 0.0);
        Ok(there.map(|(pod, share)| (pod, (share / most * 100.0).round() as u64)).collect())
    }

    /// Waits until every endpoint has its whole share.
    fn all_are_grown(&self) -> Result<()> {
        let look = || Ok(self.metric("topo_lb_slow_starts", "")?.to_string());
        until_is("Services with young endpoints", SOON * 2, look, |count| count == "0").map(drop)
    }

    /// The steps of one pod's share, from now until it is whole, and what each other pod had meanwhile.
    fn steps_of(&self, pod: &str) -> Result<Vec<u64>> {
        let (began, mut steps) = (Instant::now(), Vec::new());
        while steps.last() != Some(&100) {
            let mut shares = self.shares()?;
            let own = shares.remove(pod).unwrap_or_default();
            ensure!(shares.values().all(|share| *share == 100), "{shares:?} beside {own}");
            if own > 0 && steps.last() != Some(&own) {
                steps.push(own);
            }
            ensure!(began.elapsed() < SOON * 2, "{steps:?}");
        }
        Ok(steps)
    }
}

pub(super) fn a_pod_starts_slowly(town: &mut Town<'_>) -> Result<()> {
    let mut web = service("web", WEB, "web", None);
    web["metadata"]["annotations"] = serde_json::json!({"topo-lb.io/slow-start": SLOWLY});
    town.agent.set("--state-dir", town.cluster.folder().join("state"));
    town.agent.stop()?;
    town.agent.resume()?;
    town.plane.create([web])?;
    town.run("web", &A[..2])?;
    town.answered_by(WEB, &A[..2])?;
    // They have started together, so they share alike. When their time is over, nothing changes.
    let shares = town.shares()?;
    ensure!(shares.len() == 2 && shares.values().all(|share| *share == 100), "{shares:?}");
    sleep(STEP * 5);

    town.answered_during(WEB, |town| {
        town.run("web", &B[..1])?;
        until("the first step", SOON, || {
            let shares = town.shares()?;
            Ok(if shares.get(B[0]) == Some(&10) { Ok(()) } else { Err(format!("{shares:?}")) })
        })?;
        let began = Instant::now();
        let tally = town.call(at(WEB)?, 2_000)?;
        let in_time = began.elapsed() < STEP / 2;
        // One of 21, within six standard deviations; a step later two of 22.
        let of_new = tally.replies.get(B[0]).copied().unwrap_or_default();
        let most = if in_time { 155 } else { 300 };
        ensure!((40..most).contains(&of_new) && tally.answered() == 2_000, "{tally}");
        // An agent that restarts goes on where it was.
        town.agent.stop()?;
        town.agent.resume()?;
        let steps = town.steps_of(B[0])?;
        // It may have restarted beyond a step.
        let whole = [10, 25, 50, 75, 100];
        ensure!((3..6).contains(&steps.len()) && whole.ends_with(&steps), "{steps:?}");
        Ok(())
    })?;

    // Controllers move endpoints between slices as they like; those are as old as before.
    let rest = [&A[2..], &B[1..4]].concat();
    town.run("web", &rest)?;
    town.answered_by(WEB, &[A, B].concat()[..A.len() + 4])?;
    let shares = town.shares()?;
    let young = rest.iter().filter(|pod| shares[**pod] == 10).count();
    ensure!(young > 0 && A[..2].iter().chain(&B[..1]).all(|pod| shares[*pod] == 100), "{shares:?}");
    town.all_are_grown()?;
    let slices = town.slices("web")?;
    ensure!(slices.len() >= 2 && slices.iter().all(|it| it.pods.len() <= IN_SLICE));
    let gone = &slices[1];
    town.plane.delete("EndpointSlice", &[&gone.name])?;
    town.until_slices("web", |now| {
        now.iter().all(|it| it.name != gone.name)
            && now.iter().map(|it| it.pods.len()).sum::<usize>() == rest.len() + 3
    })?;
    town.answered_by(WEB, &[A, B].concat()[..A.len() + 4])
        .context("after a slice was deleted")
        .map(drop)
}
