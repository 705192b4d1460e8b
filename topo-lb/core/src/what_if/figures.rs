//! What agents have counted of TCP connections, by Service port and node.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::sync::Arc;

use serde::Serialize;
use topo_lb_common::backend::Locality;

use crate::cluster::{Port, ServiceId, State};
use crate::explain::{shown_id, some};

/// Most names in a sentence.
const NAMED: usize = 5;
/// Kernels count bytes in 64 bits.
const MOST_BYTES: f64 = u64::MAX as f64;

/// Bytes that an agent has counted of connections to one Service port.
#[derive(Clone, Debug, PartialEq)]
pub struct Moved {
    /// The agent's node; `None` if it is not known.
    pub node: Option<Arc<str>>,
    /// The Service.
    pub service: ServiceId,
    /// The name of its port, or the number of one without a name.
    pub port: Arc<str>,
    /// How far the endpoints are from the client.
    pub locality: Locality,
    /// Whether clients dialled the endpoints' own addresses: no policy of the Service moves that.
    pub is_direct: bool,
    /// How many, in both directions or in one; what is no count is left out.
    pub bytes: f64,
}

/// Bytes that clients sent and received.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counted {
    /// To endpoints on the client's node or in its zone, and from them.
    pub(super) near: f64,
    /// To all others, and from them.
    pub(super) far: f64,
    /// Those of `far` that left the region.
    pub(super) beyond: f64,
}

impl Counted {
    pub(super) fn all(&self) -> f64 {
        self.near + self.far
    }
}

impl AddAssign for Counted {
    fn add_assign(&mut self, more: Self) {
        self.near += more.near;
        self.far += more.far;
        self.beyond += more.beyond;
    }
}

/// Open connections of clients to endpoints in a wider tier than the one in force. Its JSON is a fixed interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Wider {
    /// How many, of the nodes that know.
    pub connections: u64,
    /// Nodes whose clients use the Service port, and that do not know.
    pub unknown_nodes: u64,
}

/// By node; `None`: of unknown nodes.
pub(super) type ByNode = BTreeMap<Option<Arc<str>>, Counted>;

/// What agents have counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    services: BTreeMap<ServiceId, BTreeMap<Arc<str>, ByNode>>,
    /// Bytes of clients that dialled endpoints' own addresses.
    direct: BTreeMap<ServiceId, Counted>,
    /// Connections to a wider tier by Service port, of the nodes that know; and how many do not.
    wider: BTreeMap<(ServiceId, Arc<str>), (Option<u64>, u64)>,
    /// Texts that break off.
    cut: Vec<String>,
    /// Services with figures that are no counts of bytes.
    impossible: BTreeSet<ServiceId>,
    /// The time that they are of, such as `1d`; `None`: since the agents' counters began.
    pub(super) over: Option<Arc<str>>,
}

impl Extend<Moved> for Figures {
    fn extend<T: IntoIterator<Item = Moved>>(&mut self, all: T) {
        all.into_iter().for_each(|moved| self.count(moved));
    }
}

impl Figures {
    /// The sums of these, since the agents' counters began; `cut` are the places of texts that break off.
    pub fn since_start(all: impl IntoIterator<Item = Moved>, cut: Vec<String>) -> Self {
        let mut figures = Self { cut, ..Self::default() };
        figures.extend(all);
        figures
    }

    /// The sums of these, of a time such as `1d`.
    pub fn over(time: Arc<str>, all: impl IntoIterator<Item = Moved>) -> Self {
        let mut figures = Self { over: Some(time), ..Self::default() };
        figures.extend(all);
        figures
    }

    /// The sums of both, of the same time.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        for (service, ports) in other.services {
            let own = self.services.entry(service).or_default();
            for (port, nodes) in ports {
                let own = own.entry(port).or_default();
                for (node, more) in nodes {
                    *own.entry(node).or_default() += more;
                }
            }
        }
        for (service, more) in other.direct {
            *self.direct.entry(service).or_default() += more;
        }
        for ((service, port), (known, unknown)) in other.wider {
            self.count_wider(service, port, known, unknown);
        }
        self.cut.extend(other.cut);
        self.impossible.extend(other.impossible);
        self
    }

    /// Adds connections to a wider tier, of nodes that know, and nodes that do not know.
    pub fn count_wider(
        &mut self,
        service: ServiceId,
        port: Arc<str>,
        known: Option<u64>,
        unknown: u64,
    ) {
        let (sum, nodes) = self.wider.entry((service, port)).or_default();
        if let Some(known) = known {
            *sum = Some(sum.unwrap_or_default().saturating_add(known));
        }
        *nodes = nodes.saturating_add(unknown);
    }

    fn count(&mut self, Moved { node, service, port, locality, is_direct, bytes }: Moved) {
        if !(0.0..=MOST_BYTES).contains(&bytes) {
            self.impossible.insert(service);
            return;
        }
        let counted = if is_direct {
            self.direct.entry(service).or_default()
        } else {
            let ports = self.services.entry(service).or_default();
            ports.entry(port).or_default().entry(node).or_default()
        };
        *counted += match locality {
            Locality::Node | Locality::Zone => Counted { near: bytes, ..Counted::default() },
            Locality::Region => Counted { far: bytes, ..Counted::default() },
            Locality::Elsewhere => Counted { far: bytes, beyond: bytes, ..Counted::default() },
        };
    }

    /// Sentences on what of them does not fit the cluster of `state`.
    #[must_use]
    pub fn doubts(&self, state: &State) -> Vec<String> {
        let mut doubts = Vec::new();
        if self.services.is_empty() && self.direct.is_empty() {
            doubts
                .push("they count no bytes: is accounting on? `topo-lb check` says it".to_owned());
        }
        if !self.cut.is_empty() {
            let names = some(self.cut.iter().map(String::as_str), NAMED);
            doubts
                .push(format!("these break off before `# EOF`, so bytes may be missing: {names}"));
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

    /// Whether there are some of a Service.
    pub(super) fn has(&self, id: &ServiceId) -> bool {
        self.services.contains_key(id)
    }

    /// Whether there are some of a Service, or of clients that dialled its endpoints.
    pub(super) fn knows(&self, id: &ServiceId) -> bool {
        self.has(id) || self.direct.contains_key(id)
    }

    /// What left the zone of clients of these Services that dialled endpoints by their own addresses. What stays
    /// in it, such as the probes of kubelets, costs nothing.
    pub(super) fn direct<'a>(&self, ids: impl IntoIterator<Item = &'a ServiceId>) -> f64 {
        ids.into_iter().filter_map(|id| self.direct.get(id)).map(|it| it.far).sum()
    }

    /// The Services with such bytes in the cluster of `state`, those with most of them first.
    pub(super) fn dialled(&self, state: &State) -> Vec<&ServiceId> {
        let has = |(id, it): &(&ServiceId, &Counted)| it.far > 0.0 && state.service(id).is_some();
        let mut all: Vec<_> = self.direct.iter().filter(has).collect();
        all.sort_by(|(_, one), (_, other)| other.far.total_cmp(&one.far));
        all.into_iter().map(|(id, _)| id).collect()
    }

    /// Those of a Service port.
    pub(super) fn port(&self, id: &ServiceId, port: &Port) -> Option<&ByNode> {
        self.services.get(id)?.get(&label(port))
    }

    /// Connections to a Service port that lead to a wider tier; `None` if no node knows.
    pub(super) fn wider(&self, id: &ServiceId, port: &Port) -> Option<Wider> {
        let (known, unknown_nodes) = self.wider.get(&(id.clone(), label(port)))?;
        Some(Wider { connections: (*known)?, unknown_nodes: *unknown_nodes })
    }
}

/// What metrics call a Service port: its name, or its number if it has no name.
fn label(port: &Port) -> Arc<str> {
    match &*port.name {
        "" => port.port.to_string().into(),
        _ => Arc::clone(&port.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Protocol;

    fn web() -> ServiceId {
        ServiceId { namespace: "shop".into(), name: "web".into() }
    }

    const NEAR: Locality = Locality::Zone;
    const FAR: Locality = Locality::Region;

    fn moved(node: Option<&str>, port: &str, locality: Locality, bytes: f64) -> Moved {
        let (node, port) = (node.map(Into::into), port.into());
        Moved { node, service: web(), port, locality, is_direct: false, bytes }
    }

    fn figures(all: impl IntoIterator<Item = Moved>) -> Figures {
        Figures::since_start(all, Vec::new())
    }

    #[test]
    fn bytes_are_summed_by_port_and_node() {
        let n1 = |port, locality, bytes| moved(Some("n1"), port, locality, bytes);
        let all = [
            n1("http", Locality::Node, 1.0),
            n1("http", NEAR, 2.0),
            n1("http", FAR, 8.0),
            n1("http", Locality::Elsewhere, 4.0),
            n1("81", FAR, 16.0),
        ];
        let figures = figures(all.into_iter().chain([moved(None, "http", NEAR, 1.0)]));
        let port = |name: &str| {
            let port = Port { name: name.into(), port: 81, protocol: Protocol::Tcp };
            figures.port(&web(), &port).cloned()
        };
        let http = port("http").expect("figures");
        assert_eq!(http[&Some("n1".into())], Counted { near: 3.0, far: 12.0, beyond: 4.0 });
        assert_eq!(http[&None], Counted { near: 1.0, far: 0.0, beyond: 0.0 });
        assert_eq!(port("").expect("figures")[&Some("n1".into())].all(), 16.0);
        assert_eq!(port("https"), None);
    }

    #[test]
    fn connections_to_a_wider_tier_are_known_if_a_node_knows() {
        let port = Port { name: "".into(), port: 81, protocol: Protocol::Tcp };
        let of = |all: &[(Option<u64>, u64)]| {
            let one = |(known, unknown): &(Option<u64>, u64)| {
                let mut figures = Figures::default();
                figures.count_wider(web(), "81".into(), *known, *unknown);
                figures
            };
            all.iter().map(one).fold(Figures::default(), Figures::and).wider(&web(), &port)
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[(None, 1), (None, 1)]), None, "never a false zero");
        let known = Wider { connections: 7, unknown_nodes: 1 };
        assert_eq!(of(&[(Some(3), 0), (None, 1), (Some(4), 0)]), Some(known));
        assert_eq!(of(&[(Some(0), 0)]), Some(Wider::default()));
    }

    #[test]
    fn what_is_dialled_directly_is_apart() {
        let direct =
            |locality, bytes| Moved { is_direct: true, ..moved(None, "http", locality, bytes) };
        let figures = figures([direct(NEAR, 3.0), direct(FAR, 4.0)]);
        assert!(!figures.has(&web()));
        assert_eq!(figures.direct([&web()]), 4.0, "what stays in its zone costs nothing");
        let doubts = figures.doubts(&State::default());
        assert!(doubts.is_empty(), "they count bytes: {doubts:?}");
    }

    #[test]
    fn what_does_not_fit_the_cluster_is_told() {
        let all = figures([moved(Some("n1"), "http", NEAR, 1.0)]).doubts(&State::default());
        assert_eq!(all.len(), 2);
        assert!(all[0].contains("n1") && all[1].contains("shop/web"), "{all:?}");
        let all = figures([]).doubts(&State::default());
        assert!(matches!(&all[..], [one] if one.contains("no bytes")), "{all:?}");
        let cut = Figures::since_start([moved(None, "http", NEAR, 1.0)], vec!["n1.txt".to_owned()]);
        let all = cut.doubts(&State::default());
        assert!(all[0].starts_with("these break off before `# EOF`"), "{all:?}");
        assert!(all[0].ends_with("missing: n1.txt"), "{all:?}");
    }

    #[test]
    fn what_is_no_count_of_bytes_is_left_out() {
        for value in [f64::NAN, -1.0, f64::INFINITY, 1e300] {
            let figures = figures([moved(None, "http", NEAR, value)]);
            assert!(figures.services.is_empty(), "{value}");
            let doubts = figures.doubts(&State::default());
            let doubt = "these Services are no counts of bytes, and left out: shop/web";
            assert!(doubts.iter().any(|it| it.contains(doubt)), "{value}: {doubts:?}");
        }
    }
}
