//! EndpointSlice `v1` and `v1beta1`. They differ in the fields for topology; both are read.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::SystemTime;

use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::error::{Identity, ObjectError, SkippedEndpoints};
use super::field::{MIRRORING, Metadata, OwnLabels, PortNumber, address, or_default};
use super::kind::Kind;
use super::names::Names;
use topo_lb_core::cluster::{
    Endpoint, Labels, Placement, Port, Protocol, ServiceId, Slice, SliceId,
};
use topo_lb_core::topology::label_name::is_label_value;

const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(expecting = "an object")]
pub(super) struct Fields {
    metadata: Metadata<OwnLabels, Annotations>,
    address_type: AddressType,
    #[serde(default, deserialize_with = "or_default")]
    endpoints: Vec<EndpointFields>,
    #[serde(default, deserialize_with = "or_default")]
    ports: Vec<PortFields>,
}

#[derive(Default, Deserialize)]
#[serde(expecting = "an object")]
struct Annotations {
    /// A point in time (RFC 3339); ignored if it is anything else, because only metrics need it.
    #[serde(default, rename = "endpoints.kubernetes.io/last-change-trigger-time")]
    triggered: Value,
}

#[derive(Clone, Copy, Deserialize)]
enum AddressType {
    #[serde(rename = "IPv4")]
    V4,
    #[serde(rename = "IPv6")]
    V6,
    #[serde(rename = "FQDN")]
    Fqdn,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct PortFields {
    #[serde(default, deserialize_with = "or_default")]
    name: String,
    port: Option<PortNumber>,
    #[serde(default, deserialize_with = "or_default")]
    protocol: Protocol,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(expecting = "an object")]
struct EndpointFields {
    /// Only the first is used.
    #[serde(default, deserialize_with = "or_default")]
    addresses: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    conditions: Conditions,
    node_name: Option<String>,
    zone: Option<String>,
    hostname: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    topology: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "or_default")]
    deprecated_topology: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "or_default")]
    hints: Hints,
}

#[derive(Default, Deserialize)]
#[serde(expecting = "an object")]
struct Conditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(expecting = "an object")]
struct Hints {
    #[serde(default, deserialize_with = "or_default")]
    for_nodes: Vec<Named>,
    #[serde(default, deserialize_with = "or_default")]
    for_zones: Vec<Named>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Named {
    name: String,
}

impl Fields {
    pub(super) fn keep(self, names: &mut Names) -> (Slice, Option<SkippedEndpoints>) {
        let Self { metadata, address_type, endpoints, ports } = self;
        let namespace = names.share(metadata.namespace());
        let OwnLabels { service, proxy, headless, managed_by } = &metadata.labels;
        let service = service.as_deref().filter(|service| !service.is_empty());
        let triggered = metadata.annotations.triggered.as_str();
        let mut slice = Slice {
            service: service.map(|service| ServiceId {
                namespace: namespace.clone(),
                name: names.share(service),
            }),
            id: SliceId { namespace, name: metadata.name.as_str().into() },
            ports: ports.iter().filter_map(|port| port.keep(names)).collect(),
            endpoints: Vec::new(),
            headless: headless.is_some(),
            mirrored: managed_by.as_deref() == Some(MIRRORING),
            triggered: triggered
                .and_then(|text| text.parse::<Timestamp>().ok())
                .map(SystemTime::from),
            ready_since: Vec::new(),
        };
        if proxy.is_some() || matches!(address_type, AddressType::Fqdn) {
            return (slice, None);
        }
        let mut skipped: Option<SkippedEndpoints> = None;
        slice.endpoints.reserve_exact(endpoints.len());
        for (index, endpoint) in endpoints.into_iter().enumerate() {
            match address_type.address(endpoint.addresses.first()) {
                Ok(address) => slice.endpoints.push(endpoint.keep(address, names)),
                Err(reason) => match &mut skipped {
                    Some(skipped) => skipped.more += 1,
                    None => {
                        let field = format!("endpoints[{index}].addresses[0]");
                        let SliceId { namespace, name } = slice.id.clone();
                        let identity = Identity { kind: Kind::Slice, namespace, name };
                        let first = ObjectError::at(field, reason).of_known(identity);
                        skipped = Some(SkippedEndpoints { first, more: 0 });
                    }
                },
            }
        }
        (slice, skipped)
    }
}

impl AddressType {
    fn address(self, written: Option<&String>) -> Result<IpAddr, String> {
        let Some(written) = written else {
            return Err("is missing".to_owned());
        };
        match (self, address(written)) {
            (Self::V4, Some(address @ IpAddr::V4(_))) => Ok(address),
            (Self::V6, Some(address @ IpAddr::V6(_))) => Ok(address),
            (Self::V4, _) => Err(format!("{written:?} is not an IPv4 address")),
            (Self::V6, _) => Err(format!("{written:?} is not an IPv6 address")),
            (Self::Fqdn, _) => Err("is a domain name".to_owned()),
        }
    }
}

impl PortFields {
    fn keep(&self, names: &mut Names) -> Option<Port> {
        Some(Port { port: self.port?.0, name: names.share(&self.name), protocol: self.protocol })
    }
}

impl EndpointFields {
    fn keep(self, address: IpAddr, names: &mut Names) -> Endpoint {
        let zone = self.zone.filter(|zone| is_label_value(zone));
        let zone = zone.as_ref().map(|zone| (names.share(ZONE), names.share(zone)));
        let topology = self.deprecated_topology.iter().chain(&self.topology);
        let labels: Labels = topology
            .map(|(key, value)| (names.share(key), names.share(value)))
            .chain(zone)
            .collect();
        let node = match self.node_name.filter(|node| !node.is_empty()) {
            Some(node) => Some(names.share(&node)),
            None => labels.get(HOSTNAME).filter(|node| !node.is_empty()).cloned(),
        };
        let Conditions { ready, serving, terminating } = self.conditions;
        let mut named = |list: Vec<Named>| list.iter().map(|to| names.share(&to.name)).collect();
        let (for_nodes, for_zones) = (named(self.hints.for_nodes), named(self.hints.for_zones));
        Endpoint {
            ready: ready.unwrap_or(true),
            serving: serving.unwrap_or(true),
            terminating: terminating.unwrap_or(false),
            has_hostname: self.hostname.is_some_and(|name| !name.is_empty()),
            ..Endpoint::new(address, Placement { node, labels, for_nodes, for_zones })
        }
    }
}
