//! Many Services: a change of one makes as few system calls as if there were no others.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use topo_lb_fake_api::{CLUSTER_POLICIES, FakeApi, NAMESPACES, NODES, POLICIES, SERVICES, SLICES};
use topo_lb_kernel::datapath::maps::unprogrammed;
use topo_lb_tests::agent::Agent;
use topo_lb_tests::binary::Binary;
use topo_lb_tests::calls::Calls;
use topo_lb_tests::node::NodePlan;
use topo_lb_tests::population::Population;
use topo_lb_tests::records::Records;
use topo_lb_tests::scene::{FOLLOWS, HERE, KEYS, ZONE};
use topo_lb_tests::wait::{PATIENCE, until_is};
use topo_lb_tests::{lab, requirements};

/// So many Services change.
const CHANGED: u32 = 25;
/// Endpoints of each: too many for its record.
const ENDPOINTS: u32 = 8;
/// The kinds that an agent watches.
const KINDS: usize = 6;

/// A cluster of so many Services, and the agent of a node.
struct Many<'a> {
    population: Population,
    server: FakeApi,
    agent: Agent<'a>,
}

impl Many<'_> {
    /// The numbers of Services that are not there yet. None has a policy, as even ones have.
    fn new_numbers(&self) -> impl Iterator<Item = u32> + use<> {
        (self.population.services..).filter(|number| number % 2 == 1).take(CHANGED as usize)
    }

    fn service(&self, number: u32) -> Value {
        with_udp(self.population.service(number))
    }

    /// A Service's slice, in which the endpoint with this number is not ready.
    fn slice(&self, number: u32, gone: u32) -> Value {
        with_udp(self.population.slices(number, |it| it != gone).swap_remove(0))
    }

    /// Adds or removes a Service.
    fn tell(&self, how: &str, number: u32) {
        self.server.change(SLICES, how, self.slice(number, ENDPOINTS));
        self.server.change(SERVICES, how, self.service(number));
    }
}

/// An object with a UDP port besides: then the endpoints of a Service are members, too.
fn with_udp(mut object: Value) -> Value {
    let (ports, number) = match object["kind"].as_str() {
        Some("Service") => (&mut object["spec"]["ports"], 53),
        Some("EndpointSlice") => (&mut object["ports"], 5_353),
        _ => return object,
    };
    let port = json!({"name": "dns", "port": number, "protocol": "UDP"});
    ports.as_array_mut().into_iter().for_each(|ports| ports.push(port.clone()));
    object
}

/// How often the agent of a cluster calls each command of bpf(2) for entries of maps while `change` runs. It looks for
/// other things each second, by other commands.
fn calls(
    services: u32,
    flags: &[(&'static str, &str)],
    change: impl FnOnce(&Many<'_>) -> Result<()>,
) -> Result<BTreeMap<String, u32>> {
    let population = Population::new(HERE, 100, services, ENDPOINTS);
    let binary = Binary::new(requirements::agent()?);
    let mut calls = BTreeMap::new();
    lab::within(&[NodePlan { name: HERE, number: 1, pods: Vec::new() }], |cluster| {
        let listen = || TcpListener::bind("127.0.0.1:0").context("cannot listen");
        let paths = [NODES, SERVICES, NAMESPACES, POLICIES, CLUSTER_POLICIES];
        let server = FakeApi::start(cluster.node_netns(HERE)?.run(listen)?, &paths)?;
        server.fill_all(population.objects().map(with_udp));
        let url = server.url();
        let source = ("--api-server", Path::new(&url));
        let mut agent = Agent::prepare_from(&binary, cluster, HERE, source)?;
        flags.iter().for_each(|(flag, value)| agent.set(flag, value));
        agent.resume()?;
        let watches = || Ok(server.state().watches);
        until_is("a watch of each kind", PATIENCE, watches, |open| *open >= KINDS)?;
        let strace = Calls::follow(agent.process_id()?, cluster.folder())?;
        let many = Many { population, server, agent };
        change(&many)?;
        calls = strace.end()?;
        calls.retain(|command, _| command.starts_with("BPF_MAP"));
        Ok(())
    })?;
    Ok(calls)
}

/// A Service is added, changed in two ways, and removed: for each of these, the maps of frontends, slots, members,
/// names, counters and totals are written.
fn come_and_go(many: &Many<'_>) -> Result<()> {
    let records = Records::open(&many.agent)?;
    let follows = |number, is: &dyn Fn(Option<u32>) -> bool| {
        let look = || Ok(records.of(number).map_or_else(|_| String::new(), |it| it.to_string()));
        let is = |seen: &String| is(seen.parse().ok());
        until_is("a change in the maps", FOLLOWS, look, is).map(|seen| seen.parse().ok())
    };
    for number in many.new_numbers() {
        many.tell("ADDED", number);
        let first = follows(number, &|record| record.is_some())?;
        many.server.change(SLICES, "MODIFIED", many.slice(number, 0));
        let second = follows(number, &|record| record.is_some() && record != first)?;
        let mut with_policy = many.service(number);
        with_policy["metadata"]["annotations"] = json!({KEYS: format!("{ZONE},*")});
        many.server.change(SERVICES, "MODIFIED", with_policy);
        follows(number, &|record| record.is_some() && record != second)?;
        many.tell("DELETED", number);
        follows(number, &|record| record.is_none())?;
    }
    Ok(())
}

#[test]
fn a_change_makes_as_many_system_calls_beside_many_services_as_beside_few() -> Result<()> {
    const CHANGES: u32 = 4 * CHANGED;
    /// For each change. Most are attempts to remove each entry of `totals` that a Service port can have, when it
    /// comes and when it goes; each endpoint that comes or goes takes one, too.
    const MOST: u32 = 80;
    let mut beside_few = None;
    for services in [500, 5_000] {
        let calls = calls(services, &[], come_and_go)?;
        let sum: u32 = calls.values().sum();
        let said = || format!("{services} Services, {CHANGES} changes: {calls:?}");
        ensure!((CHANGES..=MOST * CHANGES).contains(&sum), "{}", said());
        let few = *beside_few.get_or_insert(sum);
        ensure!(sum <= few + few / 20, "{}; beside few {few}", said());
    }
    Ok(())
}

#[test]
fn a_service_without_room_makes_no_more_system_calls_if_many_have_none() -> Result<()> {
    const CHANGES: u32 = 2 * CHANGED;
    const MOST: u32 = 4;
    for services in [200, 2_000] {
        let calls = calls(services, &[("--max-services", "64")], |many| {
            let lacking = || Ok(unprogrammed::read(many.agent.pins())?.len());
            let before = until_is("Services without room", FOLLOWS, lacking, |it| *it > 0)?;
            for number in many.new_numbers() {
                many.tell("ADDED", number);
                until_is("one more", FOLLOWS, lacking, |it| *it == before + 1)?;
                many.tell("DELETED", number);
                until_is("one less", FOLLOWS, lacking, |it| *it == before)?;
            }
            Ok(())
        })?;
        let sum: u32 = calls.values().sum();
        let is_bounded = (CHANGES..=MOST * CHANGES).contains(&sum);
        ensure!(is_bounded, "{services} Services, {CHANGES} changes: {calls:?}");
    }
    Ok(())
}
