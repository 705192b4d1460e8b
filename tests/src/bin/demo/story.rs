//! The story: the OpenYurt tutorial first, then cases that it does not cover.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use topo_lb_tests::kind::{
    BEIJING_CLIENT, CONTROL_PLANE, DESIRED_POOL, HANGZHOU, HANGZHOU_CLIENT, NEIGHBOUR, POOL, RACK,
    SERVERS, SHANGHAI, SHANGHAI_CLIENT, SVC_RACK, SVC_UD1, SVC_UD1_WITHOUT_TOPOLOGY, WORKER,
    WORKER2,
};
use topo_lb_tests::scene::KEYS;
use topo_lb_tests::traffic::Via;
use topo_lb_tests::wait::patient;
use topo_lb_tests::wiring::node4;

use crate::check::Question;
use crate::download::Download;
use crate::stage::{FOLLOWS, MACHINE, OUTSIDE, Stage};
use crate::world::World;

/// The IPv6 address that `svc-ud1` gets.
pub(crate) const SVC_UD1_IPV6: &str = "fd00:96::ad1";
/// The node port that it gets.
const NODE_PORT: u16 = 30_080;
/// The load balancer IP that its twin gets.
const BALANCER: &str = "203.0.113.10";

pub(crate) fn tell(stage: &mut Stage<'_>) -> Result<()> {
    tutorial(stage)?;
    protocols(stage)?;
    outside(stage)?;
    waterfall(stage)?;
    default(stage)?;
    evacuation(stage)?;
    strictness(stage)?;
    relabelling(stage)?;
    unplugging(stage)
}

fn at(address: &str) -> Result<SocketAddr> {
    let address = address.parse().with_context(|| format!("{address} is no address"))?;
    Ok(SocketAddr::new(address, 80))
}

fn question<'a>(
    name: &'a str,
    from: &'a str,
    (service, address): (&'a str, &str),
    pods: &'a [&'a str],
) -> Result<Question<'a>> {
    Ok(Question { name, from, service, to: at(address)?, via: Via::Http, node: None, pods })
}

fn tutorial(stage: &mut Stage<'_>) -> Result<()> {
    stage.chapter(
        "The OpenYurt tutorial",
        "svc-ud1 is bound to the pool of the caller's node; its twin has no such annotation.",
        |stage| {
            for (name, from, service, pods) in [
                ("hangzhou stays in hangzhou", HANGZHOU_CLIENT, SVC_UD1, &HANGZHOU[..]),
                ("shanghai stays in shanghai", SHANGHAI_CLIENT, SVC_UD1, &SHANGHAI),
                ("so does a VM in shanghai", MACHINE, SVC_UD1, &SHANGHAI),
                ("hangzhou without topology", HANGZHOU_CLIENT, SVC_UD1_WITHOUT_TOPOLOGY, &SERVERS),
                ("shanghai without topology", SHANGHAI_CLIENT, SVC_UD1_WITHOUT_TOPOLOGY, &SERVERS),
                ("beijing has no pod: refused", BEIJING_CLIENT, SVC_UD1, &[]),
            ] {
                stage.ask_when_programmed(&question(name, from, service, pods)?)?;
            }
            Ok(String::new())
        },
    )
}

fn protocols(stage: &mut Stage<'_>) -> Result<()> {
    stage.chapter(
        "The same Service over UDP and over IPv6",
        "svc-ud1 gets a UDP port and an IPv6 address while its clients run.",
        |stage| {
            let cases = [
                ("hangzhou over UDP", HANGZHOU_CLIENT, SVC_UD1.1, Via::Udp, &HANGZHOU[..]),
                ("shanghai over UDP", SHANGHAI_CLIENT, SVC_UD1.1, Via::Udp, &SHANGHAI),
                ("hangzhou over IPv6", HANGZHOU_CLIENT, SVC_UD1_IPV6, Via::Http, &HANGZHOU),
                ("shanghai over IPv6", SHANGHAI_CLIENT, SVC_UD1_IPV6, Via::Http, &SHANGHAI),
                ("shanghai over UDP on IPv6", SHANGHAI_CLIENT, SVC_UD1_IPV6, Via::Udp, &SHANGHAI),
                ("beijing over UDP: refused", BEIJING_CLIENT, SVC_UD1.1, Via::Udp, &[]),
                ("beijing over IPv6: refused", BEIJING_CLIENT, SVC_UD1_IPV6, Via::Http, &[]),
            ];
            stage.change(|world| world.widen())?;
            for (name, from, address, via, pods) in cases {
                let (service, to) = (SVC_UD1.0, at(address)?);
                let question = Question { name, from, service, to, via, node: None, pods };
                stage.ask_when_programmed(&question)?;
            }
            Ok(String::new())
        },
    )
}

fn outside(stage: &mut Stage<'_>) -> Result<()> {
    stage.chapter(
        "From outside, by a node port",
        "svc-ud1 gets a node port. The node that is dialled decides for clients outside of the cluster.",
        |stage| {
            stage.change(|world| world.expose(NODE_PORT))?;
            for (name, node, number, pods) in [
                ("a node in hangzhou", WORKER, 1, &HANGZHOU[..]),
                ("a node in shanghai", WORKER2, 2, &SHANGHAI),
                ("beijing has no pod: refused", CONTROL_PLANE, 0, &[]),
            ] {
                let to = SocketAddr::new(node4(number).into(), NODE_PORT);
                let (service, via, node) = (SVC_UD1.0, Via::Http, Some(node));
                let question = Question { name, from: OUTSIDE, service, to, via, node, pods };
                stage.ask_when_programmed(&question)?;
            }
            Ok("kube-proxy is not needed for it: the programs are on the nodes' uplinks.".into())
        },
    )
}

fn waterfall(stage: &mut Stage<'_>) -> Result<()> {
    stage.chapter(
        "A waterfall over labels of your own",
        "svc-rack: this node, else this rack, else anywhere. Pods become unready one after another.",
        |stage| {
            stage.change(|world| {
                world.relabel(CONTROL_PLANE, &[(RACK, "rack-h")])?;
                world.add_neighbour()
            })?;
            let [f2694, twf95] = HANGZHOU;
            let steps: [(&str, &[&str], bool, &[&str]); 5] = [
                ("all ready: this node", &[], false, &HANGZHOU),
                ("f2694 unready: still this node", &[f2694], false, &[twf95]),
                ("twf95 unready: this rack", &[twf95], false, &[NEIGHBOUR]),
                ("rack unready: anywhere", &[NEIGHBOUR], false, &SHANGHAI),
                ("all ready again: this node", &[f2694, twf95, NEIGHBOUR], true, &HANGZHOU),
            ];
            let mut slowest = std::time::Duration::ZERO;
            for (name, changed, ready, pods) in steps {
                let question = question(name, HANGZHOU_CLIENT, SVC_RACK, pods)?;
                let took =
                    stage.change_until(|world| world.set_ready(changed, ready), &question)?;
                slowest = slowest.max(took);
                stage.ask(&question)?;
            }
            Ok(format!("New connections followed each change within {} ms.", slowest.as_millis()))
        },
    )
}

fn default(stage: &mut Stage<'_>) -> Result<()> {
    stage.chapter(
        "A default for a namespace",
        "The namespace says: this pool, else anywhere. A Service with a policy of its own keeps it.",
        |stage| {
            let twin = SVC_UD1_WITHOUT_TOPOLOGY;
            let before = question("the twin, before", HANGZHOU_CLIENT, twin, &SERVERS)?;
            stage.ask_when_programmed(&before)?;
            stage.change(|world| world.annotate_namespace(KEYS, Some(&format!("{POOL},*"))))?;
            for (name, from, service, pods) in [
                ("the twin stays in hangzhou", HANGZHOU_CLIENT, twin, &HANGZHOU[..]),
                ("the twin stays in shanghai", SHANGHAI_CLIENT, twin, &SHANGHAI),
                ("beijing has no pod: anywhere", BEIJING_CLIENT, twin, &SERVERS),
                ("svc-ud1 still refuses", BEIJING_CLIENT, SVC_UD1, &[]),
            ] {
                stage.ask_when_programmed(&question(name, from, service, pods)?)?;
            }
            stage.change(|world| world.annotate_namespace(KEYS, None))?;
            let after = question("the twin, afterwards", HANGZHOU_CLIENT, twin, &SERVERS)?;
            stage.ask_when_programmed(&after)?;
            Ok("The same for Services chosen by labels: TopologyPolicy, ClusterTopologyPolicy.".into())
        },
    )
}

fn evacuation(stage: &mut Stage<'_>) -> Result<()> {
    stage.chapter(
        "A pool is emptied, and comes back",
        "Hangzhou leaves every choice, while its pods are ready. Who would be refused may go anywhere.",
        |stage| {
            let say = |world: &mut dyn World, value: Option<&str>| {
                world.annotate_namespace("topo-lb.io/evacuate", value)
            };
            let empty = format!("{POOL}=hangzhou; allow-strict=*");
            let (twin, from) = (SVC_UD1_WITHOUT_TOPOLOGY, HANGZHOU_CLIENT);
            let emptied = question("the twin leaves hangzhou", from, twin, &SHANGHAI)?;
            let took = stage.change_until(|world| say(world, Some(&empty)), &emptied)?;
            stage.ask(&emptied)?;
            let strict = question("so does svc-ud1, which is strict", from, SVC_UD1, &SHANGHAI)?;
            stage.ask_when_programmed(&strict)?;
            let there = question("shanghai stays where it is", SHANGHAI_CLIENT, SVC_UD1, &SHANGHAI)?;
            stage.ask_when_programmed(&there)?;
            let back = question("hangzhou is back", from, SVC_UD1, &HANGZHOU)?;
            stage.change_until(|world| say(world, None), &back)?;
            stage.ask(&back)?;
            let took = took.as_millis();
            Ok(format!("New connections followed after {took} ms. `topo-lb evacuate` does it for a whole cluster."))
        },
    )
}

fn strictness(stage: &mut Stage<'_>) -> Result<()> {
    stage.chapter(
        "Strict means strict",
        "Both pods in shanghai become unready: svc-ud1 would rather refuse than leave the pool.",
        |stage| {
            let refused = question("shanghai unready: refused", SHANGHAI_CLIENT, SVC_UD1, &[])?;
            stage.change_until(|world| world.set_ready(&SHANGHAI, false), &refused)?;
            stage.ask(&refused)?;
            let spared = question("hangzhou goes on", HANGZHOU_CLIENT, SVC_UD1, &HANGZHOU)?;
            stage.ask(&spared)?;
            let back = question("shanghai ready again", SHANGHAI_CLIENT, SVC_UD1, &SHANGHAI)?;
            stage.change_until(|world| world.set_ready(&SHANGHAI, true), &back)?;
            stage.ask(&back)?;
            Ok("A refusal is ECONNREFUSED out of connect(): no time-out, and no packet.".into())
        },
    )
}

fn relabelling(stage: &mut Stage<'_>) -> Result<()> {
    stage.chapter(
        "A node moves into another pool",
        "kind-control-plane is relabelled from beijing to shanghai.",
        |stage| {
            let before = question("before the label: refused", BEIJING_CLIENT, SVC_UD1, &[])?;
            stage.ask(&before)?;
            let after = question("after the label: shanghai", BEIJING_CLIENT, SVC_UD1, &SHANGHAI)?;
            let labels = [(POOL, "shanghai"), (DESIRED_POOL, "shanghai")];
            let took = stage.change_until(|world| world.relabel(CONTROL_PLANE, &labels), &after)?;
            stage.ask(&after)?;
            stage.and_also(took <= patient(FOLLOWS));
            Ok(format!("New connections followed {} ms after the label.", took.as_millis()))
        },
    )
}

fn unplugging(stage: &mut Stage<'_>) -> Result<()> {
    stage.chapter(
        "A node is unplugged, and a download goes on",
        "The twin gets a load balancer IP, which leads to kind-worker. That node sends packets on as they come.",
        |stage| {
            let (service, via, from) = (SVC_UD1_WITHOUT_TOPOLOGY.0, Via::Http, OUTSIDE);
            let to = at(BALANCER)?;
            let question = |name, node, pods| Question {
                name,
                from,
                service,
                to,
                via,
                node: Some(node),
                pods,
            };
            let lead_to = |number| format!("route replace {BALANCER} via {}", node4(number));
            stage.network().ip(&[lead_to(1)])?;
            stage.change(|world| world.balance(BALANCER))?;
            stage.ask_when_programmed(&question("by kind-worker", WORKER, &SERVERS))?;
            stage.wait_for_proofs()?;
            let download = Download::begin(stage.network(), to, &SHANGHAI)?;
            stage.network().ip(&["link set node1 down".to_owned(), lead_to(0)])?;
            let unplugged =
                question("unplugged: by kind-control-plane", CONTROL_PLANE, &SHANGHAI);
            stage.change_until(|world| world.set_ready(&HANGZHOU, false), &unplugged)?;
            stage.ask(&unplugged)?;
            let finished = download.finish();
            stage.and_also(finished.is_ok());
            stage.network().ip(&["link set node1 up".to_owned(), lead_to(1)])?;
            let back = question("plugged in: by kind-worker", WORKER, &SERVERS);
            stage.change_until(|world| world.set_ready(&HANGZHOU, true), &back)?;
            stage.ask(&back)?;
            Ok(match finished {
                Ok(()) => "A download from shanghai, begun by kind-worker, went on by kind-control-plane.".into(),
                Err(error) => format!("A download from shanghai was lost: {error:#}"),
            })
        },
    )
}
