//! The lab itself without an agent, as the basis of the other suites.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use topo_lb_tests::cluster::Cluster;
use topo_lb_tests::lab::within;
use topo_lb_tests::node::NodePlan;
use topo_lb_tests::traffic::Via;
use topo_lb_tests::wait::{PATIENCE, until};
use topo_lb_tests::{prefix, residue};

fn plan() -> Vec<NodePlan<'static>> {
    vec![
        NodePlan { name: "one", number: 1, pods: vec![("client", 2), ("near", 3)] },
        NodePlan { name: "two", number: 2, pods: vec![("far", 2)] },
    ]
}

#[test]
fn pods_reach_pods_on_their_node_and_on_others_by_both_families() -> Result<()> {
    within(&plan(), |cluster| {
        let mut client = cluster.pod("client")?.client()?;
        let mut servers = Vec::new();
        for name in ["near", "far"] {
            servers.push(cluster.pod(name)?.serve()?);
        }
        for name in ["near", "far"] {
            let pod = cluster.pod(name)?;
            for address in [pod.address4(), pod.address6()] {
                for via in [Via::Http, Via::HttpMptcp, Via::Udp, Via::UdpConnected] {
                    let tally = client.call(via, address, 20)?;
                    ensure!(tally.replies.get(name) == Some(&20), "{via:?} {address}: {tally}");
                    ensure!(tally.peers == BTreeSet::from([address]), "{:?}", tally.peers);
                }
            }
        }
        Ok(())
    })
}

#[test]
fn other_sockets_ports_and_addresses_behave_as_on_any_network() -> Result<()> {
    within(&plan(), |cluster| {
        let mut client = cluster.pod("client")?.client()?;
        let far = cluster.pod("far")?;
        let tally = client.call(Via::Http, far.address4(), 5)?;
        ensure!(tally.refused == 5, "a port without a server: {tally}");

        let server = far.serve()?;
        let mapped = SocketAddr::from((far.ipv4.to_ipv6_mapped(), far.address4().port()));
        // Untranslated connections reach the fabric.
        let services = ["10.96.0.1:443".parse()?, "[fd00:96::1]:443".parse()?];
        let _untouched = cluster.serve_untouched(&services)?;
        let [four, six] = services;
        for (address, name) in [(mapped, "far"), (four, "untouched"), (six, "untouched")] {
            for via in [Via::Http, Via::Udp, Via::UdpConnected] {
                let tally = client.call(via, address, 5)?;
                ensure!(tally.replies.get(name) == Some(&5), "{via:?} {address}: {tally}");
                ensure!(tally.peers == BTreeSet::from([address]), "{:?}", tally.peers);
            }
        }

        // An open connection lasts until its server is gone.
        let socket = client.open(Via::Http, far.address4())??;
        for _ in 0..3 {
            let reply = client.ask(socket, None)??;
            ensure!(reply.pod == "far" && reply.peer == far.address4(), "{reply:?}");
        }
        drop(server);
        ensure!(client.ask(socket, None)?.is_err(), "an answer from a server that is gone");
        Ok(())
    })
}

#[test]
fn processes_are_in_the_cgroup_of_their_pod() -> Result<()> {
    within(&plan(), |cluster| {
        let mut command = Command::new("cat");
        command.arg("/proc/self/cgroup");
        let pod = cluster.pod("client")?;
        let mut process = pod.spawn(command)?;
        let output = process.child().stdout.take().context("a pipe")?;
        let said = std::io::read_to_string(output)?;
        let wanted = format!("0::/{}/client", cluster.prefix().name("one"));
        ensure!(said.lines().any(|line| line == wanted), "{said}");
        Ok(())
    })
}

#[test]
fn the_machines_own_network_is_not_touched() -> Result<()> {
    let devices = || -> Result<BTreeSet<PathBuf>> {
        Ok(fs::read_dir("/sys/class/net")?.flatten().map(|entry| entry.path()).collect())
    };
    let parameters =
        || fs::read_to_string("/proc/sys/net/ipv4/ip_forward").context("cannot read a parameter");
    let before = (devices()?, parameters()?);
    within(&plan(), |_| {
        ensure!((devices()?, parameters()?) == before, "{:?} before, {:?} now", before, devices());
        Ok(())
    })
}

/// Not a test: the test below runs this in a process of its own, and kills it.
#[test]
#[ignore = "holds a lab until it is killed"]
fn hold() -> Result<()> {
    let cluster = Cluster::make(&plan())?;
    let _server = cluster.pod("far")?.serve()?;
    println!("held");
    std::thread::sleep(PATIENCE * 6);
    Ok(())
}

/// A process that holds a lab with a server in a pod.
fn held_lab() -> Result<std::process::Child> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["self_test::hold", "--exact", "--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut output = std::io::BufReader::new(child.stdout.take().context("a pipe")?);
    let mut line = String::new();
    while !line.contains("held") {
        line.clear();
        let length = std::io::BufRead::read_line(&mut output, &mut line)?;
        ensure!(length > 0, "the process that should hold a lab has ended");
    }
    Ok(child)
}

#[test]
fn what_a_killed_lab_leaves_is_swept_by_the_next() -> Result<()> {
    let mut child = held_lab()?;
    let pid = child.id();
    let ours = |name: &str| prefix::owner(name) == Some(pid);
    child.kill()?;
    ensure!(child.wait()?.signal() == Some(9));
    within(&plan(), |_| {
        // The lab of another test may be sweeping too.
        until("the end of the killed lab", PATIENCE, || {
            let left = residue::find(ours)?;
            Ok(if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) })
        })?;
        Ok(())
    })
}
