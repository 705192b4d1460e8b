//! Open vSwitch: pods behind a switch in user space, which needs no module of the kernel.

use std::rc::Rc;

use anyhow::{Context as _, Result, ensure};
use topo_lb_tests::card::far_end;
use topo_lb_tests::netns::NetNs;
use topo_lb_tests::room::Room;
use topo_lb_tests::town::{Place, visit_wired};
use topo_lb_tests::wait::{PATIENCE, until};

/// The switch, and the database that it is set up by.
const DATABASE: &[&str] = &[
    "/usr/sbin/ovsdb-server",
    "--remote=punix:/run/openvswitch/db.sock",
    "/run/openvswitch/conf.db",
];
const SWITCH: &[&str] =
    &["/usr/lib/openvswitch-switch/ovs-vswitchd", "--pidfile", "unix:/run/openvswitch/db.sock"];

/// Starts it on a node, with a bridge that has the pods' gateway. It ends with the lab.
fn start(room: &Rc<Room<'_>>, number: u8) -> Result<()> {
    room.run("mkdir -p /run/openvswitch; ovsdb-tool create /run/openvswitch/conf.db")?;
    room.detach("ovsdb", DATABASE)?;
    until("its database", PATIENCE, || {
        let begun = room.run("ovs-vsctl --no-wait init");
        Ok(begun.map(drop).map_err(|error| format!("{error:#}")))
    })?;
    room.detach("ovs", SWITCH)?;
    let lines = format!(
        "ovs-vsctl --timeout=20 add-br pods -- set bridge pods datapath_type=netdev
        ip address add 10.244.{number}.1/24 dev pods
        ip link set pods up"
    );
    room.run(&lines).map(drop).with_context(|| room.said("ovs"))
}

/// Connects a pod to the switch of its node, which is there once it has a pod.
fn wire(room: &Rc<Room<'_>>, netns: &NetNs, place: Place<'_>) -> Result<std::net::Ipv4Addr> {
    let Place { pod, number, host } = place;
    if room.run("test -e /run/openvswitch/db.sock").is_err() {
        start(room, number)?;
    }
    let (address, namespace) = (format!("10.244.{number}.{host}"), netns.path().display());
    room.netns()?.ip(&[format!("link add {pod} up type veth peer name eth0 netns {namespace}")])?;
    netns.ip(&[
        "link set eth0 up".to_owned(),
        format!("address add {address}/24 dev eth0"),
        format!("route add default via 10.244.{number}.1"),
    ])?;
    // The switch takes whole packets from its sockets: it does not know which have their checksum still to come.
    drop(far_end(netns, "eth0")?);
    room.run(&format!("ovs-vsctl --timeout=20 add-port pods {pod}"))?;
    Ok(address.parse()?)
}

/// Pods of one node talk by the switch, and it counts them.
#[test]
fn open_vswitch() -> Result<()> {
    visit_wired(wire, |town| {
        town.has(
            |_| Ok(()),
            |town| {
                let said = town.rooms[0].run("ovs-appctl dpif/show")?;
                ensure!(said.contains("netdev@ovs-netdev") && said.contains("near"), "{said}");
                Ok(())
            },
        )
    })
}
