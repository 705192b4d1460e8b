//! The frontends of a Service port besides its ClusterIPs, and what clients outside of the node get there.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use serde::Serialize;

use super::contest::Own;
use super::onward::{Onward, Peers};
use super::{Outcome, outcome};
use crate::cluster::{Family, FrontendKind};
use crate::flag::EXTERNAL_IP_RANGES;
use crate::topology::Decision;
use crate::topology::direct_return::{Choice, DirectReturn};
use crate::topology::exposed::Exposing;

/// The verdict where refused connections get no answer.
const DROP: &str = "drop";

/// Where a Service port can be dialled besides its ClusterIPs.
#[derive(Clone, Debug, Serialize)]
pub struct Exposed {
    /// What the Service names.
    pub frontends: Vec<ExposedFrontend>,
    /// What happens to connections of clients outside of the node: as for ClusterIPs, or `drop`.
    pub outside: Outcome,
    /// How these clients choose an endpoint; `None`: at random.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choice: Option<&'static str>,
    /// Whether the nodes of endpoints answer the clients themselves, and why not; an agent adds which nodes are
    /// proved to. `None` without a load balancer or external IP.
    #[serde(rename = "directReturn", skip_serializing_if = "Option::is_none")]
    pub direct_return: Option<String>,
    /// With direct return, how packets of these clients get to the nodes of endpoints, as the agent knows it.
    #[serde(rename = "otherNodes", skip_serializing_if = "Vec::is_empty")]
    pub other_nodes: Vec<Onward>,
}

/// A frontend besides ClusterIPs.
#[derive(Clone, Debug, Serialize)]
pub struct ExposedFrontend {
    /// `node port`, `load balancer IP` or `external IP`.
    pub kind: String,
    /// Its address; `None` for a node port, which addresses of the node have.
    pub address: Option<IpAddr>,
    /// 1–65535.
    pub port: u16,
    /// The only sources that may dial it; `None`: everybody.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sources: Option<Vec<IpNet>>,
    /// Which other Services claim it, too, and who gets it; `None`: nobody does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contest: Option<String>,
}

impl Exposed {
    /// `None` if the Service port has ClusterIPs alone. `decision` is that for clients outside.
    pub(super) fn of(
        own: Own<'_>,
        decision: &Decision<'_>,
        this_node: &str,
        known: bool,
        exposing: Option<&Exposing>,
        peers: &Peers<'_>,
    ) -> Option<Self> {
        let frontends = frontends(own);
        if frontends.is_empty() {
            return None;
        }
        let mut outside = outcome(decision, this_node, known, "");
        if decision.leading().is_some_and(|choice| choice.drops) {
            outside.verdict = DROP;
        }
        let policy = &decision.policy;
        let direct_return = DirectReturn::of(policy.direct_return, own.service, exposing);
        let spills = decision.choices.iter().any(|choice| choice.wider.is_some());
        let choice = match Choice::of(policy.choice, direct_return) {
            Choice::Random => None,
            Choice::Consistent if spills => Some("random, as some connections spill"),
            Choice::Consistent => Some("consistent"),
        };
        let own_at = |family| {
            let is_at =
                |it: &ExposedFrontend| it.address.is_some_and(|at| Family::of(at) == family);
            frontends.iter().any(is_at)
        };
        let families: Vec<_> = Family::BOTH.into_iter().filter(|family| own_at(*family)).collect();
        let other_nodes = match direct_return {
            DirectReturn::Yes => peers.onward(decision, this_node, &families),
            _ => Vec::new(),
        };
        let has_node_port = frontends.iter().any(|it| it.address.is_none());
        let direct_return = (!families.is_empty()).then(|| match direct_return {
            DirectReturn::Yes if has_node_port => {
                format!("{direct_return}; connections to the node port get source NAT")
            }
            _ => direct_return.to_string(),
        });
        Some(Self { frontends, outside, choice, direct_return, other_nodes })
    }

    /// The frontends in a line.
    pub(super) fn line(&self) -> String {
        let texts: Vec<_> = self.frontends.iter().map(ToString::to_string).collect();
        texts.join(", ")
    }
}

fn frontends(own: Own<'_>) -> Vec<ExposedFrontend> {
    let Own { service, place, .. } = own;
    let (Some(exposure), Some(port)) = (&service.exposure, service.ports.get(place)) else {
        return Vec::new();
    };
    let frontend = |kind: FrontendKind, address, port, sources| {
        let contest = own.at(kind, address, port);
        ExposedFrontend { kind: kind.to_string(), address, port, sources, contest }
    };
    let node_port = exposure.node_port(place);
    let node_port = node_port.map(|port| frontend(FrontendKind::NodePort, None, port, None));
    let at = |kind, address, sources| frontend(kind, Some(address), port.port, sources);
    let load_balancers = exposure.load_balancer_ips.iter().map(|&address| {
        let family = Family::of(address);
        let sources = exposure.limits(family).map(|ranges| {
            ranges.iter().filter(|range| Family::of(range.addr()) == family).copied().collect()
        });
        at(FrontendKind::LoadBalancerIp, address, sources)
    });
    let external = exposure.external_ips.iter();
    let external = external.map(|&address| at(FrontendKind::ExternalIp, address, None));
    node_port.into_iter().chain(load_balancers).chain(external).collect()
}

impl fmt::Display for ExposedFrontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            None => write!(f, "{} {}", self.kind, self.port)?,
            Some(address) => write!(f, "{} {}", self.kind, SocketAddr::new(address, self.port))?,
        }
        // The command does not know the agents' flags. By default no external IP is served.
        if self.kind == FrontendKind::ExternalIp.to_string() {
            write!(f, " (if {EXTERNAL_IP_RANGES} has it)")?;
        }
        match self.sources.as_deref() {
            None => {}
            Some([]) => f.write_str(" (from nowhere: no source range can be read)")?,
            Some(ranges) => {
                let ranges: Vec<_> = ranges.iter().map(ToString::to_string).collect();
                // The hooks of sockets do not know the source of a connection.
                write!(
                    f,
                    " (only from {}; clients of this node are left to the network)",
                    ranges.join(", ")
                )?;
            }
        }
        self.contest.as_ref().map_or(Ok(()), |contest| write!(f, " ({contest})"))
    }
}
