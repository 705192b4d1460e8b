//! Work without a network: Cargo's variable for it, and a network namespace that has no way out.

use std::env;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use fs_err as fs;
use rustix::process::geteuid;

use crate::process::become_command;

/// Cargo's variable. xtask downloads nothing either while it says `true`.
const OFFLINE: &str = "CARGO_NET_OFFLINE";

/// Routes of IPv4, without those of `lo`; the first line is a heading.
const ROUTES: &str = "/proc/self/net/route";
/// Routes of IPv6. A line's last word is the interface.
const ROUTES_IPV6: &str = "/proc/self/net/ipv6_route";

/// Fails if something has to be downloaded and must not be.
pub(crate) fn may_get(what: &str) -> Result<()> {
    if env::var(OFFLINE).is_ok_and(|it| it == "true") {
        bail!(
            "this machine lacks {what}, and {OFFLINE} forbids to get it: first run, with a network, \
             `cargo xtask setup --for-release`"
        );
    }
    Ok(())
}

/// Whether this process can reach no other machine: its network namespace has no route but over `lo`.
fn is_alone() -> Result<bool> {
    let ipv6 = fs::read_to_string(ROUTES_IPV6).unwrap_or_default();
    Ok(has_no_way_out(&fs::read_to_string(ROUTES)?, &ipv6))
}

fn has_no_way_out(routes: &str, ipv6: &str) -> bool {
    let is_lo = |line: &str| line.split_whitespace().next_back().is_none_or(|name| name == "lo");
    routes.lines().skip(1).all(|line| line.trim().is_empty()) && ipv6.lines().all(is_lo)
}

/// Makes sure that this process and its children reach no other machine: starts this very command again in a
/// network namespace that has `lo` alone, unless it is in one.
///
/// # Errors
/// The kernel refuses. It does so to others than root.
pub(crate) fn ensure_alone() -> Result<()> {
    let is_offline = env::var_os(OFFLINE).is_some_and(|it| it == "true");
    if is_offline && is_alone()? {
        return Ok(());
    }
    // Set with the namespace: without a way out after that, this would never end.
    ensure!(!is_offline || env::var_os(AGAIN).is_none(), "the new network namespace has a way out");
    ensure!(geteuid().is_root(), "a network namespace without a way out takes root");
    let program = env::current_exe().context("cannot find this program")?;
    let mut again = Command::new("unshare");
    again.args(["--net", "--", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
    again.arg(program).args(env::args_os().skip(1)).env(OFFLINE, "true").env(AGAIN, "");
    become_command(&mut again)
}

/// Tells the second start from the first one.
const AGAIN: &str = "TOPO_LB_ALONE";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_over_another_interface_is_a_way_out() {
        let heading = "Iface\tDestination\tGateway\n";
        let lo = "00000000000000000000000000000001 80 00 00200200       lo\n";
        let eth0 = "fd000000000000000000000000000000 40 00 00000001     eth0\n";
        assert!(has_no_way_out(heading, ""));
        assert!(has_no_way_out(heading, lo));
        assert!(!has_no_way_out(&format!("{heading}eth0\t00000000\t010200C0\n"), lo));
        assert!(!has_no_way_out(heading, &format!("{lo}{eth0}")));
    }
}
