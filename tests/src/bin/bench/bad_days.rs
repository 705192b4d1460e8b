//! What it costs an agent that all Services return their connections and start endpoints slowly while a zone is
//! evacuated: the same cluster with and without, one after the other.

use anyhow::Result;
use serde_json::{Value, json};
use topo_lb_tests::population::Population;

use crate::control_plane::{Asks, one_size};
use crate::ground::{Effort, Ground, HERE};
use crate::policies::policy;
use crate::result::Figure;

/// The number of the zone that is evacuated: the last of the population's three.
pub(crate) const EVACUATED: u32 = 2;

pub(crate) fn measure(
    ground: &Ground<'_>,
    effort: Effort,
    say: &dyn Fn(&str),
) -> Result<Vec<Figure>> {
    let (services, endpoints) = effort.of((1_000, 10), (10_000, 10));
    let population = Population::new(HERE, effort.of(100, 1_000), services, endpoints);
    let mut all = Vec::new();
    for (asks, in_force) in
        [(Asks::Nothing, "nothing"), (Asks::BadDays, "evacuation, return, slow start")]
    {
        say(&format!("control plane, {services} Services, in force: {in_force}"));
        let found = one_size(ground, effort, &population, asks)?.into_iter();
        let kept = found.filter(|it| ["rss_mb", "event_to_map_p99_ms"].contains(&&*it.name));
        all.extend(kept.map(|figure| figure.with("services", services).with("in_force", in_force)));
    }
    Ok(all)
}

/// The policies: one for all Services, and an evacuation.
pub(crate) fn objects() -> Vec<Value> {
    let zone = format!("topology.kubernetes.io/zone=zone-{EVACUATED}");
    let all = json!({"return": "10m", "slowStart": "60s"});
    vec![
        policy("ClusterTopologyPolicy", "bad-days", all),
        policy("ClusterTopologyPolicy", "evacuated", json!({"evacuate": zone})),
    ]
}
