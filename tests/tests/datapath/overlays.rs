//! Networks of pods that the kernel makes alone: tunnels and encryption between nodes, and devices on top of the uplink.
//! This machine's kernel may lack some of them; Debian's have them.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use topo_lb_tests::netns::NetNs;
use topo_lb_tests::requirements::{has_device, not_checked};
use topo_lb_tests::town::{
    Doors, EAST, Place, Town, WEST, visit_wired_without_rooms, visit_without_rooms,
};
use topo_lb_tests::wireguard::{self, KEYS, PORT, Peer};

/// Lines of `ip` on both nodes; others run when it is dropped.
struct Lines<'a> {
    nodes: [(&'a NetNs, Vec<String>); 2],
}

impl Drop for Lines<'_> {
    fn drop(&mut self) {
        for (netns, lines) in &self.nodes {
            if let Err(error) = netns.ip(lines) {
                eprintln!("{error:#}");
            }
        }
    }
}

/// Lines of `ip` for a node's number and that of the other one: those that begin, and those that end.
type Both<'a> = &'a dyn Fn(u8, u8) -> [Vec<String>; 2];

fn begin<'a>(town: &Town<'a>, lines: Both<'_>) -> Result<Lines<'a>> {
    let node = |name, own, other| {
        let netns = town.cluster.node_netns(name)?;
        let [begin, end] = lines(own, other);
        netns.ip(&begin)?;
        Ok::<_, anyhow::Error>((netns, end))
    };
    Ok(Lines { nodes: [node(WEST, 1, 2)?, node(EAST, 2, 1)?] })
}

/// How many packets a device of west has sent.
fn sent(town: &Town<'_>, device: &str) -> Result<u64> {
    let read = || Ok(fs::read_to_string("/proc/thread-self/net/dev")?);
    let text = town.cluster.node_netns(WEST)?.run(read)?;
    let line = text.lines().find_map(|line| line.trim().strip_prefix(device)?.strip_prefix(':'));
    // Eight figures of what it received; then bytes and packets that it sent.
    let packets = line.and_then(|it| it.split_whitespace().nth(9)?.parse().ok());
    packets.with_context(|| format!("no {device} in {text}"))
}

/// Routes to the other node's pods.
fn routes(other: u8, by: &str) -> [String; 2] {
    [
        format!("route replace 10.244.{other}.0/24 via 10.244.{other}.0 {by} onlink"),
        format!("route replace fd00:244:{other}::/64 via fe80::{other} {by}"),
    ]
}

fn plain(other: u8) -> [String; 2] {
    let host = other + 1;
    [
        format!("route replace 10.244.{other}.0/24 via 172.30.0.{host}"),
        format!("route replace fd00:244:{other}::/64 via fd00:172::{host}"),
    ]
}

/// A tunnel of this kind, with options that are made of the last bytes of the nodes' addresses, for IPv4, and for IPv6
/// if it takes that, too. `set` does what `ip` cannot, in a node's namespace, by its number and that of the other one.
fn tunnel(
    kind: &str,
    has_ipv6: bool,
    options: impl Fn(u8, u8) -> String,
    set: impl Fn(&NetNs, u8, u8) -> Result<()>,
) -> Result<()> {
    if !has_device(kind, "", &format!("pods behind {kind}"))? {
        return Ok(());
    }
    let families = if has_ipv6 { 2 } else { 1 };
    let lines = |own: u8, other: u8| {
        let mut begin = vec![
            format!("link add overlay type {kind} {}", options(own + 1, other + 1)),
            format!("address add 10.244.{own}.0/32 dev overlay"),
            "link set overlay up".to_owned(),
        ];
        if has_ipv6 {
            begin.push(format!("address add fe80::{own}/64 dev overlay nodad"));
            begin.push(format!("address add fd00:244:{own}::1/128 dev overlay nodad"));
        }
        begin.extend(routes(other, "dev overlay").into_iter().take(families));
        let mut end = vec!["link delete overlay".to_owned()];
        end.extend(plain(other).into_iter().take(families));
        [begin, end]
    };
    visit_without_rooms(|town| {
        town.add_agent(EAST)?;
        town.has(
            |town| {
                let lines = begin(town, &lines)?;
                set(town.cluster.node_netns(WEST)?, 1, 2)?;
                set(town.cluster.node_netns(EAST)?, 2, 1)?;
                Ok(lines)
            },
            |town| {
                let sent = sent(town, "overlay")?;
                ensure!(sent > 0, "nothing is in the tunnel");
                Ok(())
            },
        )
    })
}

#[expect(clippy::unnecessary_wraps, reason = "the type of what a tunnel takes")]
fn nothing_more(_: &NetNs, _: u8, _: u8) -> Result<()> {
    Ok(())
}

#[test]
fn pods_behind_vxlan_are_served() -> Result<()> {
    tunnel(
        "vxlan",
        true,
        |own, other| format!("id 1 local 172.30.0.{own} remote 172.30.0.{other} dstport 8472"),
        nothing_more,
    )
}

#[test]
fn pods_behind_geneve_are_served() -> Result<()> {
    tunnel("geneve", true, |_, other| format!("id 1 remote 172.30.0.{other}"), nothing_more)
}

/// It has IPv4 inside; pods' IPv6 goes as without it.
#[test]
fn pods_behind_ipip_are_served() -> Result<()> {
    tunnel(
        "ipip",
        false,
        |own, other| format!("local 172.30.0.{own} remote 172.30.0.{other}"),
        nothing_more,
    )
}

fn key(text: &str) -> Result<[u8; 32]> {
    let bytes = BASE64_STANDARD.decode(text)?;
    bytes.try_into().ok().context("a key has 32 bytes")
}

#[test]
fn pods_behind_wireguard_of_the_kernel_are_served() -> Result<()> {
    if !has_device("wireguard", "", "pods behind WireGuard of the kernel")? {
        return Ok(());
    }
    tunnel(
        "wireguard",
        true,
        |_, _| String::new(),
        |netns, own, other| {
            let networks = [
                (format!("10.244.{other}.0").parse()?, 24),
                (format!("fd00:244:{other}::").parse()?, 64),
            ];
            let [own_key, other_key] = [&KEYS[usize::from(own) - 1], &KEYS[usize::from(other) - 1]];
            let peer = Peer {
                key: key(other_key[1])?,
                endpoint: SocketAddr::from(([172, 30, 0, other + 1], PORT)),
                networks: &networks,
            };
            netns.run(|| wireguard::set(c"overlay", &key(own_key[0])?, peer))
        },
    )
}

/// Policies and keys are put by hand, where a daemon would: what is from pods or nodes to pods of the other node, and the
/// answers, is encrypted.
#[test]
fn pods_behind_ipsec_of_the_kernel_are_served() -> Result<()> {
    let lines = |own: u8, other: u8| {
        let mut begin = Vec::new();
        for (from, to) in [(own, other), (other, own)] {
            let ends = format!("src 172.30.0.{} dst 172.30.0.{}", from + 1, to + 1);
            let keys = "enc cbc(aes) 0x000102030405060708090a0b0c0d0e0f \
                        auth hmac(sha256) 0x000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
            begin.push(format!(
                "xfrm state add {ends} proto esp spi 0x10{from} reqid 1 mode tunnel sel src 0.0.0.0/0 dst 0.0.0.0/0 {keys}"
            ));
            let directions: &[&str] = if from == own { &["out"] } else { &["in", "fwd"] };
            let pods = |node| format!("10.244.{node}.0/24");
            let node = |node| format!("172.30.0.{}/32", node + 1);
            for (source, destination) in
                [(pods(from), pods(to)), (node(from), pods(to)), (pods(from), node(to))]
            {
                for direction in directions {
                    begin.push(format!(
                        "xfrm policy add src {source} dst {destination} dir {direction} \
                         tmpl {ends} proto esp reqid 1 mode tunnel"
                    ));
                }
            }
        }
        [begin, vec!["xfrm policy flush".to_owned(), "xfrm state flush".to_owned()]]
    };
    visit_without_rooms(|town| {
        town.add_agent(EAST)?;
        if let Err(error) = begin(town, &lines) {
            let said = format!("{error:#}");
            ensure!(said.contains("Requested type not found"), "{said}");
            town.cluster.ip_on(WEST, &["xfrm policy flush".to_owned()])?;
            not_checked("IPsec of the kernel, as it has no ESP");
            return Ok(());
        }
        town.has(
            |town| begin(town, &lines),
            // What is not encrypted, the other node's policies drop.
            |_| Ok(()),
        )
    })
}

/// Pods whose devices are of the uplink, as by the CNI plugin `ipvlan`. A host does not reach its own pods by them: clients
/// outside dial a Service whose endpoint is on another node.
///
/// `address`: of a pod, whose network has `bits`. `route`: the pod's, to all others.
fn ipvlan(
    mode: &str,
    address: impl Fn(Place<'_>) -> Ipv4Addr,
    bits: u8,
    route: &str,
) -> Result<()> {
    if !has_device("ipvlan", "link lo", &format!("pods behind ipvlan, mode {mode}"))? {
        return Ok(());
    }
    visit_wired_without_rooms(
        |node, pod, place| {
            let device = format!("ipvl-{}", place.pod);
            let name = pod.path().file_name().and_then(|it| it.to_str()).context("a name")?;
            node.ip(&[
                format!("link add link eth0 name {device} type ipvlan mode {mode}"),
                format!("link set {device} netns {name}"),
            ])?;
            let address = address(place);
            pod.ip(&[
                format!("link set {device} name eth0"),
                format!("address add {address}/{bits} dev eth0"),
                "link set eth0 up".to_owned(),
                format!("route add default {route}"),
            ])?;
            Ok(address)
        },
        |town| {
            town.doors = Doors::All;
            town.has(|_| Ok(()), |_| Ok(()))
        },
    )
}

/// Pods are in the nodes' Ethernet network.
#[test]
fn pods_behind_ipvlan_of_mode_l2_are_served() -> Result<()> {
    let address =
        |place: Place<'_>| Ipv4Addr::new(172, 30, 0, 100 + 10 * place.number + place.host);
    ipvlan("l2", address, 24, "via 172.30.0.254")
}

/// The node's routes lead to the other node's pods.
#[test]
fn pods_behind_ipvlan_of_mode_l3_are_served() -> Result<()> {
    let address = |place: Place<'_>| Ipv4Addr::new(10, 244, place.number, place.host);
    ipvlan("l3", address, 24, "dev eth0")
}
