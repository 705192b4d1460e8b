//! For comparison: nftables rules of the shape that kube-proxy writes in mode nftables (Kubernetes
//! pkg/proxy/nftables/proxier.go): a verdict map of frontends, a chain per Service that chooses an
//! endpoint at random, and a chain per endpoint that translates.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::ground::POD_RANGE;
use topo_lb_tests::population::{Population, SERVICE_PORT};
use topo_lb_tests::process::fed;

/// A Service's port.
#[derive(Clone, Debug)]
pub(crate) struct Translated {
    pub(crate) cluster_ip: Ipv4Addr,
    /// At the node's address.
    pub(crate) node_port: Option<u16>,
    /// `tcp` or `udp`.
    pub(crate) protocol: &'static str,
    pub(crate) endpoints: Vec<SocketAddrV4>,
}

/// The ClusterIPs of a population; the endpoints are its `addresses`.
pub(crate) fn of_population(population: &Population) -> impl Iterator<Item = Translated> {
    let endpoint = |address: &Ipv4Addr| SocketAddrV4::new(*address, population.port);
    (0..population.services).map(move |service| Translated {
        cluster_ip: Population::frontend(service),
        node_port: None,
        protocol: "tcp",
        endpoints: population.addresses.iter().map(endpoint).collect(),
    })
}

/// Rules for these Services, at a node with this address.
pub(crate) fn rules(services: impl Iterator<Item = Translated>, node: Ipv4Addr) -> String {
    let mut text = format!(
        "table ip kube-proxy {{
         map service-ips {{\n type ipv4_addr . inet_proto . inet_service : verdict\n}}
         map service-nodeports {{\n type inet_proto . inet_service : verdict\n}}
         map no-endpoint-services {{\n type ipv4_addr . inet_proto . inet_service : verdict\n}}
         set nodeport-ips {{\n type ipv4_addr\n elements = {{ {node} }}\n}}
         chain mark-for-masquerade {{\n mark set mark or 0x4000\n}}
         chain masquerading {{\n mark and 0x4000 == 0 return\n mark set mark xor 0x4000
         masquerade fully-random\n}}
         chain nat-postrouting {{\n type nat hook postrouting priority srcnat\n jump masquerading\n}}
         chain reject-chain {{\n reject\n}}
         chain service-endpoints-check {{
         ip daddr . meta l4proto . th dport vmap @no-endpoint-services\n}}
         chain filter-prerouting {{\n type filter hook prerouting priority dstnat - 10
         ct state new jump service-endpoints-check\n}}
         chain services {{\n ip daddr . meta l4proto . th dport vmap @service-ips
         ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports\n}}
         chain nat-prerouting {{\n type nat hook prerouting priority dstnat\n jump services\n}}
         chain nat-output {{\n type nat hook output priority -100\n jump services\n}}
",
    );
    let (mut addresses, mut ports) = (String::new(), String::new());
    for (service, translated) in services.enumerate() {
        let Translated { cluster_ip, node_port, protocol, endpoints } = translated;
        for (number, endpoint) in endpoints.iter().enumerate() {
            let _ = write!(
                text,
                "chain endpoint-{service}-{number} {{\n ip saddr {} jump mark-for-masquerade\n \
                 meta l4proto {protocol} dnat to {endpoint}\n}}\n",
                endpoint.ip()
            );
        }
        let verdicts: Vec<String> = (0..endpoints.len())
            .map(|number| format!("{number} : goto endpoint-{service}-{number}"))
            .collect();
        let _ = write!(
            text,
            "chain service-{service} {{\n ip daddr {cluster_ip} {protocol} dport {SERVICE_PORT} \
             ip saddr != {POD_RANGE} jump mark-for-masquerade\n \
             numgen random mod {} vmap {{ {} }}\n}}\n",
            verdicts.len(),
            verdicts.join(", "),
        );
        let _ = writeln!(
            addresses,
            " {cluster_ip} . {protocol} . {SERVICE_PORT} : goto service-{service},"
        );
        if let Some(port) = node_port {
            let _ = write!(
                text,
                "chain external-{service} {{\n jump mark-for-masquerade\n goto service-{service}\n}}\n"
            );
            let _ = writeln!(ports, " {protocol} . {port} : goto external-{service},");
        }
    }
    text.push_str("}\n");
    for (map, elements) in [("service-ips", addresses), ("service-nodeports", ports)] {
        if !elements.is_empty() {
            let _ = writeln!(text, "add element ip kube-proxy {map} {{\n{elements}}}");
        }
    }
    text
}

/// Loads rules with `command`, an `nft` in the right namespace.
pub(crate) fn load(mut command: Command, rules: &str) -> Result<()> {
    let output =
        fed(command.args(["-f", "-"]), rules).context("on Debian: apt-get install nftables")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "nft refuses the rules: {said}");
    Ok(())
}
