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

/// What forbids it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hindrance {
    /// A sentence.
    pub(crate) sentence: String,
    /// What it is about.
    pub(crate) about: About,
}

/// What forbids that the programs choose sources may still let packets be sent on as they came (direct return).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// Packets to other nodes may go another way, or become others on it: none is sent on, either.
    Ways,
    /// The ports of this node's own clients, which packets that are sent on do not take.
    Ports,
    /// Somebody's rules for what the kernel forwards. Those of the endpoint's node hold for what is sent on.
    Rules,
}

/// Looks for what forbids it.
#[derive(Debug, Default)]
pub(crate) struct Hindrances {
    /// What was found last, and when.
    found: Option<(Instant, Hindrance)>,
    filters: Filters,
}

impl Hindrances {
    /// What forbids it, if anything does; what is of ways first.
    pub(crate) fn find(&mut self) -> Option<Hindrance> {
        if let Some((at, found)) = &self.found
            && at.elapsed() < PAUSE
        {
            return Some(found.clone());
        }
        let of = |about| move |sentence| Hindrance { sentence, about };
        let ports = || {
            let range = read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
            of_range(&range)
        };
        let ways = policy_routing::find().or_else(ipsec::find).map(of(About::Ways));
        let found = ways
            .or_else(|| ports().map(of(About::Ports)))
            .or_else(|| self.filters.find().map(of(About::Rules)));
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
