//! CNI plugins: pods whose network they make.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use serde_json::json;
use topo_lb_tests::cni::{Plugins, attach};
use topo_lb_tests::scene::FOLLOWS;
use topo_lb_tests::town::{Doors, Town, WEST4, visit_wired};
use topo_lb_tests::traffic::Via;

use super::firewall::dial;

/// A town whose pods have this network; `own` checks what the plugins are for.
fn with(
    plugins: Plugins<'_>,
    set: impl FnOnce(&mut Town<'_>) -> Result<()>,
    own: impl FnMut(&mut Town<'_>) -> Result<()>,
) -> Result<()> {
    visit_wired(
        |room, netns, place| attach(room, netns, place, plugins),
        |town| {
            set(town)?;
            town.has(|_| Ok(()), own)
        },
    )
}

#[test]
fn bridge() -> Result<()> {
    with(
        &|place| {
            vec![
                json!({"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": place.pods()}),
            ]
        },
        |_| Ok(()),
        |_| Ok(()),
    )
}

#[test]
fn ptp() -> Result<()> {
    with(&|place| vec![json!({"type": "ptp", "ipam": place.pods()})], |_| Ok(()), |_| Ok(()))
}

/// A host does not reach its own pods by such devices: clients outside dial a Service whose endpoint is on another node.
#[test]
fn macvlan() -> Result<()> {
    with(
        &|place| vec![json!({"type": "macvlan", "master": "eth0", "ipam": place.beside_nodes()})],
        |town| {
            town.doors = Doors::All;
            Ok(())
        },
        |_| Ok(()),
    )
}

/// Port 8080 of the node is that of the pod near.
#[test]
fn portmap() -> Result<()> {
    let ports =
        json!({"portMappings": [{"hostPort": 8080, "containerPort": 9376, "protocol": "tcp"}]});
    with(
        &|place| {
            let ptp = json!({"type": "ptp", "ipMasq": true, "ipam": place.pods()});
            let portmap = json!({"type": "portmap", "snat": true, "runtimeConfig": ports});
            if place.pod == "near" { vec![ptp, portmap] } else { vec![ptp] }
        },
        |_| Ok(()),
        |town| {
            let to = SocketAddr::from((WEST4, 8080));
            town.outside.wait_for(Via::Http, to, &["near"], FOLLOWS).map(drop)
        },
    )
}

/// An administrator's rule still blocks what the plugin lets pass.
#[test]
fn firewall() -> Result<()> {
    with(
        &|place| {
            vec![
                json!({"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": place.pods()}),
                json!({"type": "firewall", "backend": "iptables"}),
            ]
        },
        |town| {
            let near = town.objects.address("near")?;
            let room = &town.rooms[0];
            room.run(&format!("iptables -I CNI-ADMIN -d {near} -p tcp --dport 9377 -j DROP"))?;
            Ok(())
        },
        |town| {
            let near = town.objects.address("near")?;
            let rules = town.rooms[0].run("iptables -S CNI-FORWARD")?;
            ensure!(rules.contains(&format!("{near}/32")), "{rules}");
            let _server = town.pod("near")?.serve_as("blocked", 9377)?;
            for (port, is_open) in [(9377, false), (9376, true)] {
                let dialled = dial(town, SocketAddr::from((near, port)))?;
                ensure!(dialled.is_ok() == is_open, "port {port}: {dialled:?}");
            }
            Ok(())
        },
    )
}

/// The plugin's queueing discipline is at each pod's device.
#[test]
fn bandwidth() -> Result<()> {
    let limits = json!({"bandwidth": {
        "ingressRate": 1_000_000_000, "ingressBurst": 1_000_000_000,
        "egressRate": 1_000_000_000, "egressBurst": 1_000_000_000,
    }});
    with(
        &|place| {
            vec![
                json!({"type": "ptp", "ipam": place.pods()}),
                json!({"type": "bandwidth", "runtimeConfig": limits}),
            ]
        },
        |_| Ok(()),
        |town| {
            let disciplines = town.rooms[0].run("tc qdisc show")?;
            // Three pods, each with one for what it gets and one for what it sends.
            ensure!(disciplines.matches("qdisc tbf").count() == 6, "{disciplines}");
            Ok(())
        },
    )
}
