//! Service: frontends, and all sources of its topology policy.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::Deserialize;

use super::error::ObjectError;
use super::field::{HEADLESS, Loose, Metadata, PROXY_NAME, PortNumber, Text, address, or_default};
use super::names::Names;
use super::written::Written;
use topo_lb_core::cluster::service::{PolicySources, Protocol, Skipped, TOO_LONG};
use topo_lb_core::cluster::{Exposure, FrontendKind, Port, Service, ServiceId};

/// Kubernetes' default of `sessionAffinityConfig.clientIP.timeoutSeconds`.
const AFFINITY_SECONDS: i64 = 10_800;
/// Kubernetes' maximum.
const MAX_AFFINITY_SECONDS: i64 = 86_400;
/// Most bytes of a list of keys or weights; 16 of the longest with their weights have 5,200.
const LONGEST_LIST: usize = 8 * 1024;
/// Most bytes of any other text; the longest that can be valid is 16 numbers.
const LONGEST: usize = 1024;

#[derive(Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct Fields {
    metadata: Metadata<Loose, Annotations>,
    #[serde(default, deserialize_with = "or_default")]
    spec: Spec,
    #[serde(default, deserialize_with = "or_default")]
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct Annotations {
    #[serde(rename = "topo-lb.io/topology-keys")]
    topology_keys: Option<Text>,
    #[serde(rename = "topo-lb.io/external-topology-keys")]
    external_topology_keys: Option<Text>,
    #[serde(rename = "openyurt.io/topologyKeys")]
    openyurt: Option<Text>,
    #[serde(rename = "topo-lb.io/min-endpoints")]
    min_endpoints: Option<Text>,
    #[serde(rename = "topo-lb.io/spill")]
    spill: Option<Text>,
    #[serde(rename = "topo-lb.io/weights")]
    weights: Option<Text>,
    #[serde(rename = "topo-lb.io/ejection")]
    ejection: Option<Text>,
    #[serde(rename = "topo-lb.io/evacuate")]
    evacuate: Option<Text>,
    #[serde(rename = "topo-lb.io/return")]
    return_after: Option<Text>,
    #[serde(rename = "topo-lb.io/slow-start")]
    slow_start: Option<Text>,
    #[serde(rename = "topo-lb.io/refusal")]
    refusal: Option<Text>,
    #[serde(rename = "topo-lb.io/direct")]
    direct: Option<Text>,
    #[serde(rename = "topo-lb.io/direct-return")]
    direct_return: Option<Text>,
    #[serde(rename = "topo-lb.io/choice")]
    choice: Option<Text>,
    #[serde(rename = "topo-lb.io/handle")]
    handle: Option<Text>,
    #[serde(rename = "topo-lb.io/dns")]
    dns: Option<Text>,
    #[serde(rename = "topo-lb.io/mode")]
    mode: Option<Text>,
    #[serde(rename = "topo-lb.io/ramp")]
    ramp: Option<Text>,
    #[serde(rename = "service.kubernetes.io/topology-mode")]
    topology_mode: Option<String>,
    #[serde(rename = "service.kubernetes.io/topology-aware-hints")]
    topology_aware_hints: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(expecting = "an object")]
struct Spec {
    r#type: Option<String>,
    #[serde(rename = "clusterIP")]
    cluster_ip: Option<ClusterIp>,
    #[serde(default, rename = "clusterIPs", deserialize_with = "or_default")]
    cluster_ips: Vec<ClusterIp>,
    #[serde(default, deserialize_with = "or_default")]
    ports: Vec<PortFields>,
    session_affinity: Option<Affinity>,
    #[serde(default, deserialize_with = "or_default")]
    session_affinity_config: AffinityConfig,
    internal_traffic_policy: Option<TrafficPolicy>,
    external_traffic_policy: Option<TrafficPolicy>,
    #[serde(default, deserialize_with = "or_default")]
    topology_keys: Vec<String>,
    traffic_distribution: Option<String>,
    #[serde(default, rename = "externalIPs", deserialize_with = "or_default")]
    external_ips: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    load_balancer_source_ranges: Vec<String>,
    health_check_node_port: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(expecting = "an object")]
struct Status {
    #[serde(default, deserialize_with = "or_default")]
    load_balancer: LoadBalancer,
}

#[derive(Default, Deserialize)]
#[serde(expecting = "an object")]
struct LoadBalancer {
    #[serde(default, deserialize_with = "or_default")]
    ingress: Vec<Ingress>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(expecting = "an object")]
struct Ingress {
    ip: Option<String>,
    ip_mode: Option<String>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct PortFields {
    #[serde(default, deserialize_with = "or_default")]
    name: String,
    port: PortNumber,
    #[serde(default, deserialize_with = "or_default")]
    protocol: Protocol,
    #[serde(default, rename = "nodePort")]
    node_port: Option<i64>,
}

#[derive(Deserialize)]
enum Affinity {
    None,
    #[serde(rename = "ClientIP")]
    ClientIp,
}

#[derive(Default, Deserialize)]
#[serde(expecting = "an object")]
struct AffinityConfig {
    #[serde(default, rename = "clientIP", deserialize_with = "or_default")]
    client_ip: ClientIpConfig,
}

#[derive(Default, Deserialize)]
#[serde(expecting = "an object")]
struct ClientIpConfig {
    #[serde(rename = "timeoutSeconds")]
    timeout_seconds: Option<i64>,
}

#[derive(Deserialize, PartialEq, Eq)]
enum TrafficPolicy {
    Cluster,
    Local,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
enum ClusterIp {
    /// Not assigned yet.
    Empty,
    /// The word `None`: headless.
    None,
    Address(IpAddr),
}

impl TryFrom<String> for ClusterIp {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match &*text {
            "" => Ok(Self::Empty),
            "None" => Ok(Self::None),
            _ => address(&text)
                .map(Self::Address)
                .ok_or_else(|| format!("{text:?} is not an IP address")),
        }
    }
}

impl Status {
    /// The load balancer IPs that clients dial.
    fn load_balancer_ips(&self) -> impl Iterator<Item = &String> {
        let is_dialled = |ingress: &&Ingress| ingress.ip_mode.as_deref() != Some("Proxy");
        let all = self.load_balancer.ingress.iter().filter(is_dialled);
        all.filter_map(|ingress| ingress.ip.as_ref()).filter(|ip| !ip.is_empty())
    }
}

impl Fields {
    pub(super) fn keep(self, names: &mut Names) -> Result<Service, ObjectError> {
        let Self { metadata, spec, status } = self;
        check_name("metadata.namespace", metadata.namespace())?;
        check_name("metadata.name", &metadata.name)?;
        check_ports(&spec.ports)?;
        let affinity_seconds = spec.affinity_seconds()?;
        let cluster_ips = spec.addresses();
        let skipped = if spec.r#type.as_deref() == Some("ExternalName") {
            Some(Skipped::ExternalName)
        } else if metadata.labels.0.contains_key(PROXY_NAME) {
            Some(Skipped::OtherProxy)
        } else if metadata.labels.0.contains_key(HEADLESS) {
            Some(Skipped::HeadlessLabel)
        } else if spec.cluster_ips().contains(&ClusterIp::None) {
            Some(Skipped::Headless)
        } else if cluster_ips.is_empty() {
            Some(Skipped::NoClusterIp)
        } else {
            None
        };
        let exposure = exposure(&spec, &status, &cluster_ips).map(Arc::new);
        Ok(Service {
            id: ServiceId {
                namespace: names.share(metadata.namespace()),
                name: names.share(&metadata.name),
            },
            uid: metadata.uid(),
            cluster_ips,
            ports: spec
                .ports
                .iter()
                .map(|port| Port {
                    name: names.share(&port.name),
                    port: port.port.0,
                    protocol: port.protocol,
                })
                .collect(),
            labels: metadata.labels.labels(names),
            policy: policy(&metadata.annotations, &spec, names).into(),
            internal_local: spec.internal_traffic_policy == Some(TrafficPolicy::Local),
            external_local: spec.external_traffic_policy == Some(TrafficPolicy::Local),
            exposure,
            created: metadata.created(),
            affinity_seconds,
            skipped,
        })
    }
}

impl Spec {
    fn cluster_ips(&self) -> &[ClusterIp] {
        if self.cluster_ips.is_empty() { self.cluster_ip.as_slice() } else { &self.cluster_ips }
    }

    /// Its ClusterIPs, each once.
    fn addresses(&self) -> Vec<IpAddr> {
        let mut all = Vec::with_capacity(self.cluster_ips().len());
        for one in self.cluster_ips() {
            // An address may be repeated, or written in two ways.
            if let ClusterIp::Address(address) = one
                && !all.contains(address)
            {
                all.push(*address);
            }
        }
        all
    }

    fn affinity_seconds(&self) -> Result<Option<u32>, ObjectError> {
        if !matches!(self.session_affinity, Some(Affinity::ClientIp)) {
            return Ok(None);
        }
        let seconds =
            self.session_affinity_config.client_ip.timeout_seconds.unwrap_or(AFFINITY_SECONDS);
        match u32::try_from(seconds) {
            Ok(allowed) if (1..=MAX_AFFINITY_SECONDS).contains(&seconds) => Ok(Some(allowed)),
            _ => Err(ObjectError::at(
                "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
                format!("{seconds} is not a time between 1 and {MAX_AFFINITY_SECONDS} seconds"),
            )),
        }
    }
}

/// Kubernetes ensures that namespaces and names of Services, and names of their ports, are DNS
/// labels. A file may not, and then `namespace/name:port`, which identifies a Service port, would
/// be ambiguous. Other errors in names do no harm.
fn check_name(field: &str, name: &str) -> Result<(), ObjectError> {
    const LONGEST: usize = 63;
    if name.len() <= LONGEST && !name.contains(['/', ':']) && !name.contains(char::is_control) {
        return Ok(());
    }
    let reason = format!(
        "{name:?} is no name: it must have at most {LONGEST} characters, and neither `/` nor `:`"
    );
    Err(ObjectError::at(field, reason))
}

/// Kubernetes ensures these rules. In a file that breaks them, names or endpoints are ambiguous.
fn check_ports(ports: &[PortFields]) -> Result<(), ObjectError> {
    let (mut numbers, mut names, mut shown) = (HashMap::new(), HashMap::new(), HashMap::new());
    for (index, PortFields { name, port, protocol, .. }) in ports.iter().enumerate() {
        check_name(&format!("spec.ports[{index}].name"), name)?;
        if let Some(before) = numbers.insert((port.0, *protocol), index) {
            return Err(ObjectError::at(
                format!("spec.ports[{index}].port"),
                format!("{} with this protocol is spec.ports[{before}] already", port.0),
            ));
        }
        if let Some(before) = names.insert(name.as_str(), index) {
            return Err(ObjectError::at(
                format!("spec.ports[{index}].name"),
                format!(
                    "{name:?} is the name of spec.ports[{before}] already: each of several ports \
                     needs a name of its own"
                ),
            ));
        }
        let called = if name.is_empty() { port.0.to_string() } else { name.clone() };
        if let Some(before) = shown.insert(called, index) {
            return Err(ObjectError::at(
                format!("spec.ports[{index}].name"),
                format!(
                    "this port and spec.ports[{before}] go by the same name: one's name is the \
                     other's number; name both"
                ),
            ));
        }
    }
    Ok(())
}

/// Where the Service can be dialled besides its ClusterIPs; `None` if nowhere. What cannot be read is
/// left out, as in kube-proxy, and so are addresses of a family in which it has no ClusterIP
/// (`newBaseServiceInfo`, pkg/proxy/serviceport.go).
fn exposure(spec: &Spec, status: &Status, cluster_ips: &[IpAddr]) -> Option<Exposure> {
    let port = |number: Option<i64>| number.and_then(|number| u16::try_from(number).ok());
    let addresses = |texts: &mut dyn Iterator<Item = &String>| {
        let all = texts.filter_map(|text| exposed(text, cluster_ips).ok());
        let mut all: Vec<IpAddr> = all.collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    let is_load_balancer = spec.r#type.as_deref() == Some("LoadBalancer");
    let check = port(spec.health_check_node_port).filter(|_| is_load_balancer);
    let ranges = &spec.load_balancer_source_ranges;
    // An address is a range of itself, as in kube-proxy.
    let range = |text: &String| -> Option<IpNet> {
        let text = text.trim();
        text.parse().ok().or_else(|| address(text).map(IpNet::from))
    };
    let exposure = Exposure {
        node_ports: spec.ports.iter().map(|own| port(own.node_port).unwrap_or(0)).collect(),
        load_balancer_ips: addresses(&mut status.load_balancer_ips()),
        external_ips: addresses(&mut spec.external_ips.iter()),
        source_ranges: (!ranges.is_empty()).then(|| ranges.iter().filter_map(range).collect()),
        health_check_port: check.filter(|&port| port != 0),
    };
    (!exposure.is_empty()).then_some(exposure)
}

/// The address, or why a Service with these ClusterIPs is not served there.
fn exposed(text: &str, cluster_ips: &[IpAddr]) -> Result<IpAddr, &'static str> {
    let address = address(text.trim()).ok_or("it is no IP address")?;
    let mut own = cluster_ips.iter();
    if is_special(address) {
        Err("every host or Pod has such an address")
    } else if cluster_ips.is_empty() || own.any(|it| it.is_ipv4() == address.is_ipv4()) {
        Ok(address)
    } else {
        Err(
            "the Service has no ClusterIP of its family; ipFamilyPolicy: PreferDualStack gives it one",
        )
    }
}

/// The load balancer IPs and external IPs of a Service that are not served, and why; for `lint`.
pub(super) fn unserved(object: impl Written) -> Vec<(FrontendKind, String, &'static str)> {
    let Ok(Fields { spec, status, .. }) = object.read() else { return Vec::new() };
    let cluster_ips = spec.addresses();
    let of_status = status.load_balancer_ips().map(|text| (FrontendKind::LoadBalancerIp, text));
    let of_spec = spec.external_ips.iter().map(|text| (FrontendKind::ExternalIp, text));
    let why = |(kind, text): (_, &String)| {
        exposed(text, &cluster_ips).err().map(|why| (kind, text.clone(), why))
    };
    of_status.chain(of_spec).filter_map(why).collect()
}

/// Whether an address is no Service's wherever it is dialled: each network namespace has its own loopback,
/// and `connect` to the unspecified address leads there. Kubernetes allows no such external IP
/// (`ValidateNonSpecialIP`, pkg/apis/core/validation/validation.go), but does not check
/// `status.loadBalancer`.
const fn is_special(address: IpAddr) -> bool {
    address.is_unspecified()
        || address.is_loopback()
        || address.is_multicast()
        || match address {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        }
}

fn policy(annotations: &Annotations, spec: &Spec, names: &mut Names) -> PolicySources {
    let mode = annotations.topology_mode.as_ref().or(annotations.topology_aware_hints.as_ref());
    let asked_by_mode =
        mode.is_some_and(|mode| !mode.is_empty() && !mode.eq_ignore_ascii_case("disabled"));
    let asked_by_field = spec.traffic_distribution.as_ref().is_some_and(|field| !field.is_empty());
    let keys = &spec.topology_keys;
    let is_too_long = keys.iter().map(String::len).sum::<usize>() > LONGEST_LIST;
    let keys = if is_too_long {
        vec![names.share(TOO_LONG)]
    } else {
        keys.iter().map(|key| names.share(key)).collect()
    };
    PolicySources {
        openyurt: share(annotations.openyurt.as_ref(), LONGEST, names),
        spec_topology_keys: keys,
        hints_asked: asked_by_field || asked_by_mode,
        dns: share(annotations.dns.as_ref(), LONGEST, names),
        ..annotations.of_namespace(names)
    }
}

/// A text as it is kept. One that is too long to be valid is not: anybody who writes Services can write 256 KiB
/// to each.
fn share(text: Option<&Text>, longest: usize, names: &mut Names) -> Option<Arc<str>> {
    text.map(|Text(text)| names.share(if text.len() > longest { TOO_LONG } else { text }))
}

impl Annotations {
    /// Those that a Namespace may have for its Services: topo-lb's own.
    pub(super) fn of_namespace(&self, names: &mut Names) -> PolicySources {
        let mut shared = |text: &Option<Text>, longest: usize| share(text.as_ref(), longest, names);
        PolicySources {
            topology_keys: shared(&self.topology_keys, LONGEST_LIST),
            external_topology_keys: shared(&self.external_topology_keys, LONGEST_LIST),
            min_endpoints: shared(&self.min_endpoints, LONGEST),
            spill: shared(&self.spill, LONGEST),
            weights: shared(&self.weights, LONGEST_LIST),
            ejection: shared(&self.ejection, LONGEST),
            evacuate: shared(&self.evacuate, LONGEST_LIST),
            return_after: shared(&self.return_after, LONGEST),
            slow_start: shared(&self.slow_start, LONGEST),
            refusal: shared(&self.refusal, LONGEST),
            direct: shared(&self.direct, LONGEST),
            direct_return: shared(&self.direct_return, LONGEST),
            choice: shared(&self.choice, LONGEST),
            handle: shared(&self.handle, LONGEST),
            mode: shared(&self.mode, LONGEST),
            ramp: shared(&self.ramp, LONGEST),
            ..PolicySources::default()
        }
    }
}
