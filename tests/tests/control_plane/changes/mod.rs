//! Changes of a cluster under traffic: EndpointSlices split and merge, Services take over an
//! address, nodes move, etcd is compacted, watches break in the middle of an event. API server and
//! controllers are real; no connection fails.

mod endpoints;
mod nodes;
mod outages;
mod slow_start;
mod town;

use anyhow::{Context as _, Result};
use topo_lb_tests::control_plane::AGENT;
use topo_lb_tests::hub::Hub;
use topo_lb_tests::lab::play_all;

use endpoints::{a_cluster_ip_moves, slices_split_and_merge};
use nodes::{nodes_are_watched, nodes_move};
use outages::{database_forgets, database_is_killed, watches_break};
use slow_start::a_pod_starts_slowly;
use town::{Town, within_town};

#[test]
fn no_connection_fails_whatever_changes_in_the_cluster() -> Result<()> {
    within_town(|town| {
        let begin = |town: &mut Town<'_>| {
            let kubeconfig = town.plane.kubeconfig(AGENT)?;
            town.begin("--kubeconfig", &kubeconfig)?;
            town.agent.resume()
        };
        play_all(
            town,
            begin,
            &[
                ("slices split and merge", slices_split_and_merge),
                ("a ClusterIP leads to the Service that has it now", a_cluster_ip_moves),
                ("nodes that move take their endpoints along", nodes_move),
                ("other nodes are watched while a Service reads their labels", nodes_are_watched),
                ("a database that is killed costs no connection", database_is_killed),
            ],
        )
    })
}

#[test]
fn no_connection_fails_when_watches_break_or_the_database_forgets() -> Result<()> {
    within_town(|town| {
        let hub = Hub::start(town.cluster, &town.plane.kubeconfig(AGENT)?)?;
        town.begin("--api-server", Hub::url().as_ref())?;
        watches_break(town, &hub).context("a watch that breaks in the middle of an event")?;
        town.begin("--api-server", Hub::url().as_ref())?;
        database_forgets(town, &hub).context("what the database has forgotten is read anew")
    })
}

#[test]
fn a_pod_that_becomes_ready_gets_a_share_that_grows() -> Result<()> {
    within_town(|town| {
        let kubeconfig = town.plane.kubeconfig(AGENT)?;
        town.begin("--kubeconfig", &kubeconfig)?;
        town.agent.resume()?;
        a_pod_starts_slowly(town)
    })
}
