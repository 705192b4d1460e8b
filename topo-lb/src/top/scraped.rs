//! What an agent has counted, read from its metrics.

use std::sync::Arc;

use prometheus_parse::{Sample, Scrape, Value};
use topo_lb_common::backend::Locality;

use super::traffic::{Totals, Traffic};

/// The totals in an agent's OpenMetrics text. Series of other metrics, without a Service or with an
/// unknown locality, are left out: an agent of another version may have more.
///
/// # Errors
/// A sentence if this is no metrics text, or not that of an agent.
pub(super) fn traffic(text: &str) -> Result<Traffic, String> {
    let scrape = Scrape::parse(text.lines().map(|line| Ok(line.to_owned())))
        .map_err(|error| format!("its metrics cannot be read: {error}"))?;
    let mut traffic = Traffic::new();
    let mut is_agent = false;
    for sample in scrape.samples {
        let Some(name) = sample.metric.strip_prefix("topo_lb_") else { continue };
        is_agent = true;
        let Some(value) = count(&sample.value) else { continue };
        let Some(service) = service(&sample) else { continue };
        let totals = traffic.entry(service).or_default();
        add(totals, name, &sample, value);
    }
    if is_agent { Ok(traffic) } else { Err("it has no metric of topo-lb: is it an agent?".into()) }
}

fn add(totals: &mut Totals, name: &str, sample: &Sample, value: f64) {
    let locality = || {
        let name = sample.labels.get("locality")?;
        Locality::ALL.into_iter().find(|locality| locality.name() == name)
    };
    let by_locality = match name {
        "connections_total" => &mut totals.connections,
        "tcp_sent_bytes_total" | "tcp_received_bytes_total" => &mut totals.bytes,
        "refused_connections_total" => return totals.refused += value,
        "connect_failures_total" => return totals.failed += value,
        _ => return,
    };
    if let Some(locality) = locality() {
        by_locality[locality as usize] += value;
    }
}

/// The value of a counter. OpenMetrics names the family without `_total`, so the parser does not know
/// the type of a sample.
fn count(value: &Value) -> Option<f64> {
    match value {
        Value::Counter(value) | Value::Untyped(value) => Some(*value).filter(|it| it.is_finite()),
        Value::Gauge(_) | Value::Histogram(_) | Value::Summary(_) => None,
    }
}

fn service(sample: &Sample) -> Option<Arc<str>> {
    let (namespace, name) = (sample.labels.get("namespace")?, sample.labels.get("service")?);
    Some(format!("{namespace}/{name}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_a_service_are_summed_and_what_is_unknown_is_left_out() {
        let text = "# HELP topo_lb_connections Connections\n\
            # TYPE topo_lb_connections counter\n\
            topo_lb_connections_total{namespace=\"default\",service=\"web\",port=\"http\",locality=\"node\"} 3\n\
            topo_lb_connections_total{namespace=\"default\",service=\"web\",port=\"80\",locality=\"node\"} 4\n\
            topo_lb_connections_total{namespace=\"default\",service=\"web\",port=\"80\",locality=\"moon\"} 9\n\
            topo_lb_refused_connections_total{namespace=\"default\",service=\"web\",port=\"80\",reason=\"past\"} 2\n\
            topo_lb_tcp_sent_bytes_total{namespace=\"default\",service=\"web\",locality=\"elsewhere\"} 1e3\n\
            topo_lb_ready 1\n\
            # EOF\n";
        let traffic = traffic(text).expect("metrics");
        let wanted = Totals {
            connections: [7.0, 0.0, 0.0, 0.0],
            refused: 2.0,
            bytes: [0.0, 0.0, 0.0, 1000.0],
            ..Totals::default()
        };
        assert_eq!(traffic, Traffic::from([("default/web".into(), wanted)]));
    }

    #[test]
    fn a_page_that_is_not_an_agent_s_is_refused() {
        assert!(traffic("<html>not found</html>").is_err());
        assert!(traffic("go_goroutines 7\n").is_err());
        assert!(traffic("").is_err());
    }

    #[test]
    fn a_number_that_is_none_is_left_out() {
        let text =
            "topo_lb_connections_total{namespace=\"a\",service=\"b\",locality=\"node\"} NaN\n";
        assert_eq!(traffic(text), Ok(Traffic::new()));
    }
}
