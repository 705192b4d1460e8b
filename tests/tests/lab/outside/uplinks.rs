//! The devices by which clients outside come, and what is left on them.

use std::fs;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use aya::programs::tc::{TcAttachOptions, TcAttachType};
use aya::programs::{LinkOrder, SchedClassifier};
use aya_obj::generated::bpf_prog_type::{self, BPF_PROG_TYPE_SCHED_CLS, BPF_PROG_TYPE_XDP};
use serde_json::Value;
use tokio::time::timeout;
use topo_lb_common::maps;
use topo_lb_kernel::datapath::host::syscall::{load, pin};
use topo_lb_kernel::device::Changes;
use topo_lb_tests::binary::row;
use topo_lb_tests::foreign::instruction;
use topo_lb_tests::http::Answer;
use topo_lb_tests::netns::NetNs;
use topo_lb_tests::prefix::Prefix;
use topo_lb_tests::process::printed;
use topo_lb_tests::requirements::{BPFFS, kernel};
use topo_lb_tests::scene::{ALL, FOLLOWS, HERE, Scene, WEB4, at};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::wait::{patient, until};

use super::scene::{NODE, WEB, idle, play, tables, wait_at_each};

/// The uplink of every node.
const UPLINK: &str = "eth0";

/// The names of the devices with programs and their roles, the same in both directions.
fn roles(scene: &Scene<'_>) -> Result<Vec<(String, String)>> {
    let listed = scene.cluster.node_netns(HERE)?.run(|| scene.agent.list("hooks"))?;
    let of = |hook: &str| -> Result<Vec<(String, String)>> {
        let devices = &row(&listed["hooks"]["each"], "hook", hook)?["devices"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let devices = devices.as_array().context("a list of devices")?;
        Ok(devices.iter().map(|it| (text(&it["name"]), text(&it["role"]))).collect())
    };
    let (ingress, egress) = (of("tc ingress")?, of("tc egress")?);
    ensure!(ingress == egress, "{ingress:?} and {egress:?}");
    Ok(ingress)
}

/// Waits until exactly these devices have programs, and each two pins.
fn wait_for_roles(scene: &Scene<'_>, wanted: &[(&str, &str)]) -> Result<()> {
    let mut wanted: Vec<(String, String)> =
        wanted.iter().map(|(name, role)| ((*name).to_owned(), (*role).to_owned())).collect();
    wanted.sort();
    until(&format!("programs on {wanted:?}"), FOLLOWS, || {
        // Between two directions of one device, the lists differ.
        let found = roles(scene).map(|mut found| {
            found.sort();
            found
        });
        // The kernel detaches from a device that vanishes, and the agent then removes the pins.
        let pins = pins(scene)?;
        Ok(match found {
            Ok(found) if found == wanted && pins.len() == 2 * wanted.len() => Ok(()),
            other => Err(format!("{other:?}, {pins:?}")),
        })
    })
    .map(drop)
}

/// Names of the pins of programs of tc on devices.
fn pins(scene: &Scene<'_>) -> Result<Vec<String>> {
    let names = fs::read_dir(scene.agent.pins().join("links"))?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<Vec<_>>>()?;
    let is_tc = |name: &String| name.starts_with("topo_lb_") && !name.contains("xdp");
    Ok(names.into_iter().filter(is_tc).collect())
}

/// Checks that nothing of clients outside is on the node: no program, no table, no map.
fn expect_nothing_left(scene: &Scene<'_>) -> Result<()> {
    let node = scene.cluster.node_netns(HERE)?;
    for direction in ["ingress", "egress"] {
        let filters = node.tc(&["filter", "show", "dev", UPLINK, direction])?;
        ensure!(!filters.contains("topo_lb"), "{direction}: {filters}");
    }
    let disciplines = node.tc(&["qdisc", "show", "dev", UPLINK])?;
    ensure!(!disciplines.contains("clsact"), "{disciplines}");
    let tables = tables(scene)?;
    ensure!(tables.is_empty(), "{tables}");
    let left: Vec<PathBuf> = maps::ALL_FRONTENDS
        .iter()
        .chain(&["masquerade"])
        .map(|name| scene.agent.pins().join(name))
        .filter(|path| path.exists())
        .collect();
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

/// A device that was a guest's becomes an uplink, and the other way round; then kube-proxy serves
/// clients outside again.
fn roles_change(scene: &mut Scene<'_>) -> Result<()> {
    scene.agent.resume()?;
    // No device of a pod, although these have an address.
    wait_for_roles(scene, &[(UPLINK, "external")])?;
    scene.agent.stop()?;
    // A guest's device is no uplink, whatever its address.
    scene.agent.set("--tc-devices", "eth*");
    scene.agent.resume()?;
    wait_for_roles(scene, &[(UPLINK, "guest")])?;
    scene.agent.kill();
    scene.agent.unset("--tc-devices");
    scene.agent.set("--external-devices", "eth*,nothing0");
    scene.agent.resume()?;
    wait_for_roles(scene, &[(UPLINK, "external")])?;
    let mut client = scene.cluster.guest("outside", scene.cluster.fabric())?;
    wait_at_each(&mut client, &ALL)?;
    scene.agent.kill();
    scene.agent.unset("--kube-proxy-replacement");
    scene.agent.set("--frontends", "all");
    scene.agent.resume()?;
    wait_for_roles(scene, &[])?;
    ensure!(tables(scene)?.is_empty(), "{}", tables(scene)?);
    scene.agent.stop()?;
    scene.agent.unset("--frontends");
    scene.agent.resume()?;
    expect_nothing_left(scene)?;
    scene.expect(Via::Http, at(WEB4)?, &ALL)
}

#[test]
fn a_device_follows_its_role_and_without_the_flag_nothing_is_left() -> Result<()> {
    idle(roles_change)
}

#[test]
fn a_filter_follows_its_role_too() -> Result<()> {
    idle(|scene| {
        scene.agent.set("--tc-attach", "clsact");
        roles_change(scene)
    })
}

#[test]
fn a_cleanup_leaves_no_program_and_no_table() -> Result<()> {
    for mode in ["auto", "clsact"] {
        idle(|scene| {
            scene.agent.set("--tc-attach", mode);
            scene.agent.set("--masquerade", "nftables");
            scene.agent.resume()?;
            wait_for_roles(scene, &[(UPLINK, "external")])?;
            scene.agent.stop()?;
            ensure!(!tables(scene)?.is_empty(), "the table does not outlive the agent");
            let node = scene.cluster.node_netns(HERE)?;
            let output = node.run(|| scene.agent.cleanup())?;
            let said = String::from_utf8_lossy(&output.stdout);
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            ensure!(said.contains("the nftables table inet topo-lb"), "{said}");
            expect_nothing_left(scene)?;
            ensure!(!scene.agent.pins().exists(), "the pin directory is left");
            let devices = node.run(|| scene.agent.list("hooks"));
            ensure!(devices.is_err(), "{devices:?}");
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn a_device_is_an_uplink_while_it_has_an_address_of_the_node() -> Result<()> {
    play(|scene, client| {
        wait_for_roles(scene, &[(UPLINK, "external")])?;
        let ip = |line: &str| scene.cluster.ip_on(HERE, &[line.to_owned()]);
        // A guest's that has an address.
        ip("link add more type veth peer name others")?;
        ip("address add 198.51.100.7/32 dev more")?;
        ip("link add link eth0 name second type macvlan mode bridge")?;
        ip("link set second up")?;
        wait_for_roles(scene, &[(UPLINK, "external")])?;
        ip("address add 198.51.100.9/24 dev second")?;
        wait_for_roles(scene, &[(UPLINK, "external"), ("second", "external")])?;
        ip("address delete 198.51.100.9/24 dev second")?;
        wait_for_roles(scene, &[(UPLINK, "external")])?;
        ip("address add 198.51.100.9/24 dev second")?;
        wait_for_roles(scene, &[(UPLINK, "external"), ("second", "external")])?;
        ip("link delete second")?;
        wait_for_roles(scene, &[(UPLINK, "external")])?;
        let devices = |role: &str| format!("topo_lb_devices{{role=\"{role}\"}}");
        let metrics = scene.agent.get("/metrics")?;
        ensure!(metrics.sample(&devices("external")) == Some(1.0), "{metrics}");
        ensure!(metrics.sample(&devices("guest")) == Some(0.0), "{metrics}");
        wait_at_each(client, &ALL)
    })
}

#[test]
fn uplinks_and_node_ports_follow_the_default_route() -> Result<()> {
    play(|scene, client| {
        scene.set_endpoints("web", &["a"])?;
        let fabric = scene.cluster.fabric();
        let node = scene.cluster.node_netns(HERE)?.path().display();
        fabric.ip(&[
            format!("link add second type veth peer name second netns {node}"),
            "link set second up".to_owned(),
            "address add 198.51.100.254/24 dev second".to_owned(),
        ])?;
        let ip = |line: &str| scene.cluster.ip_on(HERE, &[line.to_owned()]);
        ip("link set second up")?;
        ip("address add 198.51.100.9/24 dev second")?;
        wait_for_roles(scene, &[(UPLINK, "external")])?;
        ip("route replace default via 198.51.100.254 dev second")?;
        // The default route of IPv6 stays.
        wait_for_roles(scene, &[(UPLINK, "external"), ("second", "external")])?;
        client.wait_for(Via::Http, "198.51.100.9:30080".parse()?, &["a"], FOLLOWS)?;
        client.wait_for(Via::Http, "[fd00:172::2]:30080".parse()?, &["a"], FOLLOWS)?;
        ip("route replace default via 172.30.0.254 dev eth0")?;
        wait_for_roles(scene, &[(UPLINK, "external")])
    })
}

#[test]
fn connections_outlive_the_device_by_which_they_came() -> Result<()> {
    play(|scene, client| {
        wait_at_each(client, &ALL)?;
        let ip = |line: &str| scene.cluster.ip_on(HERE, &[line.to_owned()]);
        let second = "02:54:4c:00:00:99";
        ip(&format!("link add link eth0 name second address {second} type macvlan mode bridge"))?;
        ip("link set second up")?;
        ip("address add 198.51.100.9/24 dev second")?;
        wait_for_roles(scene, &[(UPLINK, "external"), ("second", "external")])?;
        let fabric = scene.cluster.fabric();
        fabric.ip(
            &NODE.map(|to| format!("neigh replace {to} lladdr {second} dev br0 nud permanent"))
        )?;
        let mut open = Vec::new();
        for (via, address) in WEB {
            let to = address.parse()?;
            let socket = client.open(via, to)??;
            open.push((socket, to, client.ask(socket, Some(to))??));
        }
        ip("link delete second")?;
        fabric.ip(&NODE.map(|to| format!("neigh delete {to} dev br0")))?;
        for (socket, to, before) in open {
            let now = client.ask(socket, Some(to))??;
            ensure!(now.pod == before.pod, "{to}: {now:?} after {before:?}");
        }
        wait_for_roles(scene, &[(UPLINK, "external")])?;
        scene.agent.wait_for_answer("/readyz", FOLLOWS, |answer| answer.status == 200)?;
        wait_at_each(client, &ALL)
    })
}

#[test]
fn a_change_of_routes_is_heard_where_devices_are_followed() -> Result<()> {
    let names = [Prefix::new().name("routes")];
    // With the loopback alone, nothing else changes there.
    let netns = NetNs::make(&names)?.pop().context("a namespace")?;
    netns.ip(&["link set lo up".to_owned()])?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    netns.run(|| {
        runtime.block_on(async {
            let mut changes = Changes::listen()?;
            for line in ["-4 route add default dev lo", "-6 route add default dev lo"] {
                printed(Command::new("ip").args(line.split(' ')))?;
                timeout(patient(FOLLOWS), changes.changed()).await.context("not heard")??;
            }
            Ok(())
        })
    })
}

#[test]
fn an_agent_without_an_uplink_says_so() -> Result<()> {
    idle(|scene| {
        scene.agent.set("--external-devices", "nothing0");
        scene.agent.resume()?;
        scene.agent.wait_for_log(
            "clients outside of this node are not served, as no Ethernet device matches",
            FOLLOWS,
        )?;
        wait_for_roles(scene, &[])
    })
}

/// Pins a program that passes every packet on, under the lab's name for it.
fn pinned(scene: &Scene<'_>, kind: bpf_prog_type, result: i32) -> Result<PathBuf> {
    let code = [instruction(0xb7, 0, 0, 0, result), instruction(0x95, 0, 0, 0, 0)];
    let program = load(kind, "passer", &code, 0)?;
    let place = Path::new(BPFFS).join(scene.cluster.prefix().name("passer"));
    pin(program.as_fd(), &place).context("cannot pin the program")?;
    Ok(place)
}

/// Waits until the agent is not ready because of this.
fn wait_for_complaint(scene: &Scene<'_>, sentence: &str) -> Result<()> {
    let complains = |answer: &Answer| answer.status == 503 && answer.body.contains(sentence);
    scene.agent.wait_for_answer("/readyz", FOLLOWS, complains).map(drop)
}

#[test]
fn programs_in_front_of_the_uplinks_are_told_unless_they_are_tolerated() -> Result<()> {
    play(|scene, client| {
        // A device has a place for one program of XDP.
        scene.agent.stop()?;
        scene.agent.set("--xdp", "off");
        scene.agent.resume()?;
        let is_ready = |answer: &Answer| answer.status == 200;
        scene.agent.wait_for_answer("/readyz", FOLLOWS, is_ready)?;
        // XDP_PASS.
        let xdp = pinned(scene, BPF_PROG_TYPE_XDP, 2)?;
        let ip = |line: String| scene.cluster.ip_on(HERE, &[line]);
        ip(format!("link set dev {UPLINK} xdpgeneric pinned {}", xdp.display()))?;
        fs::remove_file(&xdp)?;
        wait_for_complaint(scene, "(passer) at XDP of eth0 runs before topo-lb's")?;
        let metrics = scene.agent.get("/metrics")?;
        ensure!(metrics.sample("topo_lb_programs_in_front") == Some(1.0), "{metrics}");
        wait_at_each(client, &ALL)?;
        ip(format!("link set dev {UPLINK} xdpgeneric off"))?;
        // The agent takes it for over when it has seen none for five seconds.
        scene.agent.wait_for_answer("/readyz", FOLLOWS * 2, is_ready)?;

        if kernel() >= (6, 6) {
            // TCX_NEXT.
            let place = pinned(scene, BPF_PROG_TYPE_SCHED_CLS, -1)?;
            let mut program = SchedClassifier::from_pin(&place)?;
            fs::remove_file(&place)?;
            let node = scene.cluster.node_netns(HERE)?;
            let link = node.run(|| {
                let order = TcAttachOptions::TcxOrder(LinkOrder::first());
                let id = program.attach_with_options(UPLINK, TcAttachType::Ingress, order)?;
                Ok(program.take_link(id)?)
            })?;
            wait_for_complaint(scene, "(passer) runs before topo-lb's at tc ingress of eth0")?;
            let mut check = scene.binary.command(&["check", "--pin-dir"]);
            check.arg(scene.agent.pins()).arg("--cgroup-root");
            check.arg(scene.cluster.node(HERE)?.cgroup_path());
            let check = node.run(|| Ok(check.output()?))?;
            let said = String::from_utf8_lossy(&check.stdout);
            ensure!(said.contains("runs before topo-lb's at tc ingress of eth0"), "{said}");
            scene.agent.stop()?;
            scene.agent.set("--tolerate-programs", "pass*");
            scene.agent.resume()?;
            scene.agent.wait_for_answer("/readyz", FOLLOWS, is_ready)?;
            drop(link);
        }
        Ok(())
    })
}
