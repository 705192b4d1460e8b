//! What on this host forbids that the programs choose sources of connections to other nodes.

use std::fs::read_to_string;
use std::time::{Duration, Instant};

use topo_lb_common::snat::PORTS;

use filtering::Filters;

mod filtering;
mod ipsec;
mod policy_routing;

/// How long an answer counts that says what forbids it, or that the kernel has no nftables.
const PAUSE: Duration = Duration::from_secs(10);

/// Looks for what forbids it.
#[derive(Debug, Default)]
pub(crate) struct Hindrances {
    /// What was found last, and when.
    found: Option<(Instant, String)>,
    filters: Filters,
}

impl Hindrances {
    /// A sentence about what forbids it, if anything does.
    pub(crate) fn find(&mut self) -> Option<String> {
        if let Some((at, found)) = &self.found
            && at.elapsed() < PAUSE
        {
            return Some(found.clone());
        }
        let range = read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok();
        let found = range
            .and_then(|range| of_range(&range))
            .or_else(policy_routing::find)
            .or_else(ipsec::find)
            .or_else(|| self.filters.find());
        self.found = found.clone().map(|found| (Instant::now(), found));
        found
    }
}

/// Ports that the kernel gives its own clients must not be sources of the programs.
fn of_range(range: &str) -> Option<String> {
    let mut ends = range.split_whitespace().map(|end| end.parse::<u16>().ok());
    let (first, last) = (ends.next()??, ends.next()??);
    (first <= PORTS.1 && PORTS.0 <= last).then(|| {
        format!("clients of this node have ports {first} to {last} (net.ipv4.ip_local_port_range)")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_range_of_ports_leaves_room_and_a_longer_one_does_not() {
        assert_eq!(of_range("32768\t60999\n"), None);
        for (range, ports) in [
            ("1024\t65535\n", "1024 to 65535"),
            ("15000\t20000\n", "15000 to 20000"),
            ("10000\t12000\n", "10000 to 12000"),
            ("29999\t60999\n", "29999 to 60999"),
        ] {
            let said = of_range(range).expect("a sentence");
            assert!(said.contains(ports), "{said}");
        }
        assert_eq!(of_range(""), None);
    }
}
