//! An external IP that goes from one Service to another under load.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use topo_lb_tests::client::Client;
use topo_lb_tests::manifest::service;
use topo_lb_tests::scene::{FOLLOWS, Scene, put_endpoints};
use topo_lb_tests::traffic::Via;

use super::dialling::{
    ask, client4, client6, close, dial, expect_no_more_than_dropped, own_networks, sent_again,
};
use super::scene::{NODE, idle};

/// The address in each family, to which clients come by the agent's node.
const ADDRESSES: [&str; 2] = ["203.0.113.77", "2001:db8:113::77"];
/// Both Services, and the pods of each.
const SERVICES: [(&str, [&str; 2], [&str; 2]); 2] = [
    ("one", ["10.96.1.71", "fd00:96::171"], ["a", "b"]),
    ("two", ["10.96.1.72", "fd00:96::172"], ["c", "d"]),
];
/// How often the address goes to the other one.
const FLIPS: usize = 20;

/// Sets whether a Service claims the address.
fn claim(scene: &mut Scene<'_>, name: &str, is_claimed: bool) -> Result<()> {
    let service = scene.manifests.get("Service", name)?;
    let addresses: &[&str] = if is_claimed { &ADDRESSES } else { &[] };
    service["spec"]["externalIPs"] = addresses.into();
    Ok(())
}

/// Waits until the owner alone answers, and checks that it stays so.
fn wait_for_owner(client: &mut Client, owner: usize) -> Result<()> {
    let (_, _, pods) = SERVICES[owner];
    for address in ADDRESSES {
        let to = SocketAddr::new(address.parse()?, 80);
        client.wait_for(Via::Http, to, &pods, FOLLOWS)?;
        client.expect(Via::Http, to, &pods)?;
    }
    Ok(())
}

/// Dials in series until there is nothing more to do. Each connection is answered. Returns how many these are, and
/// how many SYNs were sent again.
fn dial_until(done: &AtomicBool, place: usize) -> Result<(u64, u64)> {
    let to = SocketAddr::new(ADDRESSES[place].parse()?, 80);
    let from: IpAddr = [client4(1), client6(1, 1)][place];
    let (mut dialled, mut again) = (0, 0);
    while !done.load(Ordering::Relaxed) {
        let stream = dial(from, to).with_context(|| format!("after {dialled} connections"))?;
        again += u64::from(sent_again(&stream)?);
        let pod = ask(&stream)?;
        ensure!(["a", "b", "c", "d"].contains(&&*pod), "{pod} answers");
        close(stream)?;
        dialled += 1;
    }
    Ok((dialled, again))
}

#[test]
fn an_external_ip_that_changes_its_service_is_always_of_one_of_the_two() -> Result<()> {
    idle(|scene| {
        for (name, addresses, pods) in SERVICES {
            let service =
                service(name, &addresses, &[("http", 80, "TCP"), ("udp", 80, "UDP")], &[]);
            scene.manifests.put(service);
            put_endpoints(&mut scene.manifests, scene.cluster, name, &pods)?;
        }
        claim(scene, "one", true)?;
        scene.manifests.write()?;
        scene.agent.set("--external-ip-ranges", "203.0.113.0/24,2001:db8:113::/64");
        scene.agent.resume()?;
        own_networks(scene)?;
        let fabric = scene.cluster.fabric();
        let [four, six] = ADDRESSES;
        fabric.ip(&[
            format!("route add {four} via {}", NODE[0]),
            format!("route add {six} via {}", NODE[1]),
        ])?;
        let mut client = scene.cluster.guest("outside", fabric)?;
        wait_for_owner(&mut client, 0)?;
        let (done, dropped) = (AtomicBool::new(false), scene.cluster.dropped_in_queues()?);
        let dialled = thread::scope(|scope| {
            let dialling = [0, 1].map(|place| {
                scope.spawn({
                    let done = &done;
                    move || fabric.run(|| dial_until(done, place))
                })
            });
            let mut flip = || {
                for number in 0..FLIPS {
                    let owner = (number + 1) % 2;
                    claim(scene, SERVICES[owner].0, true)?;
                    // At times both claim it for a while, at times the agent sees both changes together.
                    if number % 4 < 2 {
                        scene.manifests.write()?;
                    }
                    claim(scene, SERVICES[1 - owner].0, false)?;
                    scene.manifests.write()?;
                    wait_for_owner(&mut client, owner)?;
                }
                Ok(())
            };
            let flipped: Result<()> = flip();
            done.store(true, Ordering::Relaxed);
            let dialled = dialling.map(|one| one.join().expect("no panic"));
            flipped?;
            dialled.into_iter().collect::<Result<Vec<_>>>()
        })?;
        println!("connections, and SYNs sent again: {dialled:?}; {FLIPS} flips");
        for (dialled, again) in dialled {
            ensure!(dialled > 100, "{dialled} connections are too few");
            expect_no_more_than_dropped(scene.cluster, again, dropped)?;
        }
        Ok(())
    })
}
