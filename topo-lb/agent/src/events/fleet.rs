//! A model of a large cluster: how many Events its agents create together.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::ledger::Ledger;
use super::outbox::Outbox;
use super::written::{Request, SUBJECTS, Written};
use topo_lb_core::cluster::service::PolicySources;
use topo_lb_core::cluster::{
    Change, Endpoint, Node, Placement, Port, Protocol, Service, ServiceId, Slice, SliceId, Update,
};
use topo_lb_core::plan::{Capacity, Installed};
use topo_lb_core::reconcile::Reconciler;
use topo_lb_core::topology::Scope;

const NODES: usize = 500;
const POOLS: usize = 25;
const POOL: &str = "example.com/pool";

fn id(number: usize) -> ServiceId {
    let namespace = format!("team-{}", number % 5);
    ServiceId { namespace: namespace.into(), name: format!("web-{number}").into() }
}

fn name(node: usize) -> Arc<str> {
    format!("node-{node:03}").into()
}

fn node(number: usize, pool: usize) -> Node {
    let labels = [(POOL.into(), format!("pool-{pool}").into())].into();
    Node { name: name(number), labels }
}

/// Strict keys, so that pools without an endpoint are refused.
fn service(number: usize) -> Service {
    let host = u8::try_from(number).unwrap_or_default();
    let keys = PolicySources { topology_keys: Some(POOL.into()), ..PolicySources::default() };
    Service {
        id: id(number),
        cluster_ips: vec![[10, 96, 0, host].into()],
        ports: vec![Port { name: "http".into(), port: 80, protocol: Protocol::Tcp }],
        policy: keys.into(),
        ..Service::default()
    }
}

/// The pools of a service's three endpoints, each on the first node of its pool.
fn pools(service: usize) -> [usize; 3] {
    [0, 8, 16].map(|distance| (service + distance) % POOLS)
}

fn slice(service: usize, pools: &[usize]) -> Slice {
    let ServiceId { namespace, name: own } = id(service);
    let endpoint = |&pool: &usize| {
        Endpoint::new(
            [10, 1, service as u8, pool as u8].into(),
            Placement { node: Some(name(pool)), ..Placement::default() },
        )
    };
    Slice {
        id: SliceId { namespace, name: own },
        service: Some(id(service)),
        ports: vec![Port { name: "http".into(), port: 8080, protocol: Protocol::Tcp }],
        endpoints: pools.iter().map(endpoint).collect(),
        headless: false,
        mirrored: false,
        triggered: None,
        ready_since: Vec::new(),
    }
}

struct Agent {
    reconciler: Reconciler,
    installed: Installed,
    ledger: Ledger,
    outbox: Outbox,
    written: Written,
}

struct Model {
    services: usize,
    agents: Vec<Agent>,
    now: Instant,
    wall: SystemTime,
    /// Names of Events at the API server.
    events: BTreeSet<String>,
    requests: usize,
}

impl Model {
    fn new(services: usize) -> Self {
        let capacity = Capacity {
            services: 128,
            slots: 512,
            members: 512,
            flows: 0,
            connections: 0,
            sources: 0,
            hops: 0,
            spare: 2,
        };
        let now = Instant::now();
        let agents = (0..NODES).map(|node| Agent {
            reconciler: Reconciler::new(name(node), Scope::All, false),
            installed: Installed::new(capacity),
            ledger: Ledger::default(),
            outbox: Outbox::new(now),
            written: Written::default(),
        });
        Self {
            services,
            agents: agents.collect(),
            now,
            wall: SystemTime::UNIX_EPOCH,
            events: BTreeSet::new(),
            requests: 0,
        }
    }

    fn start(&mut self) {
        self.start_with(|number| pools(number).into());
    }

    /// Each agent starts with an empty memory and the maps of the previous agent.
    fn start_with(&mut self, pools: impl Fn(usize) -> Vec<usize>) {
        // Each agent needs the endpoints' Nodes and its own.
        let nodes: Vec<_> = (0..POOLS).map(|number| node(number, number)).collect();
        let slices: Vec<_> =
            (0..self.services).map(|number| slice(number, &pools(number))).collect();
        let services: Vec<_> = (0..self.services).map(service).collect();
        for (number, agent) in self.agents.iter_mut().enumerate() {
            agent.reconciler = Reconciler::new(name(number), Scope::All, false);
            agent.ledger = Ledger::default();
            agent.outbox = Outbox::new(self.now);
            agent.written = Written::default();
            for update in [
                Update::Node(Change::Listed(nodes.clone(), Vec::new())),
                Update::Node(Change::Applied(node(number, number % POOLS))),
                Update::Slice(Change::Listed(slices.clone(), Vec::new())),
                Update::Service(Change::Listed(services.clone(), Vec::new())),
            ] {
                agent.reconciler.observe(update);
            }
            agent.reconciler.expect_all(&agent.installed);
        }
        self.settle();
    }

    fn observe(&mut self, update: &Update) {
        for agent in &mut self.agents {
            agent.reconciler.observe(update.clone());
        }
        self.settle();
    }

    fn settle(&mut self) {
        for agent in &mut self.agents {
            while !agent.reconciler.settled() {
                let plan = agent.reconciler.plan(&agent.installed);
                plan.steps.iter().for_each(|step| agent.installed.record(step));
                agent.reconciler.carried_out(&plan, &agent.installed);
            }
            let recomputed = agent.reconciler.take_recomputed();
            for news in agent.ledger.look(&agent.reconciler, recomputed) {
                assert!(!agent.outbox.put(news, self.wall), "an agent drops news");
            }
        }
        self.tell();
    }

    fn tell(&mut self) {
        for agent in &mut self.agents {
            while let Ok(message) = agent.outbox.take(self.now) {
                let request = agent.written.request(&message, self.now, self.wall);
                self.requests += usize::from(request != Request::Nothing);
                if let Request::Create(name, _) = &request {
                    if self.events.insert(name.clone()) {
                        agent.written.done(&message.news, request, self.now);
                    } else {
                        agent.written.found(&message.news, name.clone(), self.now);
                    }
                }
            }
        }
    }

    /// The Events created and requests sent since the last call.
    fn take_events(&mut self) -> (usize, usize) {
        // An hour passes, so later news is in other Events.
        self.now += Duration::from_secs(3600);
        self.wall += Duration::from_secs(3600);
        (std::mem::take(&mut self.events).len(), std::mem::take(&mut self.requests))
    }
}

#[test]
fn a_rollout_over_closed_loops_is_quiet() {
    let mut model = Model::new(50);
    model.start();
    let (first, _) = model.take_events();
    model.start();
    let (restarts, _) = model.take_events();
    // From a pool with six Services to one with six others.
    model.observe(&Update::Node(Change::Applied(node(499, 3))));
    let (relabelled, _) = model.take_events();
    assert!(first + restarts + relabelled < 100, "{first} + {restarts} + {relabelled} Events");
    assert!((1..=6).contains(&relabelled), "{relabelled}");
}

#[test]
fn a_pool_that_loses_its_last_endpoint_is_one_event_even_if_a_restart_has_missed_the_loss() {
    let [first, second, _] = pools(7);
    let left = |number| if number == 7 { vec![first, second] } else { pools(number).into() };
    for restarts in [false, true] {
        let mut model = Model::new(8);
        model.start();
        model.take_events();
        match restarts {
            true => model.start_with(left),
            false => model.observe(&Update::Slice(Change::Applied(slice(7, &left(7))))),
        }
        assert_eq!(model.take_events(), (1, NODES / POOLS), "each node of the pool asks once");
        // The agents restart while nothing changes.
        model.start_with(left);
        assert_eq!(model.take_events(), (0, 0));
    }
}

#[test]
fn nodes_that_all_lose_their_endpoints_at_once_are_few_events() {
    let mut model = Model::new(8);
    let everywhere: Vec<_> = (0..POOLS).collect();
    model.start_with(|number| if number == 7 { everywhere.clone() } else { Vec::new() });
    model.take_events();
    // The only endpoint is now on a node without a pool.
    model.observe(&Update::Slice(Change::Applied(slice(7, &[2 * NODES]))));
    let (events, requests) = model.take_events();
    assert!((10..=SUBJECTS as usize).contains(&events), "{events} Events");
    assert_eq!(requests, NODES, "each node asks once");
}
