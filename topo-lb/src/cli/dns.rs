//! Flags about DNS.

use clap::Args;

use topo_lb_agent::dns;
use topo_lb_core::cluster::ServiceId;

/// Flags of `topo-lb agent` about DNS.
#[derive(Debug, Args)]
pub struct DnsArgs {
    /// Answer for headless Services with the annotation `topo-lb.io/dns: "true"` by their policies. The
    /// cluster DNS answers everything else, and everything while the agent is away
    #[arg(long, env = "TOPO_LB_DNS")]
    pub dns: bool,
    /// With --dns: the Service of the cluster DNS, whose queries the agent gets
    #[arg(long, value_name = "NAMESPACE/NAME", env = "TOPO_LB_DNS_SERVICE",
          default_value = "kube-system/kube-dns", value_parser = service)]
    pub dns_service: ServiceId,
    /// With --dns: the domain of the cluster
    #[arg(long, value_name = "DOMAIN", env = "TOPO_LB_DNS_DOMAIN", default_value = "cluster.local",
          value_parser = domain)]
    pub dns_domain: String,
    /// With --dns: the port of this node's own addresses at which the agent listens for this node
    #[arg(long, value_name = "PORT", env = "TOPO_LB_DNS_PORT", default_value_t = 10053,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub dns_port: u16,
}

impl DnsArgs {
    /// How the resolver is set up; `None`: the agent has none.
    pub(super) fn options(&self) -> Option<dns::Options> {
        self.dns.then(|| dns::Options {
            service: self.dns_service.clone(),
            domain: self.dns_domain.clone(),
            port: self.dns_port,
        })
    }
}

fn service(text: &str) -> Result<ServiceId, String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
            Ok(ServiceId { namespace: namespace.into(), name: name.into() })
        }
        _ => Err(format!("{text:?} is no NAMESPACE/NAME, such as kube-system/kube-dns")),
    }
}

/// A domain in lower case, without a dot at its end.
fn domain(text: &str) -> Result<String, String> {
    let domain = text.trim_end_matches('.').to_ascii_lowercase();
    let is_label = |label: &str| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(is_part)
    };
    match domain.len() <= 128 && domain.split('.').all(is_label) {
        true => Ok(domain),
        false => Err(format!("{text:?} is no domain, such as cluster.local")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_is_labels_with_dots_between() {
        assert_eq!(domain("Cluster.Local."), Ok("cluster.local".to_owned()));
        for wrong in ["", ".", "a..b", "a b", &"a".repeat(64)] {
            assert!(domain(wrong).is_err(), "{wrong}");
        }
        assert!(service("kube-dns").is_err() && service("kube-system/").is_err());
    }
}
