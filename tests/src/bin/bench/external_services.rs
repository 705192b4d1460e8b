//! Services with node ports: one half has its endpoint on the node that is dialled, the other half on
//! another node.

use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use topo_lb_tests::population::{Population, SERVICE_PORT};

use crate::exchange::{PORT, Targets};
use crate::ground::Ground;
use crate::nftables::Translated;

/// The node port of the first Service. Those of 10,000 are outside of the range of clients
/// (`net.ipv4.ip_local_port_range`).
const FIRST_NODE_PORT: u16 = 20_000;

/// Where the endpoint of a Service is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// On the node that is dialled.
    Local,
    /// On another one.
    Remote,
}

/// The Services as one node serves them.
#[derive(Debug)]
pub(crate) struct Services {
    count: u16,
    node: Ipv4Addr,
    local: Population,
    remote: Population,
}

impl Services {
    /// `server`: the pod of the node that is dialled; `node`: that node's address.
    pub(crate) fn new(
        ground: &Ground<'_>,
        count: u16,
        node: Ipv4Addr,
        server: &str,
    ) -> Result<Self> {
        ensure!(count > 1, "each half has a Service");
        let population = |server: &str| -> Result<Population> {
            let pod = ground.cluster.pod(server)?;
            let (addresses, port) = (vec![pod.ipv4], PORT);
            Ok(Population { addresses, port, ..Population::new(&pod.node, 3, count.into(), 1) })
        };
        Ok(Self { count, node, local: population(server)?, remote: population("a5")? })
    }

    fn of(&self, service: u16) -> &Population {
        if service < self.count / 2 { &self.local } else { &self.remote }
    }

    /// The first Service of each half also has a port for UDP.
    fn has_udp(&self, service: u16) -> bool {
        service == 0 || service == self.count / 2
    }

    /// The Nodes and the Services with their slices.
    pub(crate) fn objects(&self) -> impl Iterator<Item = Value> {
        let nodes = (0..self.local.nodes).map(|index| self.local.node(index));
        let nodes = nodes.chain([self.remote.node(0)]);
        nodes.chain((0..self.count).flat_map(|service| self.service(service)))
    }

    fn service(&self, number: u16) -> Vec<Value> {
        let (population, node_port) = (self.of(number), FIRST_NODE_PORT + number);
        let mut service = population.service(number.into());
        let mut slices = population.slices(number.into(), |_| true);
        let spec = &mut service["spec"];
        spec["type"] = "NodePort".into();
        spec["ports"][0]["nodePort"] = node_port.into();
        if self.has_udp(number) {
            let udp = json!({"name": "udp", "port": SERVICE_PORT, "protocol": "UDP",
                             "targetPort": PORT, "nodePort": node_port});
            push(&mut spec["ports"], udp);
            for slice in &mut slices {
                push(&mut slice["ports"], json!({"name": "udp", "port": PORT, "protocol": "UDP"}));
            }
        }
        slices.insert(0, service);
        slices
    }

    /// What nftables has rules for.
    pub(crate) fn translated(&self) -> impl Iterator<Item = Translated> {
        (0..self.count).flat_map(|service| {
            let population = self.of(service);
            let endpoint = |it: &Ipv4Addr| SocketAddrV4::new(*it, population.port);
            let endpoints: Vec<_> = population.addresses.iter().map(endpoint).collect();
            let protocols: &[&str] = if self.has_udp(service) { &["tcp", "udp"] } else { &["tcp"] };
            protocols.iter().map(move |protocol| Translated {
                cluster_ip: Population::frontend(service.into()),
                node_port: Some(FIRST_NODE_PORT + service),
                protocol,
                endpoints: endpoints.clone(),
            })
        })
    }

    /// The node ports of the half with such endpoints. The first one serves UDP, too.
    pub(crate) fn node_ports(&self, endpoint: Endpoint) -> Targets {
        let half = self.count / 2;
        let (first, count) = match endpoint {
            Endpoint::Local => (0, half),
            Endpoint::Remote => (half, self.count - half),
        };
        Targets::ports((self.node, FIRST_NODE_PORT + first).into(), count)
    }

    /// The first node port of a half.
    pub(crate) fn first(&self, endpoint: Endpoint) -> Targets {
        Targets::one(self.node_ports(endpoint).first)
    }

    /// The last node port.
    pub(crate) fn last(&self) -> Targets {
        Targets::one((self.node, FIRST_NODE_PORT + self.count - 1).into())
    }
}

fn push(list: &mut Value, item: Value) {
    if let Some(list) = list.as_array_mut() {
        list.push(item);
    }
}
