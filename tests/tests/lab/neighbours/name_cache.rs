//! A cache of names on each node, as NodeLocal DNSCache is one: it has the cluster DNS's ClusterIP, and asks the cluster DNS
//! by another one.

use std::cell::Cell;
use std::net::SocketAddr;

use anyhow::Result;
use topo_lb_tests::manifest::{endpoint, service, slice};
use topo_lb_tests::scene::FOLLOWS;
use topo_lb_tests::town::{EAST, Town, WEB4, visit};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::wait::until;

/// The ClusterIP of the cluster DNS, the one by which caches ask it, and the address of a node's cache.
const DNS: &str = "10.96.0.10";
const UPSTREAM: &str = "10.96.0.11";
const LOCAL: &str = "169.254.20.10";

/// What both servers have.
const UNBOUND: &str = "
    username: \"\"
    chroot: \"\"
    directory: /run
    pidfile: \"\"
    do-daemonize: no
    use-syslog: no
    module-config: iterator
    access-control: 0.0.0.0/0 allow
";

/// A query for the address of `web` (RFC 1035, 4.1).
fn query() -> Vec<u8> {
    let mut query = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in ["web", "default", "svc", "cluster", "local"] {
        query.push(label.len() as u8);
        query.extend(label.bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    query
}

/// Asks for the address of `web`, and waits until the answer has it.
fn ask(town: &mut Town<'_>, at: &str) -> Result<()> {
    let to = SocketAddr::new(at.parse()?, 53);
    let address: std::net::Ipv4Addr = WEB4.parse()?;
    for via in [Via::Udp, Via::UdpConnected] {
        until(&format!("an answer of {at}"), FOLLOWS, || {
            let socket = town.client.open(via, to)??;
            let answer = town.client.exchange(socket, to, &query())?;
            let is_right = answer.as_ref().is_ok_and(|it| it.ends_with(&address.octets()));
            Ok(if is_right { Ok(()) } else { Err(format!("{answer:?}")) })
        })?;
    }
    Ok(())
}

#[test]
fn unbound() -> Result<()> {
    visit(|town| {
        let far = town.objects.address("far")?;
        for (name, address) in [("dns", DNS), ("dns-upstream", UPSTREAM)] {
            let ports = [("dns", 53, "UDP")];
            town.objects.manifests.put(service(name, &[address], &ports, &[]));
            let endpoints = [endpoint(&far.to_string(), EAST, "far")];
            town.objects.manifests.put(slice(name, "IPv4", &ports, &endpoints));
        }
        town.objects.manifests.write()?;
        let rooms = town.rooms.clone();
        let (west, east) = (&rooms[0], &rooms[1]);
        east.write(
            "/etc/unbound/lab.conf",
            &format!(
                "server:{UNBOUND}\n    interface: 0.0.0.0\n    local-zone: cluster.local. static\n    \
                 local-data: \"web.default.svc.cluster.local. 300 IN A {WEB4}\"\n"
            ),
        )?;
        west.write(
            "/etc/unbound/lab.conf",
            &format!(
                "server:{UNBOUND}\n    interface: {LOCAL}\n    interface: {DNS}\nforward-zone:\n    \
                 name: cluster.local.\n    forward-addr: {UPSTREAM}\n"
            ),
        )?;
        let words = ["/usr/sbin/unbound", "-d", "-c", "/etc/unbound/lab.conf"];
        let cluster_dns = Cell::new(None);
        town.has(
            |town| {
                cluster_dns.set(Some(east.start_in_pod("unbound", &words, town.pod("far")?)?));
                let device = west.begin(
                    &format!(
                        "ip link add nodelocaldns type bridge
                        ip address add {LOCAL}/32 dev nodelocaldns
                        ip address add {DNS}/32 dev nodelocaldns
                        ip link set nodelocaldns up"
                    ),
                    "ip link delete nodelocaldns",
                )?;
                Ok((west.start_on_node("unbound", &words)?, device))
            },
            |town| {
                ask(town, LOCAL)?;
                // The cache has the answer, and nobody else.
                drop(cluster_dns.take());
                ask(town, DNS)
            },
        )
    })
}
