//! Reads what agents have counted from the text of their metrics.

use std::collections::BTreeMap;
use std::sync::Arc;

use prometheus_parse::{Sample, Scrape, Value};
use rayon::prelude::*;
use topo_lb_core::cluster::ServiceId;
use topo_lb_core::explain::shown;
use topo_lb_core::metrics;
use topo_lb_core::metrics::declared::{
    PREFIX, TCP_RECEIVED_BYTES, TCP_SENT_BYTES, WIDER_TIER_CONNECTIONS,
};
use topo_lb_core::what_if::{Figures, Moved};

/// The label `tier` of what clients dialled by the endpoints' own addresses.
pub(crate) const DIRECT: &str = "direct";

/// The metrics that count bytes.
const COUNTED: [&str; 2] = [TCP_SENT_BYTES.name, TCP_RECEIVED_BYTES.name];
/// Open connections to a wider tier.
const WIDER: &str = WIDER_TIER_CONNECTIONS.name;

/// How an agent's metrics end, as OpenMetrics has it.
const END: &str = "# EOF";

/// An agent's metrics, as OpenMetrics text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scraped {
    /// The agent's node; `None` if it is not known.
    pub node: Option<Arc<str>>,
    /// Where the text is from, for messages.
    pub place: String,
    /// The text.
    pub text: String,
}

/// This is not the text of an agent's metrics, or one of a node that another text is of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}: {1}")]
pub struct NoMetrics(String, String);

/// The sums of these texts.
///
/// # Errors
/// A text is not that of an agent's metrics, or two are of one node.
pub fn figures(all: &[Scraped]) -> Result<Figures, NoMetrics> {
    let mut places = BTreeMap::new();
    for Scraped { node, place, .. } in all {
        if let Some(node) = node
            && let Some(other) = places.insert(node, place)
        {
            let name = shown(node);
            let why = format!("it is of the node {name}, and so is {other}: give one of them");
            return Err(NoMetrics(place.clone(), why));
        }
    }
    let breaks_off = |it: &&Scraped| !it.text.trim_end().ends_with(END);
    let cut = all.iter().filter(breaks_off).map(|it| it.place.clone()).collect();
    // A thousand agents have millions of samples, so each is summed as it is read.
    let sums = all.par_iter().try_fold(Figures::default, |mut figures, text| {
        read(&mut figures, text)?;
        Ok(figures)
    });
    let sums = sums.try_reduce(Figures::default, |one, other| Ok(one.and(other)))?;
    Ok(sums.and(Figures::since_start([], cut)))
}

fn read(figures: &mut Figures, Scraped { node, place, text }: &Scraped) -> Result<(), NoMetrics> {
    let wrong = |why: &str| NoMetrics(place.clone(), why.to_owned());
    if !text.lines().any(|line| line.starts_with(PREFIX)) {
        return Err(wrong("it has no metric of topo-lb: is it of an agent?"));
    }
    // The parser takes most of the time, and most lines are of other metrics.
    let is_read = |line: &&str| COUNTED.iter().chain([&WIDER]).any(|name| line.starts_with(*name));
    let lines = text.lines().filter(is_read).map(|line| Ok(line.to_owned()));
    let scrape = Scrape::parse(lines).map_err(|_| wrong("this is no text of metrics"))?;
    let mut wider = BTreeMap::new();
    for sample in scrape.samples {
        if let Some(moved) = moved(node, &sample) {
            if !moved.is_direct {
                wider.entry((moved.service.clone(), Arc::clone(&moved.port))).or_default();
            }
            figures.extend([moved]);
        } else if sample.metric == WIDER
            && let (Some(port), Value::Gauge(count) | Value::Untyped(count)) =
                (service_port(&sample), sample.value)
        {
            wider.insert(port, Some(count as u64));
        }
    }
    for ((service, port), known) in wider {
        figures.count_wider(service, port, known, u64::from(known.is_none()));
    }
    Ok(())
}

fn service_port(sample: &Sample) -> Option<(ServiceId, Arc<str>)> {
    let label = |name| sample.labels.get(name);
    let (namespace, name) = (label("namespace")?.into(), label("service")?.into());
    Some((ServiceId { namespace, name }, label("port")?.into()))
}

/// What a sample says; `None` for samples of other metrics.
fn moved(node: &Option<Arc<str>>, sample: &Sample) -> Option<Moved> {
    if !COUNTED.contains(&sample.metric.as_str()) {
        return None;
    }
    let label = |name| sample.labels.get(name);
    // OpenMetrics names the family without `_total`, so the parser does not know the type.
    let (Value::Counter(bytes) | Value::Untyped(bytes)) = sample.value else { return None };
    let (service, port) = service_port(sample)?;
    Some(Moved {
        node: node.clone(),
        service,
        port,
        locality: metrics::locality(label("locality")?)?,
        is_direct: label("tier") == Some(DIRECT),
        bytes,
    })
}

#[cfg(test)]
mod tests {
    use topo_lb_common::backend::Locality;
    use topo_lb_core::cluster::State;

    use super::*;

    fn scraped(node: Option<&str>, text: &str) -> Scraped {
        let text = format!("{text}{END}\n");
        Scraped { node: node.map(Into::into), place: "a file".into(), text }
    }

    fn line(name: &str, port: &str, locality: &str, value: &str) -> String {
        format!(
            "topo_lb_tcp_{name}_bytes_total{{namespace=\"shop\",service=\"web\",port=\"{port}\",\
             locality=\"{locality}\",tier=\"0\"}} {value}\n"
        )
    }

    #[test]
    fn both_directions_count_by_locality() {
        let text = [
            line("sent", "http", "node", "1"),
            line("received", "http", "zone", "2"),
            line("sent", "http", "region", "4"),
            line("received", "81", "elsewhere", "8"),
            line("sent", "http", "moon", "16"),
            "topo_lb_connections_total{namespace=\"a\",service=\"b\",locality=\"node\"} 1\n".into(),
        ];
        let one = |port: &str, locality, bytes| Moved {
            node: Some("n1".into()),
            service: ServiceId { namespace: "shop".into(), name: "web".into() },
            port: port.into(),
            locality,
            is_direct: false,
            bytes,
        };
        let all = [
            one("http", Locality::Node, 1.0),
            one("http", Locality::Zone, 2.0),
            one("http", Locality::Region, 4.0),
            one("81", Locality::Elsewhere, 8.0),
        ];
        let mut wanted = Figures::since_start(all, Vec::new());
        for port in ["http", "81"] {
            wanted.count_wider(one(port, Locality::Node, 0.0).service, port.into(), None, 1);
        }
        assert_eq!(figures(&[scraped(Some("n1"), &text.concat())]), Ok(wanted));
    }

    #[test]
    fn connections_to_a_wider_tier_are_of_the_nodes_that_know() {
        let bytes = line("sent", "http", "node", "0");
        let port = r#"{namespace="shop",service="web",port="http"}"#;
        let knows = format!("{bytes}topo_lb_wider_tier_connections{port} 14\n");
        let service = ServiceId { namespace: "shop".into(), name: "web".into() };
        let moved = |node: &str| Moved {
            node: Some(node.into()),
            service: service.clone(),
            port: "http".into(),
            locality: Locality::Node,
            is_direct: false,
            bytes: 0.0,
        };
        let mut wanted = Figures::since_start(["n1", "n2"].map(moved), Vec::new());
        wanted.count_wider(service.clone(), "http".into(), Some(14), 1);
        let read = figures(&[scraped(Some("n1"), &knows), scraped(Some("n2"), &bytes)]);
        assert_eq!(read, Ok(wanted));
    }

    #[test]
    fn what_is_left_is_demand_and_what_is_dialled_directly_is_none() {
        let of = |tier: &str| {
            line("sent", "http", "region", "5").replace("tier=\"0\"", &format!("tier=\"{tier}\""))
        };
        let read = |tier: &str| figures(&[scraped(None, &of(tier))]).expect("metrics");
        assert_eq!(read("left"), read("none"));
        assert_ne!(read("direct"), read("none"));
        assert_eq!(read("direct").doubts(&State::default()), [""; 0], "they count bytes");
    }

    #[test]
    fn a_text_that_breaks_off_is_named() {
        let text = line("sent", "http", "node", "12");
        let cut = Scraped { node: None, place: "n1.txt".into(), text };
        let doubts = figures(&[cut]).expect("metrics").doubts(&State::default());
        assert!(doubts[0].starts_with("these break off before `# EOF`"), "{doubts:?}");
        assert!(doubts[0].ends_with("missing: n1.txt"), "{doubts:?}");
    }

    #[test]
    fn a_node_counts_once() {
        let text = line("sent", "http", "node", "12");
        let [one, other] = ["n1.txt", "n1.prom"]
            .map(|place| Scraped { place: place.into(), ..scraped(Some("n1"), &text) });
        let error = figures(&[one, other]).expect_err("twice").to_string();
        assert_eq!(error, "n1.prom: it is of the node n1, and so is n1.txt: give one of them");
        assert!(figures(&[scraped(None, &text), scraped(None, &text)]).is_ok());
    }

    #[test]
    fn a_text_that_is_not_an_agent_s_is_named() {
        for text in ["", "<html>", "go_goroutines 7\n"] {
            let error = figures(&[scraped(None, text)]).expect_err("no metrics");
            assert!(error.to_string().starts_with("a file: "), "{error}");
        }
    }
}
