//! The metrics of connections to Service ports.

use std::collections::BTreeMap;
use std::fmt;

use super::bounded::Shown;
use super::families::Families;
use topo_lb_core::metrics::declared::{self, Metric};
use topo_lb_core::refusal::Refusal;

/// Encodes all of them. `refusing`: Service ports that refuse now; `observes`: the programs count only.
pub(super) fn encode(
    shown: &Shown,
    refusing: &BTreeMap<Refusal, u64>,
    observes: bool,
    families: &mut Families<'_, '_>,
) -> fmt::Result {
    // What would have been must not have the name of what has been.
    let name = |own: &'static Metric, would_be| if observes { would_be } else { own };
    let metric = name(&declared::CONNECTIONS, &declared::WOULD_BE_CONNECTIONS);
    let mut family = families.begin(metric)?;
    for (name, counters) in &shown.connections {
        let [namespace, service, port] = shown_parts(name.as_deref());
        for (locality, value) in [
            ("node", counters.same_node),
            ("zone", counters.same_zone),
            ("region", counters.same_region),
            ("elsewhere", counters.elsewhere),
        ] {
            if value > 0 {
                family.sample(&[namespace, service, port, locality], value)?;
            }
        }
    }
    let metric = name(&declared::REFUSED_CONNECTIONS, &declared::WOULD_BE_REFUSED_CONNECTIONS);
    let mut family = families.begin(metric)?;
    for ((name, reason), value) in &shown.refused {
        let [namespace, service, port] = shown_parts(name.as_deref());
        family.sample(&[namespace, service, port, reason.into()], *value)?;
    }
    let metric =
        name(&declared::REFUSING_SERVICE_PORTS, &declared::WOULD_BE_REFUSING_SERVICE_PORTS);
    let mut family = families.begin(metric)?;
    for reason in Refusal::ALL.into_iter().filter(|reason| *reason != Refusal::Past) {
        family.sample(&[reason.into()], refusing.get(&reason).copied().unwrap_or_default())?;
    }
    if !observes {
        return Ok(());
    }
    let mut family = families.begin(&declared::OBSERVED_CONNECTIONS)?;
    for ((name, locality), value) in &shown.observed {
        let [namespace, service, port] = shown_parts(name.as_deref());
        family.sample(&[namespace, service, port, locality.name()], *value)?;
    }
    Ok(())
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
