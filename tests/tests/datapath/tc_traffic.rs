//! Traffic without a socket of this kernel: clients that stand for virtual machines, behind a
//! device of their node, outside every cgroup that an agent serves.

use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use aya::maps::{Array, HashMap, Map, MapData};
use aya::programs::{SchedClassifier, TcAttachType};
use serde_json::Value;
use topo_lb_common::device::Device;
use topo_lb_common::maps;
use topo_lb_tests::binary::row;
use topo_lb_tests::manifest::service;
use topo_lb_tests::netns::{NetNs, ethtool};
use topo_lb_tests::process::printed;
use topo_lb_tests::scene::{
    ALL, ECHO4, ECHO6, EMPTY4, EMPTY6, FOLLOWS, HERE, KEYS, NOBODY4, WEB4, WEB6, ZONE, at, idle,
    known, play_with_machines as play,
};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::wait::{PATIENCE, patient, until, until_is};

/// Words of an entry of `devices`.
const WORDS: usize = size_of::<Device>() / 8;

/// The pins of tc links.
fn pins(directory: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(directory.join("links")).context("links are pinned")?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.filter(|name| name.starts_with("topo_lb_")).collect())
}

#[test]
fn every_endpoint_answers_a_machine() -> Result<()> {
    play(|scene| {
        let mut machine = scene.cluster.machine("client")?;
        for (via, to) in [
            (Via::Http, WEB4),
            (Via::Http, WEB6),
            (Via::UdpConnected, WEB4),
            (Via::Udp, WEB6),
            (Via::Udp, ECHO4),
            (Via::UdpConnected, ECHO6),
        ] {
            known([at(to)?]).into_iter().try_for_each(|to| machine.expect(via, to, &ALL))?;
        }
        machine.expect(Via::Http, at(NOBODY4)?, &["untouched"])
    })
}

#[test]
fn a_machine_s_traffic_keeps_its_topology() -> Result<()> {
    play(|scene| {
        let mut machine = scene.cluster.machine("client")?;
        scene.change(|manifests| manifests.annotate("web", KEYS, Some(ZONE)))?;
        machine.wait_for(Via::Http, at(WEB4)?, &["a", "b"], FOLLOWS)?;
        for (via, to) in [(Via::Http, WEB4), (Via::Http, WEB6), (Via::UdpConnected, WEB4)] {
            machine.expect(via, at(to)?, &["a", "b"])?;
        }
        // Also if it dials a pod by its address.
        scene.change(|manifests| manifests.annotate("web", "topo-lb.io/direct", Some("refuse")))?;
        for (pod, wanted) in [("c", &[][..]), ("d", &[]), ("a", &["a"]), ("b", &["b"])] {
            let pod = scene.cluster.pod(pod)?;
            for to in [(pod.ipv4, 9376).into(), (pod.ipv6, 9376).into()] {
                machine.wait_for(Via::Http, to, wanted, FOLLOWS)?;
                machine.wait_for(Via::UdpConnected, to, wanted, FOLLOWS)?;
            }
        }
        Ok(())
    })
}

/// For the endpoint, both are one flow.
#[test]
fn one_port_of_a_machine_asks_a_service_and_its_endpoint_directly() -> Result<()> {
    play(|scene| {
        scene.set_endpoints("web", &["a"])?;
        scene.wait_for(Via::Udp, at(WEB4)?, &["a"])?;
        let (client, a) = (scene.cluster.pod("client")?, scene.cluster.pod("a")?);
        let own: [IpAddr; 2] = [client.ipv4.into(), client.ipv6.into()];
        let endpoint: [IpAddr; 2] = [a.ipv4.into(), a.ipv6.into()];
        for (place, frontend) in [WEB4, WEB6].into_iter().enumerate() {
            let both = [at(frontend)?, (endpoint[place], 9376).into()];
            // From even ports, the Service is asked first.
            for port in 41_000_u16..41_008 {
                let socket = client.netns().run(|| Ok(UdpSocket::bind((own[place], port))?))?;
                socket.set_read_timeout(Some(patient(FOLLOWS)))?;
                for round in 0..4 {
                    let to = both[usize::from(port + round) % 2];
                    socket.send_to(b"who?", to)?;
                    let answer = socket.recv_from(&mut [0; 64]);
                    let (_, from) = answer.with_context(|| format!("{port} to {to}, {round}"))?;
                    ensure!(from == to, "{port}: {from} answers for {to}");
                }
            }
        }
        Ok(())
    })
}

/// The devices behind the programs compute what was left to a device, and the receivers check it: else nobody
/// looks at it. `twin`'s address has the same sum as its endpoint's, so that the kernel's update of a checksum
/// does not show whether a device has yet to compute it.
#[test]
fn checksums_are_right_whoever_computes_them_and_whatever_the_addresses() -> Result<()> {
    play(|scene| {
        let [a, b, c, d] = scene.cluster.pod("a")?.ipv4.octets().map(u16::from);
        let [high, low] = ((a << 8 | b) + (c << 8 | d) - (10 << 8 | 96)).to_be_bytes();
        let twin = format!("10.96.{high}.{low}");
        scene.put(service("twin", &[&twin], &[("http", 80, "TCP"), ("udp", 80, "UDP")], &[]))?;
        scene.set_endpoints("twin", &["a"])?;
        scene.set_endpoints("web", &["a"])?;
        let set = |netns: &NetNs, device: &str, what: [u32; 2]| {
            netns.run(|| ethtool(device, &mut what.clone()))
        };
        let node = scene.cluster.node_netns(HERE)?;
        let pods = [scene.cluster.pod("client")?.netns(), scene.cluster.pod("a")?.netns()];
        for (device, pod) in [("pod2", pods[0]), ("pod3", pods[1])] {
            set(node, device, TRANSMIT_CHECKSUMS_OFF)?;
            set(pod, "eth0", RECEIVE_CHECKSUMS_OFF)?;
        }
        for by_device in [true, false] {
            if !by_device {
                pods.iter().try_for_each(|pod| set(pod, "eth0", TRANSMIT_CHECKSUMS_OFF))?;
            }
            let mut machine = scene.cluster.machine("client")?;
            for to in [WEB4, WEB6, &twin] {
                machine.wait_for(Via::Http, at(to)?, &["a"], FOLLOWS)?;
                machine.expect(Via::UdpConnected, at(to)?, &["a"])?;
            }
        }
        Ok(())
    })
}

/// `ethtool -K DEVICE rx off`: `ETHTOOL_SRXCSUM` and its value.
const RECEIVE_CHECKSUMS_OFF: [u32; 2] = [0x15, 0];

/// Like most machines, the second one leaves checksums to the outgoing device. The device computes
/// none, so the kernel must do it for the refusal that is sent back.
#[test]
fn a_machine_is_refused_at_once_whoever_makes_its_checksums() -> Result<()> {
    play(|scene| {
        for by_device in [false, true] {
            if by_device {
                let node = scene.cluster.node_netns(HERE)?;
                node.run(|| ethtool("pod2", &mut TRANSMIT_CHECKSUMS_OFF.clone()))?;
            }
            let mut machine = scene.cluster.machine("client")?;
            for via in [Via::Http, Via::UdpConnected] {
                for to in [EMPTY4, EMPTY6] {
                    let tally = machine.call(via, at(to)?, 30)?;
                    ensure!(tally.refused == 30, "{via:?} to {to}: {tally}");
                    ensure!(tally.is_at_once(), "{via:?} to {to}: {} µs", tally.median_us);
                }
            }
        }
        Ok(())
    })
}

/// `ethtool -K DEVICE tx off`: `ETHTOOL_STXCSUM` and its value (include/uapi/linux/ethtool.h,
/// `struct ethtool_value`).
const TRANSMIT_CHECKSUMS_OFF: [u32; 2] = [0x17, 0];

#[test]
fn a_machine_that_is_its_own_endpoint_gets_an_answer() -> Result<()> {
    play(|scene| {
        let mut machine = scene.cluster.machine("a")?;
        scene
            .change(|manifests| manifests.annotate("web", KEYS, Some("kubernetes.io/hostname")))?;
        machine.wait_for(Via::Http, at(WEB4)?, &["a"], FOLLOWS)?;
        for (via, to) in
            [(Via::Http, WEB4), (Via::Http, WEB6), (Via::UdpConnected, WEB4), (Via::Udp, WEB6)]
        {
            machine.expect(via, at(to)?, &["a"])?;
        }
        Ok(())
    })
}

#[test]
fn what_a_socket_has_translated_tc_leaves_alone() -> Result<()> {
    play(|scene| {
        for via in [Via::Http, Via::UdpConnected, Via::Udp] {
            scene.expect(via, at(WEB4)?, &ALL)?;
        }
        let connections = tracked(&scene.agent.list("connections")?)?;
        ensure!(connections.is_empty(), "{connections:?}");
        let mut machine = scene.cluster.machine("client")?;
        // Few enough that closed ones stay: the oldest leave when there are many.
        let tally = machine.call(Via::Http, at(WEB4)?, 20)?;
        ensure!(tally.answered() == 20, "{tally}");
        let connections = tracked(&scene.agent.list("connections")?)?;
        ensure!(connections.len() == 20, "{} connections", connections.len());
        Ok(())
    })
}

/// The rows of tc in `list connections`.
fn tracked(listed: &Value) -> Result<Vec<Value>> {
    let rows = listed["connections"].as_array().context("list connections has connections")?;
    Ok(rows.iter().filter(|row| row["client"].is_string()).cloned().collect())
}

#[test]
fn a_connection_outlives_a_thousand_changes_and_the_agent() -> Result<()> {
    play(|scene| {
        let mut machine = scene.cluster.machine("client")?;
        let mut held = Vec::new();
        for address in [WEB4, WEB6] {
            let socket = machine.open(Via::Http, at(address)?)??;
            held.push((socket, machine.ask(socket, None)??.pod));
        }
        let mut all_answer = |when: &str| -> Result<()> {
            for (socket, first) in &held {
                let reply = machine.ask(*socket, None)??;
                ensure!(reply.pod == *first, "{when}: {first}, and then {}", reply.pod);
            }
            Ok(())
        };
        for round in 0..1_000 {
            let ready = round % 2 == 0;
            for pod in ALL {
                scene.manifests.set_ready(pod, ready || pod == "d");
            }
            scene.manifests.write()?;
            if round % 20 == 0 {
                all_answer(&format!("round {round}"))?;
            }
        }
        scene.agent.kill();
        all_answer("without an agent")?;
        scene.agent.resume()?;
        all_answer("with the next agent")?;
        scene.agent.wait_for_log("which endpoints may answer", PATIENCE)?;
        all_answer("by marks")
    })
}

/// As if an agent was killed between its last write and the revision that makes connections check.
#[test]
fn the_next_agent_has_flows_leave_an_endpoint_that_the_last_one_took_away() -> Result<()> {
    play(|scene| {
        let mut machine = scene.cluster.machine("client")?;
        for address in [WEB4, WEB6] {
            scene.wait_for(Via::Udp, at(address)?, &ALL)?;
            let socket = machine.open(Via::UdpConnected, at(address)?)??;
            let pod = machine.ask(socket, None)??.pod;
            let rest: Vec<_> = ALL.into_iter().filter(|other| *other != pod).collect();
            let map = scene.agent.pins().join(maps::REVISION);
            let mut revision = Array::<_, u32>::try_from(Map::Array(MapData::from_pin(map)?))?;
            let seen = revision.get(&0, 0)?;
            scene.set_ready(&pod, false)?;
            scene.wait_for(Via::Udp, at(address)?, &rest)?;
            let now = || Ok(revision.get(&0, 0)?);
            until_is("the end of the change", FOLLOWS, now, |now| *now != seen)?;
            scene.agent.kill();
            revision.set(0, seen, 0)?;
            scene.agent.resume()?;
            let moved = machine.ask(socket, None)??.pod;
            ensure!(moved != pod, "the flow stays with {pod}, which does not serve");
            scene.set_ready(&pod, true)?;
        }
        Ok(())
    })
}

#[test]
fn a_device_is_attached_when_it_comes_and_leaves_nothing_when_it_goes() -> Result<()> {
    play(|scene| {
        let directory = scene.agent.pins().to_owned();
        let before = pins(&directory)?;
        ensure!(before.len() == 4, "two pods, each both ways: {before:?}");
        let count = |wanted: usize| {
            until(&format!("{wanted} links of devices"), FOLLOWS, || {
                let now = pins(&directory)?;
                Ok(if now.len() == wanted { Ok(()) } else { Err(now.join(" ")) })
            })
        };
        // Every second an inspection first restores lost pins and then looks for devices. So a
        // device attached while a pin is missing was attached because of the kernel's notification.
        let pin = directory.join("links/connect4");
        let mut was_told = false;
        for _ in 0..5 {
            fs::remove_file(&pin)?;
            let lines = ["link add pod77 type veth peer name other77".to_owned()];
            scene.cluster.ip_on(HERE, &lines)?;
            count(6)?;
            was_told |= !pin.exists();
            let now = pins(&directory)?;
            let new = now.iter().find(|pin| !before.contains(pin)).context("a new pin")?;
            let index: u32 = new.rsplit('_').next().context("an index")?.parse()?;
            // As if a client behind the device had opened a connection.
            let devices = MapData::from_pin(directory.join(maps::DEVICES))?;
            let mut devices = HashMap::<_, u32, [u64; WORDS]>::try_from(Map::LruHashMap(devices))?;
            devices.insert(index, [0; WORDS], 0)?;
            scene.cluster.ip_on(HERE, &["link del pod77".to_owned()])?;
            count(4)?;
            let left = || Ok(devices.get(&index, 0).is_ok());
            until_is("no entry of the device", FOLLOWS, left, |is_there| !is_there)?;
            until_is("the pin of connect4", FOLLOWS, || Ok(pin.exists()), |is_there| *is_there)?;
            if was_told {
                return Ok(());
            }
        }
        anyhow::bail!("devices are found by inspections alone")
    })
}

#[test]
fn a_device_that_goes_while_the_agent_looks_for_devices_is_no_loss_of_its_filters() -> Result<()> {
    idle(|scene| {
        scene.agent.set("--tc-devices", "pod*");
        scene.agent.set("--tc-attach", "clsact");
        scene.agent.resume()?;
        let directory = scene.agent.pins().to_owned();
        let add = |name: u32| format!("link add pod{name} type veth peer name other{name}");
        scene.cluster.ip_on(HERE, &[add(70)])?;
        for name in 70..150 {
            let count = || Ok(pins(&directory)?.len());
            until_is("filters of a new device", FOLLOWS, count, |count| *count == 6)?;
            // The next device makes the agent look while this one goes.
            scene.cluster.ip_on(HERE, &[add(name + 1), format!("link del pod{name}")])?;
        }
        let log = scene.agent.log();
        ensure!(!log.contains("removed by somebody else"), "{log}");
        ensure!(!log.contains("cannot be attached"), "{log}");
        Ok(())
    })
}

#[test]
fn clsact_does_what_tcx_does_and_filters_go_with_cleanup() -> Result<()> {
    idle(|scene| {
        scene.agent.set("--tc-devices", "pod*");
        scene.agent.set("--tc-attach", "clsact");
        scene.agent.resume()?;
        let mut machine = scene.cluster.machine("client")?;
        machine.expect(Via::Http, at(WEB4)?, &ALL)?;
        scene.agent.kill();
        machine.expect(Via::UdpConnected, at(WEB6)?, &ALL)?;
        scene.agent.resume()?;
        machine.expect(Via::Http, at(WEB6)?, &ALL)?;
        let node = scene.cluster.node_netns(HERE)?;
        ensure!(filters(node)?.len() == 4, "two pods, each both ways: {:?}", filters(node)?);
        let listed = scene.agent.list("hooks")?;
        let egress = row(&listed["hooks"]["each"], "hook", "tc egress")?;
        let device = &egress["devices"][1];
        ensure!(device["means"] == "clsact", "{listed}");
        // A device of another network namespace with the same index is another device.
        let index = device["index"].as_u64().context("an index")?;
        let elsewhere = scene.cluster.prefix().name("elsewhere");
        let elsewhere = NetNs::make(&[elsewhere])?.pop().context("a namespace")?;
        elsewhere.ip(&[format!("link add other index {index} type bridge")])?;
        let listed = elsewhere.run(|| scene.agent.list("hooks"))?;
        ensure!(
            row(&listed["hooks"]["each"], "hook", "tc egress")?["devices"][1]["name"].is_null(),
            "{listed}"
        );
        let listed = node.run(|| scene.agent.list("hooks"))?;
        let name = &row(&listed["hooks"]["each"], "hook", "tc egress")?["devices"][1]["name"];
        ensure!(name == "pod3", "{listed}");

        scene.agent.stop()?;
        scene.agent.unset("--tc-devices");
        scene.agent.resume()?;
        ensure!(pins(scene.agent.pins())?.is_empty(), "{:?}", pins(scene.agent.pins())?);
        ensure!(filters(node)?.is_empty(), "{:?}", filters(node)?);
        machine.expect(Via::Http, at(WEB4)?, &["untouched"])?;

        // A device with foreign filters loses only ours.
        scene.agent.stop()?;
        scene.agent.set("--tc-devices", "pod*");
        scene.agent.resume()?;
        machine.expect(Via::Http, at(WEB4)?, &ALL)?;
        // A program that passes every packet.
        let other = ["filter", "add", "dev", "pod2", "ingress", "prio", "7"];
        node.tc(&[&other[..], &["bpf", "bytecode", "1,6 0 0 0"]].concat())?;
        scene.agent.stop()?;
        // Device names are known only in the agent's network namespace: cleanup elsewhere leaves
        // filters, and the next agent takes them over.
        scene.agent.cleanup()?;
        ensure!(filters(node)?.len() == 5, "{:?}", filters(node)?);
        scene.agent.resume()?;
        ensure!(filters(node)?.len() == 5, "{:?}", filters(node)?);
        machine.expect(Via::Http, at(WEB6)?, &ALL)?;
        scene.agent.stop()?;
        let agent = &scene.agent;
        let cleanup = node.run(|| agent.cleanup())?;
        ensure!(cleanup.status.success(), "{cleanup:?}");
        let left = filters(node)?;
        ensure!(left.len() == 1 && left[0].contains("bytecode"), "{left:?}");
        machine.expect(Via::Http, at(WEB4)?, &["untouched"])
    })
}

/// The clsact filters on the devices of pods, foreign ones included.
fn filters(netns: &NetNs) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for device in ["pod2", "pod3"] {
        for way in ["ingress", "egress"] {
            let shown = netns.tc(&["filter", "show", "dev", device, way])?;
            let own = shown.lines().filter(|line| line.contains("handle"));
            all.extend(own.map(|line| format!("{device} {way}: {line}")));
        }
    }
    Ok(all)
}

#[test]
fn hooks_tell_where_they_are_attached_and_what_they_counted() -> Result<()> {
    play(|scene| {
        let mut machine = scene.cluster.machine("client")?;
        machine.expect(Via::Http, at(WEB4)?, &ALL)?;
        scene.expect(Via::Http, at(WEB6)?, &ALL)?;
        machine.call(Via::Http, at(EMPTY4)?, 10)?;
        let listed = scene.agent.list("hooks")?;
        let rows = listed["hooks"]["each"].as_array().context("list hooks has hooks")?;
        ensure!(rows.len() == 12, "nine hooks of sockets, two of tc, and XDP: {listed}");
        let cgroup = fs::metadata(scene.cluster.node(HERE)?.cgroup_path())?.ino();
        for row in &rows[..9] {
            ensure!(row["cgroup"] == cgroup && row["program"].is_u64(), "not on {cgroup}: {row}");
            ensure!(row["packets"].is_null(), "{row}");
        }
        for (row, opened, refused) in [(&rows[9], 100, 10), (&rows[10], 0, 0)] {
            let packets = &row["packets"];
            ensure!(packets["opened"] == opened && packets["refused"] == refused, "{row}");
            ensure!(packets["translated"].as_u64() >= Some(200), "{row}");
            for none in ["unanswered", "malformed", "errors", "dropped"] {
                ensure!(packets[none] == 0, "{none}: {row}");
            }
            let devices = row["devices"].as_array().context("tc has devices")?;
            ensure!(devices.len() == 2, "two pods: {row}");
            for device in devices {
                // Linux has tcx from 6.6 on.
                let tcx = SchedClassifier::query_tcx("lo", TcAttachType::Ingress);
                let means = if tcx.is_ok() { "tcx" } else { "clsact" };
                ensure!(device["means"] == means && device["index"].is_u64(), "{row}");
                // Outside the node's network namespace no device, or another one, has this index.
                ensure!(device["name"].is_null(), "{row}");
            }
        }
        let went = &listed["hooks"]["connections"];
        let sum: u64 = ["node", "zone", "region", "elsewhere"]
            .iter()
            .filter_map(|place| went[place].as_u64())
            .sum();
        ensure!(sum == 200 && went["refused"] == 10, "100 of the machine, 100 of the pod: {went}");

        let node = scene.cluster.node_netns(HERE)?;
        let table = node.run(|| printed(&mut scene.agent.list_command("hooks")))?;
        let egress = table.lines().find(|line| line.trim().starts_with("tc egress"));
        let egress = egress.with_context(|| format!("no tc egress in {table}"))?;
        // With clsact, that follows each name.
        ensure!(egress.replace(" by clsact", "").contains("pod2, pod3"), "{egress}");
        Ok(())
    })
}

#[test]
fn without_devices_an_agent_takes_tc_away() -> Result<()> {
    play(|scene| {
        let directory = scene.agent.pins().to_owned();
        scene.agent.stop()?;
        scene.agent.set("--tc-devices", "nothing*");
        scene.agent.resume()?;
        ensure!(pins(&directory)?.is_empty(), "{:?}", pins(&directory)?);
        scene.agent.stop()?;
        scene.agent.set("--tc-devices", "pod*");
        scene.agent.resume()?;
        ensure!(pins(&directory)?.len() == 4, "{:?}", pins(&directory)?);
        scene.agent.stop()?;
        scene.agent.unset("--tc-devices");
        scene.agent.resume()?;
        ensure!(pins(&directory)?.is_empty(), "{:?}", pins(&directory)?);
        Ok(())
    })
}
