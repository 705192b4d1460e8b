//! For comparison: nftables rules of the shape that kube-proxy writes in mode nftables (Kubernetes
//! pkg/proxy/nftables/proxier.go): a verdict map of frontends, a chain per Service that chooses an
//! endpoint at random, and a chain per endpoint that translates.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::ground::POD_RANGE;
use topo_lb_tests::population::{Population, SERVICE_PORT};
use topo_lb_tests::process::fed;

/// Rules for every Service of a population; the endpoints are its `addresses`.
pub(crate) fn rules(population: &Population) -> String {
    let mut text = String::from(
        "table ip kube-proxy {\n\
         map service-ips {\n type ipv4_addr . inet_proto . inet_service : verdict\n}\n\
         map no-endpoint-services {\n type ipv4_addr . inet_proto . inet_service : verdict\n}\n\
         chain mark-for-masquerade {\n mark set mark or 0x4000\n}\n\
         chain masquerading {\n mark and 0x4000 == 0 return\n mark set mark xor 0x4000\n \
         masquerade fully-random\n}\n\
         chain nat-postrouting {\n type nat hook postrouting priority srcnat\n jump masquerading\n}\n\
         chain reject-chain {\n reject\n}\n\
         chain service-endpoints-check {\n \
         ip daddr . meta l4proto . th dport vmap @no-endpoint-services\n}\n\
         chain filter-prerouting {\n type filter hook prerouting priority dstnat - 10\n \
         ct state new jump service-endpoints-check\n}\n\
         chain services {\n ip daddr . meta l4proto . th dport vmap @service-ips\n}\n\
         chain nat-prerouting {\n type nat hook prerouting priority dstnat\n jump services\n}\n\
         chain nat-output {\n type nat hook output priority -100\n jump services\n}\n",
    );
    for service in 0..population.services {
        for (number, address) in population.addresses.iter().enumerate() {
            let _ = write!(
                text,
                "chain endpoint-{service}-{number} {{\n ip saddr {address} jump mark-for-masquerade\n \
                 meta l4proto tcp dnat to {address}:{}\n}}\n",
                population.port
            );
        }
        let verdicts: Vec<String> = (0..population.addresses.len())
            .map(|number| format!("{number} : goto endpoint-{service}-{number}"))
            .collect();
        let _ = write!(
            text,
            "chain service-{service} {{\n ip daddr {} tcp dport {SERVICE_PORT} ip saddr != {POD_RANGE} \
             jump mark-for-masquerade\n numgen random mod {} vmap {{ {} }}\n}}\n",
            Population::frontend(service),
            verdicts.len(),
            verdicts.join(", "),
        );
    }
    text.push_str("}\n");
    if population.services > 0 {
        text.push_str("add element ip kube-proxy service-ips {\n");
        for service in 0..population.services {
            let address: Ipv4Addr = Population::frontend(service);
            let _ = writeln!(text, " {address} . tcp . {SERVICE_PORT} : goto service-{service},");
        }
        text.push_str("}\n");
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
