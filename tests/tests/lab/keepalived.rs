//! A load balancer IP that keepalived moves from one node to another, under open connections.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use topo_lb_tests::client::Client;
use topo_lb_tests::direct_return::{Returns, ask, play};
use topo_lb_tests::outside::BALANCER;
use topo_lb_tests::process::printed;
use topo_lb_tests::scene::{ALL, FOLLOWS, HERE, Scene};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::vrrp::keep;
use topo_lb_tests::wait::{patient, until};

/// Connections that are open when the address moves.
const OPEN: usize = 80;
/// How long a connection has for an answer.
const ANSWERS: Duration = Duration::from_secs(2);

/// A connection, and the pod that answers.
type Open = (TcpStream, String);

/// Opens connections from outside to the load balancer IP.
fn open(scene: &Scene<'_>) -> Result<Vec<Open>> {
    let to = SocketAddr::new(BALANCER[0].parse()?, 80);
    let dial = || {
        let stream = TcpStream::connect_timeout(&to, patient(ANSWERS))?;
        let pod = ask(&stream, ANSWERS)?;
        Ok((stream, pod))
    };
    (0..OPEN).map(|_| scene.cluster.fabric().run(dial)).collect()
}

/// Asks over all at once. Returns of each pod how many go on there, and of how many.
fn going_on(all: &[Open]) -> BTreeMap<&str, (usize, usize)> {
    let goes_on = |(stream, pod): &Open| ask(stream, ANSWERS).is_ok_and(|answer| answer == *pod);
    let results: Vec<_> = thread::scope(|scope| {
        let asking: Vec<_> = all.iter().map(|it| scope.spawn(|| goes_on(it))).collect();
        asking.into_iter().map(|it| it.join().expect("no panic")).collect()
    });
    let mut by_pod = BTreeMap::<_, (usize, usize)>::new();
    for ((_, pod), goes_on) in all.iter().zip(results) {
        let (on, of) = by_pod.entry(&**pod).or_default();
        (*on, *of) = (*on + usize::from(goes_on), *of + 1);
    }
    by_pod
}

/// Waits until the fabric's neighbour with the load balancer IP is this node.
fn wait_for_owner(scene: &Scene<'_>, number: u8) -> Result<()> {
    let wanted = format!("02:54:4c:01:{number:02x}:00");
    until(&format!("node {number} with the address"), FOLLOWS * 2, || {
        let fabric = scene.cluster.fabric();
        let mut neighbours = Command::new("ip");
        neighbours.args(["neigh", "show", BALANCER[0]]);
        let said = fabric.run(|| printed(&mut neighbours))?;
        Ok(if said.contains(&wanted) { Ok(()) } else { Err(said) })
    })
    .map(drop)
}

/// Of each pod, how many connections go on after the address has left the first node, and after it is back.
fn moved(
    returns: Returns,
    check: impl FnOnce([BTreeMap<&str, (usize, usize)>; 2]) -> Result<()>,
) -> Result<()> {
    play(returns, |scene, _, mut client| {
        let fabric = scene.cluster.fabric();
        let [four, _] = BALANCER;
        // The address is one of the network, found by ARP.
        fabric.ip(&[format!("route replace {four} dev br0")])?;
        let keepers = keep(scene.cluster, four, &[(HERE, 150), ("beside", 100), ("there", 50)])?;
        wait_for(scene, &mut client, 1)?;
        let all = open(scene)?;
        fabric.ip(&["link set node1 down".to_owned()])?;
        wait_for_owner(scene, 2)?;
        let away = going_on(&all);
        println!("{returns:?}: {away:?} go on at the next node");
        fabric.ip(&["link set node1 up".to_owned()])?;
        wait_for_owner(scene, 1)?;
        let back = going_on(&all);
        println!("{returns:?}: {back:?} go on at the first node again");
        check([away, back])?;
        // Nobody has forgotten anything: new ones are answered by all.
        wait_for(scene, &mut client, 1)?;
        drop(keepers);
        Ok(())
    })
}

/// Waits until a node has the address, and all endpoints answer there.
fn wait_for(scene: &Scene<'_>, client: &mut Client, number: u8) -> Result<()> {
    client.wait_for(Via::Http, SocketAddr::new(BALANCER[0].parse()?, 80), &ALL, FOLLOWS * 2)?;
    wait_for_owner(scene, number)
}

#[test]
fn an_address_that_moves_takes_no_connection_of_other_nodes_along() -> Result<()> {
    moved(Returns::Directly, |moments| {
        for by_pod in moments {
            for pod in &ALL[1..] {
                let (on, of) = by_pod.get(pod).copied().context("a pod without connections")?;
                ensure!(on == of && of > 0, "{pod}: {on} of {of} go on; {by_pod:?}");
            }
        }
        Ok(())
    })
}

#[test]
fn without_direct_return_an_address_that_moves_ends_all_connections() -> Result<()> {
    moved(Returns::BySource, |[away, _]| {
        for (pod, (on, of)) in away {
            ensure!(on == 0 && of > 0, "{pod}: {on} of {of} go on");
        }
        Ok(())
    })
}
