//! What a Service has besides ClusterIPs: node ports, load balancer IPs, external IPs. The saved state
//! serializes these types.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Where a Service can be dialled besides its ClusterIPs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Exposure {
    /// `spec.ports[].nodePort`, in the order of the Service's ports; zero without one.
    pub node_ports: Vec<u16>,
    /// `status.loadBalancer.ingress[].ip`, without those of `ipMode: Proxy` (KEP-1860).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub load_balancer_ips: Vec<IpAddr>,
    /// `spec.externalIPs`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub external_ips: Vec<IpAddr>,
    /// `spec.loadBalancerSourceRanges` has a range: not everybody may dial the load balancer IPs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_source_ranges: bool,
}

impl Exposure {
    /// The node port of the Service's port at `place`.
    #[must_use]
    pub fn node_port(&self, place: usize) -> Option<u16> {
        self.node_ports.get(place).copied().filter(|&port| port != 0)
    }

    /// Whether nothing is exposed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.load_balancer_ips.is_empty()
            && self.external_ips.is_empty()
            && self.node_ports.iter().all(|&port| port == 0)
    }
}
