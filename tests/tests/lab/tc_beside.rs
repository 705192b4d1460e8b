//! tc beside foreign filters on the same device, like a CNI's; machines with their tap in a Pod.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use aya_obj::generated::bpf_prog_type::BPF_PROG_TYPE_SCHED_CLS;
use rustix::net::netdevice::name_to_index;
use serde_json::Value;
use topo_lb_kernel::datapath::host::syscall::{load, pin};
use topo_lb_tests::binary::row;
use topo_lb_tests::client::Client;
use topo_lb_tests::foreign::instruction;
use topo_lb_tests::netns::NetNs;
use topo_lb_tests::requirements::BPFFS;
use topo_lb_tests::scene::{ALL, FOLLOWS, HERE, Scene, WEB4, at, idle, play_with_machines};
use topo_lb_tests::traffic::Via;

/// The node's end of the veth pair of the pod `client`.
const DEVICE: &str = "pod2";

/// A program that drops packets from `source`, and passes all others, like a CNI's source check.
fn guard(source: Ipv4Addr) -> Result<OwnedFd> {
    let code = [
        // r6 = the packet; r0 = the word at offset 26 in host order, the source of an IPv4 packet.
        instruction(0xbf, 6, 1, 0, 0),
        instruction(0x20, 0, 0, 0, 26),
        // if w0 != source, skip two instructions
        instruction(0x56, 0, 0, 2, u32::from(source).cast_signed()),
        // TC_ACT_SHOT
        instruction(0xb7, 0, 0, 0, 2),
        instruction(0x95, 0, 0, 0, 0),
        // TC_ACT_UNSPEC
        instruction(0xb7, 0, 0, 0, -1),
        instruction(0x95, 0, 0, 0, 0),
    ];
    load(BPF_PROG_TYPE_SCHED_CLS, "guard", &code, 0).context("the guard is not loaded")
}

/// Adds the guard as a clsact filter towards the pod `client`; `priority` has arguments of `tc`.
fn put_guard(scene: &Scene<'_>, priority: &[&str]) -> Result<()> {
    let guard = guard(WEB4.parse()?)?;
    let place = Path::new(BPFFS).join(scene.cluster.prefix().name("guard"));
    let path = place.to_str().context("a path of UTF-8")?;
    pin(guard.as_fd(), &place).context("cannot pin the guard")?;
    let node = scene.cluster.node_netns(HERE)?;
    let added = node.tc(&["qdisc", "add", "dev", DEVICE, "clsact"]).or_else(|error| {
        // topo-lb has made the qdisc.
        if format!("{error:#}").contains("xclusivity") { Ok(String::new()) } else { Err(error) }
    });
    let filter = ["filter", "add", "dev", DEVICE, "egress"];
    let pinned = ["bpf", "direct-action", "object-pinned", path];
    let added = added.and_then(|_| node.tc(&[&filter[..], priority, &pinned[..]].concat()));
    fs::remove_file(&place).context("the pin is there")?;
    added.map(drop)
}

/// Waits until every endpoint answers the machine with the Service's address.
fn wait_for_answers(machine: &mut Client) -> Result<()> {
    for via in [Via::Http, Via::UdpConnected] {
        machine.wait_for(via, at(WEB4)?, &ALL, FOLLOWS)?;
        machine.expect(via, at(WEB4)?, &ALL)?;
    }
    Ok(())
}

/// The device's row for egress in `topo-lb list hooks`.
fn on_the_way_out(scene: &Scene<'_>) -> Result<Value> {
    let listed = scene.cluster.node_netns(HERE)?.run(|| scene.agent.list("hooks"))?;
    let egress = row(&listed["hooks"]["each"], "hook", "tc egress")?;
    row(&egress["devices"], "name", DEVICE).cloned()
}

#[test]
fn filters_that_were_there_first_see_endpoints_and_no_service() -> Result<()> {
    idle(|scene| {
        // Without a priority, the kernel assigns a high number.
        put_guard(scene, &[])?;
        scene.agent.set("--tc-devices", "pod*");
        scene.agent.set("--max-connections", "4096");
        scene.agent.resume()?;
        wait_for_answers(&mut scene.cluster.machine("client")?)?;
        let device = on_the_way_out(scene)?;
        ensure!(device["means"] == "clsact", "{device}");
        ensure!(device["others"].to_string().contains("guard"), "{device}");
        // The next agent takes over the existing filters.
        scene.agent.stop()?;
        scene.agent.resume()?;
        wait_for_answers(&mut scene.cluster.machine("client")?)
    })
}

#[test]
fn a_filter_that_comes_later_finds_topo_lb_behind_it_and_may_take_all_filters_away() -> Result<()> {
    play_with_machines(|scene| {
        let mut machine = scene.cluster.machine("client")?;
        wait_for_answers(&mut machine)?;
        put_guard(scene, &["prio", "7"])?;
        wait_for_answers(&mut machine)?;
        let device = on_the_way_out(scene)?;
        ensure!(device["means"] == "clsact", "{device}");

        // Like a CNI's agent that restarts.
        scene.cluster.node_netns(HERE)?.tc(&["qdisc", "delete", "dev", DEVICE, "clsact"])?;
        wait_for_answers(&mut machine)?;
        ensure!(
            scene.agent.log().contains("was removed by somebody else"),
            "{}",
            scene.agent.log()
        );
        Ok(())
    })
}

/// Like KubeVirt's bridge binding: the tap is in the Pod's namespace, its addresses in the machine.
fn put_machine_into_pod(scene: &Scene<'_>) -> Result<NetNs> {
    const MACHINE: &str = "02:54:4c:03:01:02";
    const NODE: &str = "02:54:4c:02:01:02";
    let pod = scene.cluster.pod("client")?;
    let names = [scene.cluster.prefix().name("guest")];
    let guest = NetNs::make(&names)?.pop().context("a namespace")?;
    pod.netns().ip(&[
        "address flush dev eth0".to_owned(),
        "link set eth0 down".to_owned(),
        "link set eth0 address 02:54:4c:03:ff:ff".to_owned(),
        "link add k6t-eth0 type bridge mcast_snooping 0".to_owned(),
        format!(
            "link add tap0 type veth peer name eth0 address {MACHINE} netns {}",
            guest.path().display()
        ),
        "link set eth0 master k6t-eth0 up".to_owned(),
        "link set tap0 master k6t-eth0 up".to_owned(),
        "link set k6t-eth0 up".to_owned(),
    ])?;
    guest.ip(&[
        "link set lo up".to_owned(),
        "link set eth0 up".to_owned(),
        format!("address add {}/32 dev eth0", pod.ipv4),
        format!("neigh add 169.254.1.1 lladdr {NODE} dev eth0 nud permanent"),
        "route add 169.254.1.1 dev eth0 scope link".to_owned(),
        "route add default via 169.254.1.1 dev eth0".to_owned(),
    ])?;
    Ok(guest)
}

#[test]
fn a_machine_whose_tap_is_in_a_pod_is_served_at_the_host_s_end_of_the_pods_cable() -> Result<()> {
    idle(|scene| {
        let guest = put_machine_into_pod(scene)?;
        let mut machine = scene.cluster.guest("guest", &guest)?;
        scene.agent.set("--max-connections", "4096");
        // No device of the host has this name.
        scene.agent.set("--tc-devices", "tap*");
        scene.agent.resume()?;
        machine.wait_for(Via::Http, at(WEB4)?, &["untouched"], FOLLOWS)?;
        scene.agent.stop()?;
        scene.agent.set("--tc-devices", "pod*");
        scene.agent.resume()?;
        wait_for_answers(&mut machine)
    })
}

#[test]
fn what_an_agent_was_making_when_it_was_killed_goes_with_cleanup() -> Result<()> {
    idle(|scene| {
        scene.agent.set("--tc-devices", "pod*");
        scene.agent.set("--tc-attach", "clsact");
        scene.agent.resume()?;
        scene.agent.kill();
        // A queueing discipline is made and marked before a filter is there, and pinned after that.
        let node = scene.cluster.node_netns(HERE)?;
        node.ip(&["link add pod9 type veth peer name other9".to_owned()])?;
        node.tc(&["qdisc", "add", "dev", "pod9", "clsact"])?;
        let index = node.run(|| Ok(name_to_index(UdpSocket::bind("127.0.0.1:0")?, "pod9")?))?;
        fs::create_dir(scene.agent.pins().join(format!("links/clsact_{index}")))?;
        let gone = node.run(|| scene.agent.cleanup())?;
        ensure!(gone.status.success(), "{}", String::from_utf8_lossy(&gone.stderr));
        ensure!(!scene.agent.pins().exists(), "the pin directory is left");
        let left = node.tc(&["qdisc", "show", "dev", "pod9"])?;
        ensure!(!left.contains("clsact"), "{left}");
        Ok(())
    })
}
