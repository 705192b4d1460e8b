//! Networks over the nodes' network that the kernel makes alone: tunnels, and IPsec. This machine's kernel may lack some of
//! them; Debian's have them.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use topo_lb_tests::netns::NetNs;
use topo_lb_tests::requirements::{has_device, not_checked};
use topo_lb_tests::town::{EAST, Town, WEST, visit_without_rooms};

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
/// if it takes that, too.
fn tunnel(kind: &str, has_ipv6: bool, options: impl Fn(u8, u8) -> String) -> Result<()> {
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
            |town| begin(town, &lines),
            |town| {
                let sent = sent(town, "overlay")?;
                ensure!(sent > 0, "nothing is in the tunnel");
                Ok(())
            },
        )
    })
}

#[test]
fn pods_behind_vxlan_are_served() -> Result<()> {
    tunnel("vxlan", true, |own, other| {
        format!("id 1 local 172.30.0.{own} remote 172.30.0.{other} dstport 8472")
    })
}

#[test]
fn pods_behind_geneve_are_served() -> Result<()> {
    tunnel("geneve", true, |_, other| format!("id 1 remote 172.30.0.{other}"))
}

/// It has IPv4 inside; pods' IPv6 goes as without it.
#[test]
fn pods_behind_ipip_are_served() -> Result<()> {
    tunnel("ipip", false, |own, other| format!("local 172.30.0.{own} remote 172.30.0.{other}"))
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
