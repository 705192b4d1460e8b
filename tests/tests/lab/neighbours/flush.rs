//! Hands that remove what they do not know: topo-lb puts it back, or the kernel does not let them.

use anyhow::{Context as _, Result};
use topo_lb_tests::scene::FOLLOWS;
use topo_lb_tests::town::{Town, visit};

/// Starts the agent with these flags, lets somebody run this line on west, and checks that all is served again, and that
/// the agent's log has this sentence.
fn mends(flags: &[(&'static str, &str)], line: &str, sentence: Option<&str>) -> Result<()> {
    visit(|town| {
        set(town, flags)?;
        let said = town.rooms[0].run(&format!("{{ {line}; }} 2>&1 || true"))?;
        if let Some(sentence) = sentence {
            town.agent()
                .wait_for_log(sentence, FOLLOWS)
                .with_context(|| format!("{line}: {said}"))?;
        }
        town.serves().with_context(|| format!("after `{line}`: {said}"))?;
        town.wait_until_ready()?;
        town.rolls_out().with_context(|| format!("after `{line}`: {said}"))
    })
}

fn set(town: &mut Town<'_>, flags: &[(&'static str, &str)]) -> Result<()> {
    for (flag, value) in flags {
        town.agents[0].set(flag, value);
    }
    town.start_agents()?;
    town.serves()
}

#[test]
fn nft_flush_ruleset() -> Result<()> {
    let line = "nft flush ruleset";
    mends(&[("--masquerade", "nftables")], line, Some("the nftables table inet topo-lb"))
}

/// A firewall that starts begins with it, as `/etc/nftables.conf` of Debian's package does.
#[test]
fn the_start_of_debians_nftables() -> Result<()> {
    let line = "nft -f /etc/nftables.conf";
    mends(&[("--masquerade", "nftables")], line, Some("the nftables table inet topo-lb"))
}

#[test]
fn tc_qdisc_del_clsact() -> Result<()> {
    mends(&[("--tc-attach", "clsact")], "tc qdisc del dev eth0 clsact", Some("clsact"))
}

/// By tcx there is no queueing discipline to remove.
#[test]
fn tc_qdisc_del_clsact_beside_tcx() -> Result<()> {
    mends(&[], "tc qdisc del dev eth0 clsact; tc qdisc del dev eth0 ingress", None)
}

/// Neither way detaches a program that a link holds.
#[test]
fn xdp_off() -> Result<()> {
    let line = "bpftool net detach xdp dev eth0; ip link set dev eth0 xdp off; ip link set dev eth0 xdpgeneric off";
    mends(&[("--xdp", "any")], line, None)
}

/// It takes the node's routes with it. Somebody puts back what the kernel had.
#[test]
fn ip_rule_flush() -> Result<()> {
    mends(
        &[],
        "for family in -4 -6; do ip $family rule flush; ip $family rule add lookup main pref 32766; done;
         ip rule add lookup default pref 32767",
        None,
    )
}
