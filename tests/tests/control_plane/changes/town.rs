//! A cluster of two nodes with a real control plane, and the agent under test.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::api::DynamicObject;
use serde_json::{Value, json};
use topo_lb_tests::agent::Agent;
use topo_lb_tests::api::{READ, reading};
use topo_lb_tests::binary::Binary;
use topo_lb_tests::client::Client;
use topo_lb_tests::cluster::Cluster;
use topo_lb_tests::control_plane::ControlPlane;
use topo_lb_tests::kind::POOL;
use topo_lb_tests::lab::within;
use topo_lb_tests::manifest;
use topo_lb_tests::node::NodePlan;
use topo_lb_tests::requirements;
use topo_lb_tests::scene::{HERE, KEYS, at};
use topo_lb_tests::traffic::{Tally, Via};
use topo_lb_tests::wait::until;

/// The other node.
pub(super) const THERE: &str = "there";
/// Servers on the agent's node and on the other one. They always listen, also when they are not
/// endpoints, so no connection fails because its server stops.
pub(super) const A: [&str; 6] = ["a1", "a2", "a3", "a4", "a5", "a6"];
pub(super) const B: [&str; 6] = ["b1", "b2", "b3", "b4", "b5", "b6"];

/// The main Service of the tests, and another one.
pub(super) const WEB: &str = "10.96.3.1";
pub(super) const SOFT: &str = "10.96.3.2";

/// The limit for controllers, or for an agent that waits before it retries.
pub(super) const SOON: Duration = Duration::from_secs(60);

/// The most endpoints per slice. Two slices have more than fit inline in a map's entry.
pub(super) const IN_SLICE: usize = 5;
/// Flags of kube-controller-manager. The garbage collector deletes slices of deleted Services.
pub(super) const CONTROLLERS: [&str; 2] =
    ["--max-endpoints-per-slice=5", "--controllers=garbagecollector"];

/// The cluster, its control plane, and the agent.
pub(super) struct Town<'a> {
    binary: Binary,
    pub(super) cluster: &'a Cluster,
    pub(super) plane: ControlPlane<'a>,
    pub(super) agent: Agent<'a>,
    /// Makes connections continuously.
    busy: Option<Client>,
    /// Observes the effect of changes meanwhile.
    watchful: Client,
}

/// A Service for the pods with the label `app`.
pub(super) fn service(name: &str, address: &str, app: &str, keys: Option<&str>) -> Value {
    let annotations: Vec<_> = keys.map(|keys| (KEYS, keys)).into_iter().collect();
    let mut service = manifest::service(name, &[address], &[("", 80, "TCP")], &annotations);
    service["spec"]["selector"] = json!({"app": app});
    service["spec"]["ports"][0]["targetPort"] = 9376.into();
    service
}

pub(super) fn node(name: &str, pool: &str) -> Value {
    manifest::node(name, &[(POOL, pool)])
}

/// An EndpointSlice: its name, its pods, and the UID of the owning Service.
pub(super) struct Slice {
    pub(super) name: String,
    pub(super) pods: Vec<String>,
    pub(super) owner: Option<String>,
}

impl Slice {
    fn of(object: DynamicObject) -> Self {
        let endpoints = object.data["endpoints"].as_array().into_iter().flatten();
        let pods = endpoints.filter_map(|it| it["targetRef"]["name"].as_str()).map(str::to_owned);
        let pods = pods.collect();
        let owner = object.metadata.owner_references.unwrap_or_default().pop();
        Self {
            name: object.metadata.name.unwrap_or_default(),
            pods,
            owner: owner.map(|owner| owner.uid),
        }
    }
}

impl Town<'_> {
    /// Resets to two empty nodes, and prepares an agent with the source that a flag names.
    pub(super) fn begin(&mut self, flag: &'static str, from: &Path) -> Result<()> {
        self.agent.kill();
        self.agent.cleanup()?;
        self.plane.clear()?;
        self.plane.create([node(HERE, "west"), node(THERE, "east")])?;
        self.agent = Agent::prepare_from(&self.binary, self.cluster, HERE, (flag, from))?;
        for flag in ["--max-services", "--max-endpoints"] {
            self.agent.set(flag, "512");
        }
        Ok(())
    }

    pub(super) fn run(&self, app: &str, pods: &[&str]) -> Result<()> {
        let pods: Result<Vec<_>> = pods.iter().map(|name| self.cluster.pod(name)).collect();
        self.plane.run_pods(app, pods?)
    }

    /// The controller's slices for a Service.
    pub(super) fn slices(&self, service: &str) -> Result<Vec<Slice>> {
        let is_its = |slice: &DynamicObject| {
            let labels = slice.metadata.labels.as_ref();
            labels
                .and_then(|it| it.get("kubernetes.io/service-name"))
                .is_some_and(|it| it == service)
        };
        let all = self.plane.list("EndpointSlice")?;
        Ok(all.into_iter().filter(is_its).map(Slice::of).collect())
    }

    /// Waits until `is` accepts the slices of a Service.
    pub(super) fn until_slices(&self, service: &str, is: impl Fn(&[Slice]) -> bool) -> Result<()> {
        until(&format!("the wanted slices of {service}"), SOON, || {
            let slices = self.slices(service)?;
            let seen = || slices.iter().map(|it| it.pods.len()).collect::<Vec<_>>();
            Ok(if is(&slices) { Ok(()) } else { Err(format!("slices of {:?} pods", seen())) })
        })?;
        Ok(())
    }

    pub(super) fn uid(&self, service: &str) -> Result<String> {
        let all = self.plane.list("Service")?.into_iter();
        let mut found = all.filter(|it| it.metadata.name.as_deref() == Some(service));
        found.next().and_then(|it| it.metadata.uid).context("every Service has a UID")
    }

    /// Waits until exactly `pods` answer, or, with no pods, until every connection is refused.
    pub(super) fn answered_by(&mut self, address: &str, pods: &[&str]) -> Result<Duration> {
        self.watchful.wait_for(Via::Http, at(address)?, pods, SOON)
    }

    /// Opens so many connections.
    pub(super) fn call(&mut self, to: SocketAddr, calls: u32) -> Result<Tally> {
        self.watchful.call(Via::Http, to, calls)
    }

    /// Makes connections continuously while `work` runs.
    pub(super) fn call_during(
        &mut self,
        address: &str,
        work: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<Tally> {
        let mut busy = self.busy.take().context("a busy client")?;
        let outcome = busy.call_during(Via::Http, at(address)?, || work(self));
        self.busy = Some(busy);
        Ok(outcome?.0)
    }

    /// Like [`call_during`](Self::call_during); every connection must be answered.
    pub(super) fn answered_during(
        &mut self,
        address: &str,
        work: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let tally = self.call_during(address, work)?;
        ensure!(tally.answered() == tally.requests && tally.requests > 0, "{tally}");
        Ok(())
    }

    /// The sum of the agent's series of a metric with `label` in their lines.
    pub(super) fn metric(&self, name: &str, label: &str) -> Result<u64> {
        let text = self.agent.get("/metrics")?.body;
        let of_name =
            |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
        let lines: Vec<_> = text.lines().filter(of_name).filter(|it| it.contains(label)).collect();
        ensure!(!lines.is_empty(), "there is no {name} with {label}:\n{text}");
        let value = |line: &&str| line.rsplit(' ').next()?.parse::<u64>().ok();
        lines.iter().map(value).sum::<Option<u64>>().context("a metric that is no number")
    }

    /// The number of Nodes in the agent's state.
    pub(super) fn known_nodes(&self) -> Result<u64> {
        let state: Value = serde_json::from_str(&self.agent.get("/state")?.body)?;
        state["nodes"].as_u64().context("the state counts Nodes")
    }

    /// How often each kind of objects was listed.
    pub(super) fn listings(&self) -> Result<[u64; 3]> {
        let of = |kind| self.metric("topo_lb_source_listings_total", kind);
        Ok([of("\"services\"")?, of("\"endpointslices\"")?, of("\"nodes\"")?])
    }
}

/// Runs `body` with twelve servers.
pub(super) fn within_town(body: impl FnOnce(&mut Town<'_>) -> Result<()>) -> Result<()> {
    let binary = Binary::new(requirements::agent()?);
    let servers = |names: [&'static str; 6]| names.into_iter().zip(11..);
    let here = [("busy", 2), ("watchful", 3)].into_iter().chain(servers(A)).collect();
    let plan = [
        NodePlan { name: HERE, number: 1, pods: here },
        NodePlan { name: THERE, number: 2, pods: servers(B).collect() },
    ];
    within(&plan, |cluster| {
        let mut plane = ControlPlane::in_lab(cluster)?;
        plane.start_controllers_with(&CONTROLLERS)?;
        plane.allow("topo-lb", &reading(&READ))?;
        let names = A.into_iter().chain(B);
        let _servers = cluster.serve(names)?;
        let agent = plane.agent(&binary, HERE)?;
        let busy = Some(cluster.pod("busy")?.client()?);
        let watchful = cluster.pod("watchful")?.client()?;
        body(&mut Town { binary, cluster, plane, agent, busy, watchful })
    })
}
