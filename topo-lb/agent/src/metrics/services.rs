//! The metrics of connections to Service ports.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::bounded::Shown;
use super::sample::counter;
use topo_lb_core::refusal::Refusal;

/// Encodes all of them. `refusing`: Service ports that refuse now; `observes`: the programs count only.
pub(super) fn encode(
    shown: &Shown,
    refusing: &BTreeMap<Refusal, u64>,
    observes: bool,
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    // What would have been must not have the name of what has been.
    let name = |own: &'static str, would_be: &'static str| if observes { would_be } else { own };
    let help = "Connections of this node to a Service port by where they went (while observing: would \
                have gone): an endpoint on the same node, in its zone, its region, or elsewhere. Only \
                Service ports that had any";
    let own = name("connections", "would_be_connections");
    let mut family = encoder.encode_descriptor(own, help, None, MetricType::Counter)?;
    for (name, counters) in &shown.connections {
        for (locality, value) in [
            ("node", counters.same_node),
            ("zone", counters.same_zone),
            ("region", counters.same_region),
            ("elsewhere", counters.elsewhere),
        ] {
            if value > 0 {
                counter(&mut family, &labels(name.as_deref(), "locality", locality), value)?;
            }
        }
    }
    let help = "Connections of this node to a Service port that were refused (while observing: would \
                have been), by the reason at the time of the scrape that first saw them";
    let own = name("refused_connections", "would_be_refused_connections");
    let mut family = encoder.encode_descriptor(own, help, None, MetricType::Counter)?;
    for ((name, reason), value) in &shown.refused {
        counter(&mut family, &labels(name.as_deref(), "reason", reason.into()), *value)?;
    }
    let help = "Service ports that refuse (while observing: would refuse) connections of this node \
                now, by reason";
    let own = name("refusing_service_ports", "would_be_refusing_service_ports");
    let mut family = encoder.encode_descriptor(own, help, None, MetricType::Gauge)?;
    for reason in Refusal::ALL.into_iter().filter(|reason| *reason != Refusal::Past) {
        let value = refusing.get(&reason).copied().unwrap_or_default();
        family.encode_family(&[("reason", <&str>::from(reason))])?.encode_gauge(&value)?;
    }
    if !observes {
        return Ok(());
    }
    let help = "Connections of this node to a Service port by where another proxy sent them, while \
                topo-lb observes";
    let mut family =
        encoder.encode_descriptor("observed_connections", help, None, MetricType::Counter)?;
    for ((name, locality), value) in &shown.observed {
        counter(&mut family, &labels(name.as_deref(), "locality", locality.name()), *value)?;
    }
    Ok(())
}

/// The labels of a Service port, and one more.
fn labels<'a>(
    name: Option<&'a str>,
    key: &'static str,
    value: &'static str,
) -> [(&'static str, &'a str); 4] {
    let [namespace, service, port] = shown_parts(name);
    [("namespace", namespace), ("service", service), ("port", port), (key, value)]
}

/// `namespace`, `service` and `port` of all Service ports without series of their own. No name in
/// Kubernetes has parentheses.
const OTHERS: &str = "(others)";

/// Namespace, Service and port of a Service port, or of all others.
pub(super) fn shown_parts(name: Option<&str>) -> [&str; 3] {
    name.map_or([OTHERS; 3], parts)
}

/// Namespace, Service and port of `namespace/name:port`.
pub fn parts(name: &str) -> [&str; 3] {
    let (service, port) = name.rsplit_once(':').unwrap_or((name, ""));
    let (namespace, service) = service.split_once('/').unwrap_or(("", service));
    [namespace, service, port]
}
