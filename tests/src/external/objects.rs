//! The cluster's objects: two nodes, and a dual-stack Service of type LoadBalancer for each combination.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::address::Family;
use crate::cluster::Cluster;
use crate::manifest;
use crate::scene::{HERE, ZONE};

use super::cell::{Endpoints, Policy, Service, THERE, Variant, node};

/// Where endpoints listen, for both protocols; the names of ports are those of the Services' ports.
const SERVED: [manifest::Port<'static>; 2] = [("tcp", 9376, "TCP"), ("udp", 9376, "UDP")];
/// The health check port of the first Service with the policy Local; the others follow.
const FIRST_HEALTH_CHECK_PORT: u16 = 32_000;
/// `loadBalancerSourceRanges` with the client outside, node here and its pods.
const ALLOWED: [&str; 6] = [
    "172.30.0.10/32",
    "172.30.0.2/32",
    "10.244.1.0/24",
    "fd00:172::a/128",
    "fd00:172::2/128",
    "fd00:244:1::/64",
];
/// Ranges without any caller.
const DENIED: [&str; 2] = ["203.0.113.0/24", "2001:db8:9::/48"];

/// All objects.
pub fn all(cluster: &Cluster) -> Result<Vec<Value>> {
    let mut all =
        vec![manifest::node(HERE, &[(ZONE, "zone-1")]), manifest::node(THERE, &[(ZONE, "zone-2")])];
    for it in Service::all() {
        all.push(service(it));
        for (family, name) in [(Family::V4, "IPv4"), (Family::V6, "IPv6")] {
            all.push(manifest::slice(&it.name(), name, &SERVED, &endpoints(cluster, it, family)?));
        }
    }
    Ok(all)
}

fn service(it: Service) -> Value {
    let both = |of: fn(Service, Family) -> std::net::IpAddr| {
        Family::BOTH.map(|family| of(it, family).to_string())
    };
    let cluster_ips = both(Service::cluster_ip);
    let ports = SERVED.map(|(name, _, protocol)| (name, 80, protocol));
    let mut service =
        manifest::service(&it.name(), &cluster_ips.each_ref().map(String::as_str), &ports, &[]);
    let policy: &str = it.policy.into();
    let spec = &mut service["spec"];
    spec["type"] = "LoadBalancer".into();
    spec["ipFamilyPolicy"] = "RequireDualStack".into();
    spec["externalTrafficPolicy"] = policy.into();
    if it.policy == Policy::Local {
        spec["healthCheckNodePort"] = (FIRST_HEALTH_CHECK_PORT + u16::from(it.number())).into();
    }
    for port in spec["ports"].as_array_mut().into_iter().flatten() {
        port["nodePort"] = it.node_port().into();
        port["targetPort"] = 9376.into();
    }
    spec["externalIPs"] = json!(both(Service::external_ip));
    match it.variant {
        Variant::Plain => {}
        Variant::Affinity => spec["sessionAffinity"] = "ClientIP".into(),
        Variant::Allowed => spec["loadBalancerSourceRanges"] = json!(ALLOWED),
        Variant::Denied => spec["loadBalancerSourceRanges"] = json!(DENIED),
    }
    if it.variant == Variant::Affinity {
        spec["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": 10800}});
    }
    let ingress = both(Service::load_balancer).map(|address| json!({"ip": address}));
    service["status"] = json!({"loadBalancer": {"ingress": ingress}});
    service
}

/// Where the endpoints of a Service listen.
pub fn servers(cluster: &Cluster, it: Service, family: Family) -> Result<Vec<SocketAddr>> {
    let (_, port, _) = SERVED[0];
    let address = |endpoint: Value| -> Result<SocketAddr> {
        let address = endpoint["addresses"][0].as_str().context("an address")?;
        Ok(SocketAddr::new(address.parse()?, port))
    };
    endpoints(cluster, it, family)?.into_iter().map(address).collect()
}

fn endpoints(cluster: &Cluster, it: Service, family: Family) -> Result<Vec<Value>> {
    let pod = |name: &str| -> Result<Value> {
        let pod = cluster.pod(name)?;
        let address = match family {
            Family::V4 => pod.ipv4.to_string(),
            Family::V6 => pod.ipv6.to_string(),
        };
        Ok(manifest::endpoint(&address, &pod.node, name))
    };
    let ending = |name: &str| -> Result<Value> {
        let mut endpoint = pod(name)?;
        endpoint["conditions"] = json!({"ready": false, "serving": true, "terminating": true});
        Ok(endpoint)
    };
    let host = |name: &str| {
        manifest::endpoint(&node(name, family).to_string(), name, &format!("host-{name}"))
    };
    Ok(match it.endpoints {
        Endpoints::Here => vec![pod("a")?],
        Endpoints::There => vec![pod("b")?],
        Endpoints::Both => vec![pod("a")?, pod("b")?],
        Endpoints::None => vec![],
        Endpoints::Terminating => vec![ending("a")?, ending("b")?],
        Endpoints::Draining => vec![ending("a")?, pod("b")?],
        Endpoints::HostHere => vec![host(HERE)],
        Endpoints::HostThere => vec![host(THERE)],
    })
}
