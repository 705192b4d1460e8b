//! Whether a decision reads labels of other Nodes. EndpointSlices have the node's name and usually
//! its zone; in Kubernetes 1.20 also its region and host name. Other labels must be read from the
//! Nodes, of which a large cluster has thousands.

use crate::cluster::Endpoint;
use crate::cluster::{KnownNodes, ServiceId, State};

use super::label::{HOSTNAME, Here, NODEPOOL};
use super::openyurt::Reach;
use super::policy::{self, Rules};
use super::validation::ANY;
use super::{Scope, has_frontends};

/// The label of other Nodes that this Service waits for; `None` if it can be decided now.
#[must_use]
pub fn waits_for<'a>(
    state: &'a State,
    this_node: &str,
    scope: Scope,
    id: &ServiceId,
) -> Option<&'a str> {
    match state.known_nodes() {
        KnownNodes::Own => reads_other_nodes(state, this_node, scope, id),
        KnownNodes::All => None,
    }
}

/// A label that the decision for this Service reads from a Node other than `this_node`, whether or
/// not `state` has that Node; `None` if it reads none.
#[must_use]
pub fn reads_other_nodes<'a>(
    state: &'a State,
    this_node: &str,
    scope: Scope,
    id: &ServiceId,
) -> Option<&'a str> {
    let service = state.service(id).filter(|service| has_frontends(service))?;
    // `internalTrafficPolicy: Local` leaves only this node's endpoints, with known labels.
    if service.internal_local {
        return None;
    }
    let policy = policy::of(service);
    if policy.bypass(scope, service).is_some() {
        return None;
    }
    let here = Here::of(state, this_node);
    let elsewhere = |lacks: &dyn Fn(&Endpoint) -> bool| {
        state
            .slices(id)
            .flat_map(|(_, slice)| &slice.endpoints)
            .filter(|endpoint| endpoint.node().is_some_and(|node| **node != *this_node))
            .any(lacks)
    };
    match policy.rules {
        Rules::None => None,
        // Pools are sets of Nodes, so labels of slices do not count.
        Rules::OpenYurt { reach: Reach::Pool, .. } => {
            (here.pool().is_some() && elsewhere(&|_| true)).then_some(NODEPOOL)
        }
        Rules::OpenYurt { reach: Reach::Node, .. } => None,
        Rules::Keys(keys) => keys.keys.into_iter().find(|&key| match here.label(key) {
            // A key that this node lacks matches no endpoint.
            None => false,
            // Host names are assumed to equal Node names if they do on this node.
            Some(own) if key == HOSTNAME && own == here.name => false,
            Some(_) => key != ANY && elsewhere(&|endpoint| endpoint.label(key).is_none()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cluster::service::PolicySources;
    use crate::cluster::{
        Change, Endpoint, Node, Place, Port, Protocol, Service, Slice, SliceId, Update,
    };
    use crate::topology::label::{REGION, ZONE};

    fn id() -> ServiceId {
        ServiceId { namespace: "default".into(), name: "web".into() }
    }

    fn with(keys: &str) -> PolicySources {
        PolicySources { topology_keys: Some(keys.into()), ..PolicySources::default() }
    }

    fn openyurt(value: &str) -> PolicySources {
        PolicySources { openyurt: Some(value.into()), ..PolicySources::default() }
    }

    fn service(policy: PolicySources) -> Service {
        Service {
            id: id(),
            cluster_ips: vec![[10, 96, 0, 5].into()],
            ports: vec![Port { name: "".into(), port: 80, protocol: Protocol::Tcp }],
            policy: Arc::new(policy),
            ..Service::default()
        }
    }

    /// An endpoint on `node`, with these labels in its slice.
    fn slice(node: Option<&str>, labels: &[&str]) -> Slice {
        let endpoint = Endpoint::new(
            [10, 1, 1, 1].into(),
            Place {
                node: node.map(Into::into),
                labels: labels.iter().map(|&key| (key.into(), "x".into())).collect(),
                ..Place::default()
            },
        );
        Slice {
            id: SliceId { namespace: "default".into(), name: "web-1".into() },
            service: Some(id()),
            ports: vec![Port { name: "".into(), port: 80, protocol: Protocol::Tcp }],
            endpoints: vec![endpoint],
            triggered: None,
        }
    }

    /// The label that node `here`, with labels `own`, reads from other Nodes.
    fn read(own: &[(&str, &str)], service: Service, slice: Slice, scope: Scope) -> Option<String> {
        let labels = own.iter().map(|&(key, value)| (key.into(), value.into())).collect();
        let mut state = State::default();
        for update in [
            Update::Node(Change::Applied(Node { name: "here".into(), labels })),
            Update::Service(Change::Applied(service)),
            Update::Slice(Change::Applied(slice)),
        ] {
            let _ = state.apply(update, "here");
        }
        reads_other_nodes(&state, "here", scope, &id()).map(str::to_owned)
    }

    const OWN: &[(&str, &str)] =
        &[(HOSTNAME, "here"), (ZONE, "a"), (REGION, "r"), ("rack", "1"), (NODEPOOL, "pool")];

    #[test]
    fn a_label_that_the_slice_carries_is_read_from_no_node() {
        for (keys, carried, read_from_nodes) in [
            ("kubernetes.io/hostname,topology.kubernetes.io/zone,*", &[ZONE][..], None),
            ("topology.kubernetes.io/zone", &[], Some(ZONE)),
            ("topology.kubernetes.io/region", &[ZONE], Some(REGION)),
            // As in Kubernetes 1.20.
            ("topology.kubernetes.io/region", &[HOSTNAME, ZONE, REGION], None),
            ("rack,*", &[HOSTNAME, ZONE, REGION], Some("rack")),
            // This node lacks the label, so no endpoint matches.
            ("room,*", &[], None),
            ("*", &[], None),
        ] {
            let slice = slice(Some("there"), carried);
            let read = read(OWN, service(with(keys)), slice, Scope::All);
            assert_eq!(read.as_deref(), read_from_nodes, "{keys} {carried:?}");
        }
    }

    #[test]
    fn endpoints_of_this_node_or_of_none_need_no_other_node() {
        for node in [Some("here"), None] {
            let read = read(OWN, service(with("rack")), slice(node, &[]), Scope::All);
            assert_eq!(read, None, "{node:?}");
        }
        let local = Service { internal_local: true, ..service(with("rack")) };
        assert_eq!(read(OWN, local, slice(Some("there"), &[]), Scope::All), None);
    }

    #[test]
    fn host_names_that_are_not_the_names_of_nodes_are_read() {
        let keys = || service(with("kubernetes.io/hostname"));
        let there = || slice(Some("there"), &[]);
        assert_eq!(read(OWN, keys(), there(), Scope::All), None);
        let own = [(HOSTNAME, "here.example.com")];
        assert_eq!(read(&own, keys(), there(), Scope::All).as_deref(), Some(HOSTNAME));
    }

    #[test]
    fn pools_are_read_from_nodes_and_hints_are_not() {
        let there = || slice(Some("there"), &[ZONE]);
        let pool = || service(openyurt("openyurt.io/nodepool"));
        assert_eq!(read(OWN, pool(), there(), Scope::All).as_deref(), Some(NODEPOOL));
        // A node without a pool uses its own endpoints.
        assert_eq!(read(&[(ZONE, "a")], pool(), there(), Scope::All), None);
        let host = service(openyurt(HOSTNAME));
        assert_eq!(read(OWN, host, there(), Scope::All), None);
        let hints = PolicySources { hints_asked: true, ..PolicySources::default() };
        assert_eq!(read(OWN, service(hints), there(), Scope::All), None);
    }

    #[test]
    fn what_is_not_handled_reads_nothing() {
        let broken = service(with("rack,,"));
        assert_eq!(read(OWN, broken, slice(Some("there"), &[]), Scope::OptIn), None);
        let skipped = Service {
            skipped: Some(crate::cluster::service::Skipped::OtherProxy),
            ..service(with("rack"))
        };
        assert_eq!(read(OWN, skipped, slice(Some("there"), &[]), Scope::All), None);
    }
}
