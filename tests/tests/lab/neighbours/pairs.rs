//! Two neighbours at once: one goes and comes back beside the other.

use anyhow::Result;
use topo_lb_tests::town::visit;

use super::firewall::{NFTABLES, UFW, blocks};

/// A program of XDP in front of a firewall.
#[test]
fn ufw_and_xdp_filter() -> Result<()> {
    visit(|town| {
        town.agents[0].set("--tolerate-programs", "xdp*");
        let _ufw = town.begin(UFW, "ufw --force disable")?;
        town.has(|town| town.begin("xdp-filter load -m skb eth0", "xdp-filter unload eth0"), blocks)
    })
}

/// Two firewalls: what one drops, the other one cannot let pass.
#[test]
fn nftables_and_ufw() -> Result<()> {
    visit(|town| {
        let rules = format!("echo '{NFTABLES}' | nft -f -");
        let _nftables = town.begin(&rules, "nft delete table inet guard")?;
        town.has(|town| town.begin(UFW, "ufw --force disable"), blocks)
    })
}
