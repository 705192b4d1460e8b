//! What a Service has besides ClusterIPs: node ports, load balancer IPs, external IPs. The saved state
//! serializes these types.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::frontend::Family;

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
    /// `spec.loadBalancerSourceRanges`, if it has any: only these sources may dial the load balancer
    /// IPs. Without those that cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_ranges: Option<Arc<[IpNet]>>,
    /// `spec.healthCheckNodePort`; only with `type: LoadBalancer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_check_port: Option<u16>,
}

impl Exposure {
    /// The node port of the Service's port at `place`.
    #[must_use]
    pub fn node_port(&self, place: usize) -> Option<u16> {
        self.node_ports.get(place).copied().filter(|&port| port != 0)
    }

    /// The only sources that may dial the load balancer IPs of this family; `None`: everybody. A range
    /// of mask 0 is everybody.
    #[must_use]
    pub fn limits(&self, family: Family) -> Option<&Arc<[IpNet]>> {
        let is_all = |range: &IpNet| range.prefix_len() == 0 && Family::of(range.addr()) == family;
        self.source_ranges.as_ref().filter(|ranges| !ranges.iter().any(is_all))
    }

    /// Whether nothing is exposed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.load_balancer_ips.is_empty()
            && self.external_ips.is_empty()
            && self.node_ports.iter().all(|&port| port == 0)
            && self.health_check_port.is_none()
    }
}
