//! Programs of others in the kernel: XDP, tc, and those that systemd attaches to cgroups.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use topo_lb_tests::scene::FOLLOWS;
use topo_lb_tests::town::{Town, WEST4, visit};
use topo_lb_tests::traffic::Via;

/// Checks that a client outside reaches a port of west, or does not.
fn reaches(town: &mut Town<'_>, port: u16, is_open: bool) -> Result<()> {
    let to = SocketAddr::from((WEST4, port));
    let _server = town.cluster.serve_on("west", "host", &[to])?;
    if is_open {
        return town.outside.wait_for(Via::Http, to, &["host"], FOLLOWS).map(drop);
    }
    let tally = town.outside.call(Via::Http, to, 1)?;
    ensure!(tally.answered() == 0, "{tally}");
    Ok(())
}

/// `xdp-filter` of xdp-tools at the uplink, by libxdp: it drops what is for one port, and lets tc do the rest.
fn xdp_filter(xdp: &'static str) -> Result<()> {
    visit(|town| {
        town.agents[0].set("--xdp", xdp);
        // Its way of asking which programs there are is the agent's own for others.
        town.agents[0].set("--tolerate-programs", "xdp*");
        town.has(
            |town| {
                let begin = "xdp-filter load -m skb eth0; xdp-filter port -m dst -p tcp 7777";
                town.begin(begin, "xdp-filter unload eth0")
            },
            |town| {
                reaches(town, 7_777, false)?;
                reaches(town, 7_778, true)
            },
        )
    })
}

#[test]
fn xdp_filter_beside_tc() -> Result<()> {
    xdp_filter("off")
}

/// The device has a place for one program: topo-lb leaves it to the one that is there.
#[test]
fn xdp_filter_beside_xdp() -> Result<()> {
    xdp_filter("any")
}

/// A program of tc that `tc` attaches by clsact, as older tools do: it counts and lets pass. Before 6.6 both are filters there.
#[test]
fn tc_filter() -> Result<()> {
    visit(|town| {
        town.has(
            |town| {
                let filter = "filter add dev eth0 ingress protocol ip pref 5 flower ip_proto tcp dst_port 7777 action drop";
                let begin = format!("tc qdisc add dev eth0 clsact; tc {filter}");
                town.begin(&begin, "tc qdisc del dev eth0 clsact")
            },
            |town| {
                reaches(town, 7_777, false)?;
                reaches(town, 7_778, true)
            },
        )
    })
}
