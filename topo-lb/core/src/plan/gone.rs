//! Endpoints that no longer serve a Service port: their sockets can be ended.
//!
//! A plan also removes the members of a Service that lacks room or is left to kube-proxy, while
//! they go on serving. So its removals are compared with the state of the cluster.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use super::finished::Plan;
use super::indexes::service_of;
use super::installed::Installed;
use super::step::Step;
use crate::cluster::{Clients, Family, Frontend, ServiceId};

/// An endpoint that no longer serves connections to these frontends, not even existing ones.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gone {
    /// `namespace/name:port`.
    pub service: Arc<str>,
    /// The frontends that its clients dialled, of the endpoint's family; at least one.
    pub frontends: Vec<Frontend>,
    /// The endpoint's address and port.
    pub endpoint: SocketAddr,
}

/// Endpoints that stop serving with `plan`: the members that it removes, except those in `serving`
/// of the frontend. `installed` is the state before the plan; at start it has the members that the
/// last agent wrote, so that endpoints that stopped while no agent ran are found, too.
pub fn gone(
    plan: &Plan,
    installed: &Installed,
    serving: impl Fn(&ServiceId, &Frontend) -> HashSet<SocketAddr>,
) -> Vec<Gone> {
    let mut removed: BTreeMap<u32, Vec<SocketAddr>> = BTreeMap::new();
    for step in &plan.steps {
        if let Step::RemoveMember { index, endpoint } = step {
            removed.entry(*index).or_default().push(*endpoint);
        }
    }
    let mut all = Vec::new();
    for (index, endpoints) in removed {
        let Some(service) = installed.indexes().name(index) else { continue };
        let Some(id) = service_of(service) else { continue };
        let mut steered = BTreeMap::new();
        let serving = |frontend: &Frontend| Rc::new(serving(&id, frontend));
        let mut of = |frontend: &Frontend| match frontend.clients {
            // There may be a thousand, for which the same endpoints serve.
            Clients::Steered => {
                Rc::clone(steered.entry(frontend.family()).or_insert_with(|| serving(frontend)))
            }
            Clients::Anywhere | Clients::Outside | Clients::Peers => serving(frontend),
        };
        let frontends: Vec<_> =
            installed.frontends_of(index).map(|frontend| (*frontend, of(frontend))).collect();
        all.extend(endpoints.into_iter().filter_map(|endpoint| {
            let left: Vec<_> = frontends
                .iter()
                .filter(|(frontend, _)| frontend.family() == Family::of(endpoint.ip()))
                .filter(|(_, serving)| !serving.contains(&endpoint))
                .map(|(frontend, _)| *frontend)
                .collect();
            let is_gone = !left.is_empty();
            is_gone.then(|| Gone { service: Arc::clone(service), frontends: left, endpoint })
        }));
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::cluster::service::PolicySources;
    use crate::cluster::{
        Change, Endpoint, Placement, Port, Protocol, Service, Slice, SliceId, Update,
    };
    use crate::plan::Capacity;
    use crate::reconcile::Reconciler;
    use crate::topology::Scope;

    const ROOM: Capacity = Capacity {
        services: 64,
        slots: 64,
        members: 64,
        flows: 0,
        connections: 0,
        sources: 0,
        hops: 0,
        spare: 2,
    };

    /// Service names, with the last byte and the serving flag of each endpoint.
    type World = Vec<(&'static str, Vec<(u8, bool)>)>;

    fn id(name: &str) -> ServiceId {
        ServiceId { namespace: "default".into(), name: name.into() }
    }

    /// ClusterIP 10.96.0.<letter>; an upper-case name has a topology key for this node only.
    fn service(name: &str) -> Service {
        let letter = name.as_bytes()[0];
        let keys = letter.is_ascii_uppercase().then(|| "kubernetes.io/hostname".into());
        Service {
            id: id(name),
            cluster_ips: vec![[10, 96, 0, letter].into()],
            ports: vec![Port { name: "dns".into(), port: 53, protocol: Protocol::Udp }],
            policy: PolicySources { topology_keys: keys, ..PolicySources::default() }.into(),
            ..Service::default()
        }
    }

    /// Endpoints 10.244.0.<host>; hosts below 10 are on this node.
    fn slice(name: &str, endpoints: &[(u8, bool)]) -> Slice {
        let place = |host| if host < 10 { "here" } else { "there" };
        let endpoint = |&(host, serving): &(u8, bool)| Endpoint {
            ready: serving,
            serving,
            ..Endpoint::new([10, 244, 0, host].into(), Placement::on(place(host)))
        };
        Slice {
            id: SliceId { namespace: "default".into(), name: name.into() },
            service: Some(id(name)),
            ports: vec![Port { name: "dns".into(), port: 5353, protocol: Protocol::Udp }],
            endpoints: endpoints.iter().map(endpoint).collect(),
            headless: false,
            mirrored: false,
            triggered: None,
            ready_since: Vec::new(),
        }
    }

    struct Agent {
        reconciler: Reconciler,
        installed: Installed,
    }

    impl Agent {
        fn new(scope: Scope, capacity: Capacity) -> Self {
            let mut reconciler = Reconciler::new("here".into(), scope, false);
            let labels = [("kubernetes.io/hostname", "here")];
            reconciler.observe(Update::Node(Change::Applied(crate::cluster::Node {
                name: "here".into(),
                labels: labels.map(|(key, value)| (key.into(), value.into())).into(),
            })));
            Self { reconciler, installed: Installed::new(capacity) }
        }

        /// Settles. Returns sorted lines `service endpoint` of what is gone.
        fn turn_into(&mut self, world: &World) -> Vec<String> {
            let services = world.iter().map(|(name, _)| service(name)).collect();
            let slices = world.iter().map(|(name, endpoints)| slice(name, endpoints)).collect();
            self.reconciler.observe(Update::Slice(Change::Listed(slices, Vec::new())));
            self.reconciler.observe(Update::Service(Change::Listed(services, Vec::new())));
            let line = |gone: Gone| format!("{} {}", gone.service, gone.endpoint);
            let mut lines: Vec<_> = self.settle().into_iter().map(line).collect();
            lines.sort();
            lines
        }

        /// Plans and records until settled. Returns what is gone.
        fn settle(&mut self) -> Vec<Gone> {
            let mut all = Vec::new();
            while !self.reconciler.settled() {
                let plan = self.reconciler.plan(&self.installed);
                all.extend(self.reconciler.gone(&plan, &self.installed));
                for step in &plan.steps {
                    self.installed.record(step);
                }
                self.reconciler.carried_out(&plan, &self.installed);
            }
            all
        }
    }

    #[test]
    fn a_service_that_loses_its_room_keeps_its_sockets() {
        let mut agent = Agent::new(Scope::All, Capacity { members: 2, ..ROOM });
        agent.turn_into(&vec![("a", vec![(1, true), (2, true)])]);
        let crowd = vec![("a", vec![(1, true), (2, true), (3, true)])];
        assert!(agent.turn_into(&crowd).is_empty());
        assert!(agent.reconciler.unprogrammed().contains_key(&id("a")));
    }

    #[test]
    fn a_service_that_is_left_to_another_proxy_keeps_its_sockets() {
        let mut agent = Agent::new(Scope::OptIn, ROOM);
        agent.turn_into(&vec![("A", vec![(1, true)])]);
        let mut plain = service("A");
        plain.policy = Arc::default();
        agent.reconciler.observe(Update::Service(Change::Applied(plain)));
        let plan = agent.reconciler.plan(&agent.installed);
        assert!(plan.steps.iter().any(|step| matches!(step, Step::RemoveMember { .. })));
        assert_eq!(agent.reconciler.gone(&plan, &agent.installed), []);
    }

    #[test]
    fn a_port_that_is_only_renamed_keeps_its_sockets() {
        let mut agent = Agent::new(Scope::All, ROOM);
        agent.turn_into(&vec![("a", vec![(1, true)])]);
        let (mut renamed, mut endpoints) = (service("a"), slice("a", &[(1, true)]));
        renamed.ports[0].name = "domain".into();
        endpoints.ports[0].name = "domain".into();
        agent.reconciler.observe(Update::Service(Change::Applied(renamed)));
        agent.reconciler.observe(Update::Slice(Change::Applied(endpoints)));
        let plan = agent.reconciler.plan(&agent.installed);
        assert_eq!(agent.reconciler.gone(&plan, &agent.installed), []);
    }

    #[test]
    fn a_socket_of_a_steered_pod_goes_with_its_near_endpoint_alone() {
        let mut agent = Agent::new(Scope::All, ROOM);
        let mut steering = service("A");
        Arc::make_mut(&mut steering.policy).direct = Some("steer".into());
        agent.reconciler.observe(Update::Service(Change::Applied(steering)));
        let mut turn = |hosts: &[u8]| {
            let endpoints: Vec<_> = hosts.iter().map(|host| (*host, true)).collect();
            agent.reconciler.observe(Update::Slice(Change::Applied(slice("A", &endpoints))));
            agent.settle()
        };
        assert_eq!(turn(&[1, 2, 11, 12]), []);
        let far = |host: u8| {
            let plain = Frontend::new([10, 244, 0, host].into(), 5353, Protocol::Udp);
            plain.of(Clients::Steered)
        };
        // Who dialled the far one has another.
        let [gone] = &turn(&[1, 2, 12])[..] else { panic!() };
        assert_eq!(gone.endpoint, ([10, 244, 0, 11], 5353).into());
        let [gone] = &turn(&[2, 12])[..] else { panic!() };
        assert_eq!(gone.endpoint, ([10, 244, 0, 1], 5353).into());
        assert!(gone.frontends.contains(&far(12)) && gone.frontends.len() == 2, "{gone:?}");
    }

    fn worlds() -> impl Strategy<Value = Vec<World>> {
        let endpoints = prop::collection::btree_map(1_u8..20, any::<bool>(), 0..6)
            .prop_map(|endpoints| endpoints.into_iter().collect::<Vec<_>>());
        let world = prop::collection::btree_map(
            prop::sample::select(vec!["a", "b", "A", "B"]),
            endpoints,
            0..4,
        )
        .prop_map(|world| world.into_iter().collect::<World>());
        prop::collection::vec(world, 1..6)
    }

    /// The serving endpoints of each Service, in the form of `turn_into`'s lines.
    fn serving(world: &World) -> BTreeSet<String> {
        world
            .iter()
            .flat_map(|(name, endpoints)| {
                endpoints
                    .iter()
                    .filter(|(_, serves)| *serves)
                    .map(move |(host, _)| format!("default/{name}:dns 10.244.0.{host}:5353"))
            })
            .collect()
    }

    proptest! {
        /// For a UDP Service with room, gone is exactly what served before and does not serve now.
        #[test]
        fn gone_is_the_difference_of_what_serves(worlds in worlds()) {
            let mut agent = Agent::new(Scope::All, ROOM);
            let mut before = BTreeSet::new();
            for world in worlds {
                let gone = agent.turn_into(&world);
                let after = serving(&world);
                let wanted: Vec<_> = before.difference(&after).cloned().collect();
                prop_assert_eq!(gone, wanted);
                before = after;
            }
        }
    }
}
