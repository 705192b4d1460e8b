//! What agents have counted of TCP connections, by Service port and node: read from their metrics, or
//! from a Prometheus that scrapes them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use prometheus_parse::{Sample, Scrape, Value};

use crate::cluster::{Port, ServiceId, State};
use crate::explain::{shown, shown_id, some};
use crate::metrics::declared::{PREFIX, TCP_RECEIVED_BYTES, TCP_SENT_BYTES};

/// Most names in a sentence.
const NAMED: usize = 5;
/// Kernels count bytes in 64 bits.
const MOST_BYTES: f64 = u64::MAX as f64;
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

/// Bytes that an agent has counted of connections to one Service port.
#[derive(Clone, Debug, PartialEq)]
pub struct Moved {
    /// The agent's node; `None` if it is not known.
    pub node: Option<Arc<str>>,
    /// The Service.
    pub service: ServiceId,
    /// The name of its port, or the number of one without a name.
    pub port: Arc<str>,
    /// Whether the endpoints are on the client's node or in its zone.
    pub is_near: bool,
    /// How many, in both directions or in one; what is no count is left out.
    pub bytes: f64,
}

/// This is not the text of an agent's metrics, or one of a node that another text is of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}: {1}")]
pub struct NoMetrics(String, String);

/// Bytes that clients sent and received.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counted {
    /// To endpoints on the client's node or in its zone, and from them.
    pub(super) near: f64,
    /// To all others, and from them.
    pub(super) far: f64,
}

impl Counted {
    pub(super) fn all(&self) -> f64 {
        self.near + self.far
    }
}

/// By node; `None`: of unknown nodes.
pub(super) type ByNode = BTreeMap<Option<Arc<str>>, Counted>;

/// What agents have counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    services: BTreeMap<ServiceId, BTreeMap<Arc<str>, ByNode>>,
    /// Texts that break off.
    cut: Vec<String>,
    /// Services with figures that are no counts of bytes.
    impossible: BTreeSet<ServiceId>,
    /// The time that they are of, such as `1d`; `None`: since the agents' counters began.
    pub(super) over: Option<Arc<str>>,
}

impl Figures {
    /// The sums of these texts.
    ///
    /// # Errors
    /// A text is not that of an agent's metrics, or two are of one node.
    pub fn of(all: &[Scraped]) -> Result<Self, NoMetrics> {
        let mut figures = Self::default();
        let mut places = BTreeMap::new();
        for one in all {
            let wrong = |why: String| NoMetrics(one.place.clone(), why);
            if let Some(node) = &one.node
                && let Some(other) = places.insert(node, &one.place)
            {
                return Err(wrong(format!(
                    "it is of the node {}, and so is {other}: give one of them",
                    shown(node)
                )));
            }
            figures.add(one).map_err(|why| wrong(why.into()))?;
        }
        Ok(figures)
    }

    /// The sums of these, of a time such as `1d`.
    pub fn over(time: Arc<str>, all: impl IntoIterator<Item = Moved>) -> Self {
        let mut figures = Self { over: Some(time), ..Self::default() };
        all.into_iter().for_each(|moved| figures.count(moved));
        figures
    }

    fn count(&mut self, Moved { node, service, port, is_near, bytes }: Moved) {
        if !(0.0..=MOST_BYTES).contains(&bytes) {
            self.impossible.insert(service);
            return;
        }
        let nodes = self.services.entry(service).or_default().entry(port).or_default();
        let counted = nodes.entry(node).or_default();
        *(if is_near { &mut counted.near } else { &mut counted.far }) += bytes;
    }

    fn add(&mut self, Scraped { node, place, text }: &Scraped) -> Result<(), &'static str> {
        let scrape = Scrape::parse(text.lines().map(|line| Ok(line.to_owned())))
            .map_err(|_| "this is no text of metrics")?;
        if !scrape.samples.iter().any(|sample| sample.metric.starts_with(PREFIX)) {
            return Err("it has no metric of topo-lb: is it of an agent?");
        }
        if !text.trim_end().ends_with(END) {
            self.cut.push(place.clone());
        }
        let samples = scrape.samples.iter().filter_map(|sample| moved(node, sample));
        samples.for_each(|moved| self.count(moved));
        Ok(())
    }

    /// Sentences on what of them does not fit the cluster of `state`.
    #[must_use]
    pub fn doubts(&self, state: &State) -> Vec<String> {
        let mut doubts = Vec::new();
        if self.services.is_empty() {
            doubts
                .push("they count no bytes: is accounting on? `topo-lb check` says it".to_owned());
        }
        if !self.cut.is_empty() {
            let names = some(self.cut.iter().map(String::as_str), NAMED);
            doubts
                .push(format!("these break off before `{END}`, so bytes may be missing: {names}"));
        }
        if !self.impossible.is_empty() {
            let names: Vec<String> = self.impossible.iter().map(shown_id).collect();
            let names = some(names.iter().map(String::as_str), NAMED);
            doubts.push(format!(
                "figures of these Services are no counts of bytes, and left out: {names}"
            ));
        }
        let nodes =
            self.services.values().flat_map(BTreeMap::values).flat_map(BTreeMap::keys).flatten();
        let gone: BTreeSet<&str> =
            nodes.map(AsRef::as_ref).filter(|node| state.node(node).is_none()).collect();
        if !gone.is_empty() {
            let names = some(gone, NAMED);
            doubts.push(format!(
                "no Node has the name {names}: its bytes follow the connections of all nodes"
            ));
        }
        let gone = self.services.keys().filter(|id| state.service(id).is_none());
        let gone: Vec<String> = gone.map(shown_id).collect();
        if !gone.is_empty() {
            let names = some(gone.iter().map(String::as_str), NAMED);
            doubts.push(format!("the cluster has no Services of these names: {names}; left out"));
        }
        doubts
    }

    /// Those of a Service port: by its name, or by its number if it has no name.
    pub(super) fn port(&self, id: &ServiceId, port: &Port) -> Option<&ByNode> {
        let ports = self.services.get(id)?;
        match &*port.name {
            "" => ports.get(&*port.port.to_string()),
            name => ports.get(name),
        }
    }
}

/// Whether bytes of this label `locality` stayed in their zone; `None` for an unknown one: an agent of
/// another version may have more.
#[must_use]
pub fn is_near(locality: &str) -> Option<bool> {
    match locality {
        "node" | "zone" => Some(true),
        "region" | "elsewhere" => Some(false),
        _ => None,
    }
}

/// What a sample says; `None` for samples of other metrics.
fn moved(node: &Option<Arc<str>>, sample: &Sample) -> Option<Moved> {
    if ![TCP_SENT_BYTES.name, TCP_RECEIVED_BYTES.name].contains(&&*sample.metric) {
        return None;
    }
    let label = |name| sample.labels.get(name);
    // OpenMetrics names the family without `_total`, so the parser does not know the type.
    let (Value::Counter(bytes) | Value::Untyped(bytes)) = sample.value else { return None };
    Some(Moved {
        node: node.clone(),
        service: ServiceId {
            namespace: label("namespace")?.into(),
            name: label("service")?.into(),
        },
        port: label("port")?.into(),
        is_near: is_near(label("locality")?)?,
        bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Protocol;

    fn scraped(node: Option<&str>, text: &str) -> Scraped {
        Scraped {
            node: node.map(Into::into),
            place: "a file".into(),
            text: format!("{text}{END}\n"),
        }
    }

    fn line(name: &str, port: &str, locality: &str, value: &str) -> String {
        format!(
            "topo_lb_tcp_{name}_bytes_total{{namespace=\"shop\",service=\"web\",port=\"{port}\",\
             locality=\"{locality}\",tier=\"0\"}} {value}\n"
        )
    }

    fn web() -> ServiceId {
        ServiceId { namespace: "shop".into(), name: "web".into() }
    }

    #[test]
    fn directions_and_tiers_are_summed_by_port_and_node() {
        let text = [
            line("sent", "http", "node", "1"),
            line("received", "http", "zone", "2"),
            line("sent", "http", "region", "4"),
            line("received", "http", "elsewhere", "8"),
            line("sent", "81", "elsewhere", "16"),
        ];
        let all = [scraped(Some("n1"), &text.concat()), scraped(None, &text[0])];
        let figures = Figures::of(&all).expect("metrics");
        let port = |name: &str| {
            let port = Port { name: name.into(), port: 81, protocol: Protocol::Tcp };
            figures.port(&web(), &port).cloned()
        };
        let http = port("http").expect("figures");
        assert_eq!(http[&Some("n1".into())], Counted { near: 3.0, far: 12.0 });
        assert_eq!(http[&None], Counted { near: 1.0, far: 0.0 });
        assert_eq!(port("").expect("figures")[&Some("n1".into())].all(), 16.0);
        assert_eq!(port("https"), None);
    }

    #[test]
    fn what_does_not_fit_the_cluster_is_told() {
        let doubts = |text: &str| {
            Figures::of(&[scraped(Some("n1"), text)]).expect("metrics").doubts(&State::default())
        };
        let all = doubts(&line("sent", "http", "node", "1"));
        assert_eq!(all.len(), 2);
        assert!(all[0].contains("n1") && all[1].contains("shop/web"), "{all:?}");
        let all = doubts("topo_lb_ready 1\n");
        assert!(matches!(&all[..], [one] if one.contains("no bytes")), "{all:?}");
    }

    #[test]
    fn what_is_no_count_of_bytes_is_left_out() {
        let one = |locality, value| {
            Figures::of(&[scraped(None, &line("sent", "http", locality, value))]).expect("metrics")
        };
        assert_eq!(one("moon", "1"), Figures::default());
        for value in ["NaN", "-1", "+Inf", "1e300"] {
            let figures = one("node", value);
            assert!(figures.services.is_empty(), "{value}");
            let doubts = figures.doubts(&State::default());
            let doubt = "these Services are no counts of bytes, and left out: shop/web";
            assert!(doubts.iter().any(|it| it.contains(doubt)), "{value}: {doubts:?}");
        }
        let other =
            "topo_lb_connections_total{namespace=\"a\",service=\"b\",locality=\"node\"} 1\n";
        assert_eq!(Figures::of(&[scraped(None, other)]), Ok(Figures::default()));
    }

    #[test]
    fn a_text_that_breaks_off_is_named() {
        let text = line("sent", "http", "node", "12");
        let cut = Scraped { node: None, place: "n1.txt".into(), text };
        let doubts = Figures::of(&[cut]).expect("metrics").doubts(&State::default());
        assert!(doubts[0].starts_with("these break off before `# EOF`"), "{doubts:?}");
        assert!(doubts[0].ends_with("missing: n1.txt"), "{doubts:?}");
    }

    #[test]
    fn a_node_counts_once() {
        let text = line("sent", "http", "node", "12");
        let [one, other] = ["n1.txt", "n1.prom"]
            .map(|place| Scraped { place: place.into(), ..scraped(Some("n1"), &text) });
        let error = Figures::of(&[one, other]).expect_err("twice").to_string();
        assert_eq!(error, "n1.prom: it is of the node n1, and so is n1.txt: give one of them");
        assert!(Figures::of(&[scraped(None, &text), scraped(None, &text)]).is_ok());
    }

    #[test]
    fn a_text_that_is_not_an_agent_s_is_named() {
        for text in ["", "<html>", "go_goroutines 7\n"] {
            let error = Figures::of(&[scraped(None, text)]).expect_err("no metrics");
            assert!(error.to_string().starts_with("a file: "), "{error}");
        }
    }
}
