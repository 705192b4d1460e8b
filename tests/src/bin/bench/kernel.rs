//! The cost of each hook: the kernel's run times, as in `bpftool prog show`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use anyhow::{Result, ensure};
use aya::programs::cgroup_sock_addr::CgroupSockAddrAttachType;
use serde_json::{Value, json};
use topo_lb_tests::manifest::{endpoint, service, slice};

use crate::exchange::{Act, PORT, Targets};
use crate::ground::{CLIENT_DEVICE, Effort, Ground, HERE, SERVER_DEVICE};
use crate::program::{Empty, Program, Watch, with_empty_on};
use crate::result::Figure;
use crate::rounds::{self, Case, Client, Clients};
use crate::{store, test_run};
use topo_lb_tests::population::{Population, SERVICE_PORT};

const KEYS: &str = "topo-lb.io/topology-keys";

/// Services for one case each, beside the many equal ones.
const EIGHT: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 8);
const MANY: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 9);
const REFUSED: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
const AFFINITY: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 11);
const SPILL: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 12);
const WEIGHTS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 14);
/// The same endpoints as those of `WEIGHTS`.
const WEIGHTLESS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 15);
const BOTH4: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 13);
const BOTH6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0x13);

pub(crate) fn measure(
    ground: &Ground<'_>,
    effort: Effort,
    say: &dyn Fn(&str),
) -> Result<Vec<Figure>> {
    let services = effort.of(1_000, 10_000);
    let population = ground.population(services, ["a", "b"])?;
    let manifests = ground.manifests(&population, &special(ground)?)?;
    let _watch = Watch::begin()?;
    let clients = Clients { inside: ground.inside("client")?, outside: ground.outside("client")? };
    let direct = Targets::one((ground.cluster.pod("a")?.ipv4, PORT).into());
    let rounds = effort.of(5, 31);
    let mut bench = Bench { services, rounds, clients, direct, figures: Vec::new() };

    let unserved = ground.cluster.agents().path();
    let connect4 = Empty::attach(unserved, CgroupSockAddrAttachType::Connect4)?;
    let recvmsg4 = Empty::attach(unserved, CgroupSockAddrAttachType::UDPRecvMsg4)?;
    for (tcp_peer, reverse) in [("endpoint", "off"), ("service", "on")] {
        say(&format!("in the kernel, connect, reverse state {reverse}"));
        let agent = ground.agent(("--manifests", &manifests), &[("--tcp-peer", tcp_peer)])?;
        bench.connect(&connect4, agent.pins(), reverse)?;
        if reverse == "on" {
            say("in the kernel, datagrams");
            bench.datagrams(&recvmsg4, agent.pins())?;
        }
    }
    say("in the kernel, packets");
    let flags = [("--tc-devices", CLIENT_DEVICE)];
    let agent = ground.agent(("--manifests", &manifests), &flags)?;
    with_empty_on(ground.cluster.node_netns(HERE)?, SERVER_DEVICE, |empty| {
        bench.packets(empty, agent.pins())
    })?;
    drop(agent);
    say("in the kernel, the same packet again and again");
    bench.figures.extend(test_run::measure(services, effort)?);
    say("in the kernel, Services into new maps");
    bench.figures.extend(store::measure(ground, &population, effort)?);
    Ok(bench.figures)
}

struct Bench {
    services: u32,
    rounds: u32,
    clients: Clients,
    /// A server's own address, which no program changes.
    direct: Targets,
    figures: Vec<Figure>,
}

/// Directions of the tc programs.
const DIRECTIONS: [&str; 2] = ["ingress", "egress"];

impl Bench {
    /// Measures cases in rounds with `empty`.
    fn take_turns(&mut self, empty: Case, cases: Vec<Case>) -> Result<()> {
        let figures = rounds::measure(&mut self.clients, self.rounds, empty, cases)?;
        self.figures.extend(figures.into_iter().map(|it| it.with("services", self.services)));
        Ok(())
    }

    fn connect(&mut self, empty: &Empty, pins: &Path, reverse: &str) -> Result<()> {
        let program = |hook: &str| Program::behind(&pins.join("links").join(hook));
        let case = |name: &str, client, targets| {
            Case::new(format!("{name}, reverse state {reverse}"), client, Act::Knock, targets)
        };
        let at = |address: Ipv4Addr| Targets::one((address, SERVICE_PORT).into());
        let one = at(Population::frontend(self.services / 2));
        let count = self.services;
        let any = |port| Targets::addresses((Population::frontend(0), port).into(), count);
        let connect4 = program("connect4")?;
        let four = |name, targets| case(name, Client::Inside, targets).on("connect4", connect4);
        let hit = four("hit, the same each time", one);
        let another = four("hit, another each time", any(SERVICE_PORT));
        let (hit, another) = if reverse == "on" {
            (hit.promise("connect4_hit_reverse", 15.0), another)
        } else {
            (hit.promise("connect4_hit", 3.5), another.promise("connect4_any", 15.0))
        };
        let weightless = four("weights, the same endpoints without", at(WEIGHTLESS));
        let figure = match reverse {
            "on" => "connect4_weights_reverse_ratio",
            _ => "connect4_weights_ratio",
        };
        let weights = four("weights", at(WEIGHTS)).promise_by(&weightless, figure, 1.05);
        let six = Targets::one((BOTH6, SERVICE_PORT).into());
        let mut cases = vec![
            hit,
            another,
            four("8 endpoints", at(EIGHT)),
            four("500 endpoints", at(MANY)),
            four("affinity", at(AFFINITY)),
            four("spill", at(SPILL)),
            weightless,
            weights,
            four("refused", at(REFUSED)),
            case("hit", Client::Inside, six).on("connect6", program("connect6")?),
        ];
        if reverse == "on" {
            let missed = any(SERVICE_PORT + 1);
            for (name, targets) in
                [("no Service", self.direct), ("no Service, but among them", missed)]
            {
                let case = Case::new(name, Client::Inside, Act::Knock, targets);
                cases.push(case.on("connect4", connect4));
            }
        }
        let empty = case(EMPTY, Client::Outside, self.direct).on("connect4", empty.program);
        self.take_turns(empty, cases)
    }

    fn datagrams(&mut self, empty: &Empty, pins: &Path) -> Result<()> {
        let program = |hook: &str| Program::behind(&pins.join("links").join(hook));
        let miss = Case::new("no Service", Client::Inside, Act::Datagram, self.direct)
            .on("recvmsg4", program("recvmsg4")?)
            .promise("recvmsg_miss", 1.6);
        let mut cases = vec![miss];
        for (digit, address) in [('4', IpAddr::from(BOTH4)), ('6', IpAddr::from(BOTH6))] {
            let target = Targets::one(SocketAddr::new(address, SERVICE_PORT));
            for (hook, act) in
                [("sendmsg", Act::Datagram), ("recvmsg", Act::Datagram), ("getpeername", Act::Peer)]
            {
                let hook = format!("{hook}{digit}");
                let program = program(&hook)?;
                cases.push(Case::new("hit", Client::Inside, act, target).on(hook, program));
            }
        }
        let empty = Case::new(EMPTY, Client::Outside, Act::Datagram, self.direct)
            .on("recvmsg4", empty.program);
        self.take_turns(empty, cases)
    }

    /// Packets of a client with sockets that the programs on its device do not know. The empty
    /// programs are on a server's device.
    fn packets(&mut self, empty: &[Program], pins: &Path) -> Result<()> {
        let mut programs = Program::of_devices(pins, "ingress")?;
        programs.extend(Program::of_devices(pins, "egress")?);
        ensure!(programs.len() == 2, "{} programs of tc", programs.len());
        let both_ways = |name: &str, client, targets, programs: &[Program]| {
            let case = Case::new(name, client, Act::Keep, targets);
            DIRECTIONS.iter().zip(programs).fold(case, |case, (direction, program)| {
                case.on(format!("tc {direction}"), *program)
            })
        };
        let service = Targets::one((BOTH4, SERVICE_PORT).into());
        // No pod answers there, so each knock is one packet: the first of a connection.
        let first = Targets::one((EIGHT, SERVICE_PORT).into());
        let first = Case::new("first packet", Client::Outside, Act::Knock, first)
            .on("tc ingress", programs[0]);
        // "not ours" has rounds of its own, before the server is an endpoint of a translated
        // connection: from then on its packets are looked up.
        for (name, figure, ratio, targets, others) in [
            ("not ours", "tc_other", 1.35, self.direct, None),
            ("established", "tc_established", 5.0, service, Some(first)),
        ] {
            let case = both_ways(name, Client::Outside, targets, &programs).promise(figure, ratio);
            let name = format!("{EMPTY}, in turns with {name}");
            let empty = both_ways(&name, Client::Inside, self.direct, empty);
            self.take_turns(empty, [case].into_iter().chain(others).collect())?;
        }
        Ok(())
    }
}

const EMPTY: &str = "empty program";

/// The Services for one case each.
fn special(ground: &Ground<'_>) -> Result<Vec<Value>> {
    let http = [("http", SERVICE_PORT, "TCP")];
    let served = [("http", PORT, "TCP")];
    let both = [("http", SERVICE_PORT, "TCP"), ("udp", SERVICE_PORT, "UDP")];
    let both_served = [("http", PORT, "TCP"), ("udp", PORT, "UDP")];
    let nobody = |count: u32, on: &str| -> Vec<Value> {
        let first = Ipv4Addr::new(11, 0, 0, 0).to_bits();
        (1..=count)
            .map(|number| endpoint(&Ipv4Addr::from_bits(first + number).to_string(), on, "nobody"))
            .collect()
    };
    let mut objects = Vec::new();
    type Annotations<'a> = &'a [(&'a str, &'a str)];
    let mut put =
        |name: &str, address: Ipv4Addr, annotations: Annotations<'_>, endpoints: &[Value]| {
            objects.push(service(name, &[&address.to_string()], &http, annotations));
            for (number, chunk) in endpoints.chunks(100).enumerate() {
                let mut slice = slice(name, "IPv4", &served, chunk);
                slice["metadata"]["name"] = format!("{name}-{number}").into();
                objects.push(slice);
            }
        };
    put("eight", EIGHT, &[], &nobody(8, HERE));
    put("many", MANY, &[], &nobody(500, HERE));
    put("refused", REFUSED, &[(KEYS, "kubernetes.io/hostname")], &nobody(2, "node-00001"));
    put("affinity", AFFINITY, &[], &nobody(2, HERE));
    let mut near_and_far = nobody(4, HERE);
    near_and_far.extend(nobody(8, "node-00001").split_off(4));
    let keys = [(KEYS, "kubernetes.io/hostname,*"), ("topo-lb.io/spill", "5%")];
    put("spill", SPILL, &keys, &near_and_far);
    let mut zones = nobody(6, HERE);
    zones
        .iter_mut()
        .zip(["a", "a", "b", "b", "c", "c"])
        .for_each(|(it, zone)| it["zone"] = zone.into());
    // Of two ranges with slots, in which endpoints stand more than once.
    let weights = [("topo-lb.io/weights", "topology.kubernetes.io/zone: a=60, b=30, c=10")];
    put("weights", WEIGHTS, &weights, &zones);
    put("weightless", WEIGHTLESS, &[], &zones);
    for object in &mut objects {
        if object["kind"] == "Service" && object["metadata"]["name"] == "affinity" {
            object["spec"]["sessionAffinity"] = "ClientIP".into();
            object["spec"]["sessionAffinityConfig"] =
                json!({"clientIP": {"timeoutSeconds": 10_800}});
        }
    }
    let addresses = [BOTH4.to_string(), BOTH6.to_string()];
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    objects.push(service("both", &addresses, &both, &[]));
    let (a, b) = (ground.cluster.pod("a")?, ground.cluster.pod("b")?);
    let four = [endpoint(&a.ipv4.to_string(), HERE, "a"), endpoint(&b.ipv4.to_string(), HERE, "b")];
    let six = [endpoint(&a.ipv6.to_string(), HERE, "a"), endpoint(&b.ipv6.to_string(), HERE, "b")];
    objects.push(slice("both", "IPv4", &both_served, &four));
    objects.push(slice("both", "IPv6", &both_served, &six));
    Ok(objects)
}
