//! The cost of each hook: the kernel's run times, as in `bpftool prog show`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use topo_lb_tests::manifest::{endpoint, service, slice};

use crate::exchange::{Act, Dialler, PORT, Targets};
use crate::ground::{CLIENT_DEVICE, Effort, Ground, HERE};
use crate::program::{Empty, Program, Watch, with_empty_on};
use crate::result::Figure;
use crate::sample::Sample;
use crate::test_run;
use topo_lb_tests::population::{Population, SERVICE_PORT};

const KEYS: &str = "topo-lb.io/topology-keys";

/// Services for one case each, beside the many equal ones.
const EIGHT: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 8);
const MANY: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 9);
const REFUSED: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
const AFFINITY: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 11);
const SPILL: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 12);
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
    let mut bench = Bench { services, batches: effort.of(5, 31), figures: Vec::new() };

    say("in the kernel, an empty program");
    let mut outside = ground.outside("client")?;
    let empty = Empty::attach(ground.cluster.agents().path())?;
    let target = Targets::one((ground.cluster.pod("a")?.ipv4, PORT).into());
    bench.case(&mut outside, empty.program, ("connect4", "empty program"), Act::Knock, target)?;
    drop(empty);
    with_empty_on(ground.cluster.node_netns(HERE)?, CLIENT_DEVICE, |programs| {
        bench.both_ways(&mut outside, programs, "empty program", target)
    })?;

    let mut inside = ground.inside("client")?;
    for (tcp_peer, reverse) in [("endpoint", "off"), ("service", "on")] {
        say(&format!("in the kernel, connect, reverse state {reverse}"));
        let agent = ground.agent(("--manifests", &manifests), &[("--tcp-peer", tcp_peer)])?;
        bench.connect(&mut inside, agent.pins(), ground, reverse)?;
        if reverse == "on" {
            say("in the kernel, datagrams");
            bench.datagrams(&mut inside, agent.pins())?;
        }
    }
    say("in the kernel, packets");
    let flags = [("--tc-devices", CLIENT_DEVICE)];
    let agent = ground.agent(("--manifests", &manifests), &flags)?;
    bench.packets(&mut outside, agent.pins(), ground)?;
    drop(agent);
    say("in the kernel, the same packet again and again");
    bench.figures.extend(test_run::measure(services, effort)?);
    Ok(bench.figures)
}

struct Bench {
    services: u32,
    batches: u32,
    figures: Vec<Figure>,
}

/// Directions of the tc programs, in the order of their figures.
const DIRECTIONS: [&str; 2] = ["ingress", "egress"];

/// Calls per batch; a case's values are the means of its batches.
const BATCH: u32 = 1_000;

impl Bench {
    /// The run times of programs while a client repeats one act.
    fn sample(
        &self,
        dialler: &mut Dialler,
        programs: &[Program],
        act: Act,
        targets: Targets,
    ) -> Result<Vec<Sample>> {
        dialler.times(act, targets, BATCH)?;
        let mut samples = vec![Sample::default(); programs.len()];
        for _ in 0..self.batches {
            let before = programs.iter().map(|it| it.runs()).collect::<Result<Vec<_>>>()?;
            dialler.times(act, targets, BATCH)?;
            for ((program, before), sample) in programs.iter().zip(before).zip(&mut samples) {
                let (mean, runs) = program.runs()?.since(before);
                ensure!(runs >= BATCH.into(), "{runs} runs of a program in {BATCH} calls");
                sample.add(mean);
            }
        }
        Ok(samples)
    }

    fn case(
        &mut self,
        dialler: &mut Dialler,
        program: Program,
        (hook, case): (&str, &str),
        act: Act,
        targets: Targets,
    ) -> Result<Sample> {
        let samples = self.sample(dialler, &[program], act, targets)?;
        let sample = samples.into_iter().next().unwrap_or_default();
        self.figures.push(self.figure("hook_ns", &sample).with("hook", hook).with("case", case));
        Ok(sample)
    }

    fn figure(&self, name: &str, sample: &Sample) -> Figure {
        Figure::new(name, "ns", sample).with("services", self.services)
    }

    fn connect(
        &mut self,
        dialler: &mut Dialler,
        pins: &Path,
        ground: &Ground<'_>,
        reverse: &str,
    ) -> Result<()> {
        let program = |hook: &str| Program::behind(&pins.join("links").join(hook));
        let at = |address: Ipv4Addr| Targets::one((address, SERVICE_PORT).into());
        let one = at(Population::frontend(self.services / 2));
        let count = self.services;
        let any = |port| Targets { first: (Population::frontend(0), port).into(), count };
        let connect4 = program("connect4")?;
        let mut case = |name: &str, targets| {
            let name = format!("{name}, reverse state {reverse}");
            self.case(dialler, connect4, ("connect4", &name), Act::Knock, targets)
        };
        let hit = case("hit, the same each time", one)?;
        case("hit, another each time", any(SERVICE_PORT))?;
        case("8 endpoints", at(EIGHT))?;
        case("500 endpoints", at(MANY))?;
        case("affinity", at(AFFINITY))?;
        case("spill", at(SPILL))?;
        case("refused", at(REFUSED))?;
        let (name, target) = match reverse {
            "on" => ("connect4_hit_reverse_ns", 800.0),
            _ => ("connect4_hit_ns", 300.0),
        };
        self.figures.push(self.figure(name, &hit).at_most(target));
        let connect6 = program("connect6")?;
        let six = Targets::one((BOTH6, SERVICE_PORT).into());
        let name = format!("hit, reverse state {reverse}");
        self.case(dialler, connect6, ("connect6", &name), Act::Knock, six)?;
        if reverse == "on" {
            let other = Targets::one((ground.cluster.pod("a")?.ipv4, PORT).into());
            self.case(dialler, connect4, ("connect4", "no Service"), Act::Knock, other)?;
            let missed = any(SERVICE_PORT + 1);
            let name = "no Service, but among them";
            self.case(dialler, connect4, ("connect4", name), Act::Knock, missed)?;
        }
        Ok(())
    }

    fn datagrams(&mut self, dialler: &mut Dialler, pins: &Path) -> Result<()> {
        for (digit, address) in [('4', IpAddr::from(BOTH4)), ('6', IpAddr::from(BOTH6))] {
            let target = Targets::one(SocketAddr::new(address, SERVICE_PORT));
            for (hook, act) in
                [("sendmsg", Act::Datagram), ("recvmsg", Act::Datagram), ("getpeername", Act::Peer)]
            {
                let hook = format!("{hook}{digit}");
                let program = Program::behind(&pins.join("links").join(&hook))?;
                self.case(dialler, program, (&hook, "hit"), act, target)?;
            }
        }
        Ok(())
    }

    /// The run times of tc programs while packets go to a target and back.
    fn both_ways(
        &mut self,
        dialler: &mut Dialler,
        programs: &[Program],
        case: &str,
        targets: Targets,
    ) -> Result<Vec<Sample>> {
        let samples = self.sample(dialler, programs, Act::Keep, targets)?;
        for (direction, sample) in DIRECTIONS.iter().zip(&samples) {
            let figure = self.figure("hook_ns", sample).with("hook", format!("tc {direction}"));
            self.figures.push(figure.with("case", case));
        }
        Ok(samples)
    }

    /// Packets of a client with sockets that the programs on its device do not know.
    fn packets(&mut self, dialler: &mut Dialler, pins: &Path, ground: &Ground<'_>) -> Result<()> {
        let mut programs = Program::of_devices(pins, "ingress")?;
        programs.extend(Program::of_devices(pins, "egress")?);
        ensure!(programs.len() == 2, "{} programs of tc", programs.len());
        let direct = Targets::one((ground.cluster.pod("a")?.ipv4, PORT).into());
        let service = Targets::one((BOTH4, SERVICE_PORT).into());
        for (case, name, target, targets) in [
            ("not ours", "tc_other_ns", 60.0, direct),
            ("established", "tc_established_ns", 200.0, service),
        ] {
            let samples = self.both_ways(dialler, &programs, case, targets)?;
            for (direction, sample) in DIRECTIONS.iter().zip(&samples) {
                let figure = self.figure(name, sample).with("direction", *direction);
                self.figures.push(figure.at_most(target));
            }
        }
        // No pod answers there, so each knock is one packet: the first of a connection.
        let first = Targets::one((EIGHT, SERVICE_PORT).into());
        let ingress = programs[0];
        self.case(dialler, ingress, ("tc ingress", "first packet"), Act::Knock, first)?;
        Ok(())
    }
}

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
