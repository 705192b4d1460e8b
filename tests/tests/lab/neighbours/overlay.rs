//! Networks over the nodes' network: what goes from pod to pod is inside packets from node to node.
//! Those that the kernel makes alone are in the suite `overlays`, too, which Debian's kernels run.

use std::rc::Rc;

use anyhow::Result;
use topo_lb_tests::requirements::has_device;
use topo_lb_tests::room::{Begun, Room};
use topo_lb_tests::town::{EAST, visit};
use topo_lb_tests::wait::{PATIENCE, until};
use topo_lb_tests::wireguard::KEYS;

/// The two ends of a way between nodes, by their numbers.
#[derive(Clone, Copy)]
struct Ends {
    own: u8,
    other: u8,
}

impl Ends {
    fn of(room: &Room<'_>) -> Self {
        let (own, other) = if room.node() == EAST { (2, 1) } else { (1, 2) };
        Self { own, other }
    }

    /// The last byte of the nodes' addresses.
    fn hosts(self) -> (u8, u8) {
        (self.own + 1, self.other + 1)
    }

    /// Lines that give the device `overlay` addresses, and the other node's pods routes by it.
    fn set_up(self) -> String {
        let Self { own, other } = self;
        format!(
            "
            ip address add 10.244.{own}.0/32 dev overlay
            ip address add fe80::{own}/64 dev overlay nodad
            ip address add fd00:244:{own}::1/128 dev overlay nodad
            ip link set overlay up
            ip route replace 10.244.{other}.0/24 via 10.244.{other}.0 dev overlay onlink
            ip -6 route replace fd00:244:{other}::/64 via fe80::{other} dev overlay
            "
        )
    }

    /// Lines that give them routes without an overlay.
    fn plain(self) -> String {
        let (_, host) = self.hosts();
        let other = self.other;
        format!(
            "
            ip route replace 10.244.{other}.0/24 via 172.30.0.{host}
            ip -6 route replace fd00:244:{other}::/64 via fd00:172::{host}
            "
        )
    }
}

/// Has a neighbour on both nodes. The cable between them takes only packets that `outer` matches, in the language of
/// nftables: all of pods is inside.
fn between(
    outer: &str,
    begin: impl for<'r> Fn(&Rc<Room<'r>>, Ends) -> Result<Begun<'r>>,
) -> Result<()> {
    visit(|town| {
        town.add_agent(EAST)?;
        town.cluster.fabric().nft(&format!(
            "add table bridge cable; \
             add chain bridge cable forward {{ type filter hook forward priority 0; policy drop; }}; \
             add rule bridge cable forward ether type arp accept; \
             add rule bridge cable forward {outer} accept"
        ))?;
        town.has(
            |town| {
                let both = town.rooms.iter().map(|room| begin(room, Ends::of(room)));
                both.collect::<Result<Vec<_>>>()
            },
            |_| Ok(()),
        )
    })
}

/// As flannel's, but that nodes ask for the addresses of each other's devices.
#[test]
fn vxlan() -> Result<()> {
    between("udp dport 8472", |room, ends| {
        let (own, other) = ends.hosts();
        let begin = format!(
            "ip link add overlay type vxlan id 1 local 172.30.0.{own} remote 172.30.0.{other} dstport 8472
            {}",
            ends.set_up()
        );
        room.begin(&begin, &format!("ip link delete overlay; {}", ends.plain()))
    })
}

/// By WireGuard, which encrypts: by the program `wireguard-go` if the kernel has none.
#[test]
fn wireguard() -> Result<()> {
    let is_in_kernel = has_device("wireguard", "", "WireGuard of the kernel; wireguard-go was")?;
    between("udp dport 51820", |room, ends| {
        let (_, host) = ends.hosts();
        let end = format!("ip link delete overlay 2>/dev/null || true; {}", ends.plain());
        let begun = if is_in_kernel {
            room.begin("ip link add overlay type wireguard", &end)?
        } else {
            room.serve("wireguard", &["/usr/bin/wireguard-go", "-f", "overlay"], &end)?
        };
        until("the device of WireGuard", PATIENCE, || {
            Ok(room.run("wg show overlay").map(drop).map_err(|error| format!("{error:#}")))
        })?;
        let other = ends.other;
        let [[own, _], [_, peer]] = [KEYS[usize::from(ends.own - 1)], KEYS[usize::from(other - 1)]];
        room.run(&format!(
            "echo {own} > /run/key
            wg set overlay listen-port 51820 private-key /run/key peer {peer} \
                endpoint 172.30.0.{host}:51820 allowed-ips 10.244.{other}.0/24,fd00:244:{other}::/64
            {}",
            ends.set_up()
        ))?;
        Ok(begun)
    })
}

/// By strongSwan, with ESP in user space: it encrypts what is in packets of UDP.
#[test]
fn ipsec() -> Result<()> {
    between("udp dport { 500, 4500 }", |room, ends| {
        let (host, to) = ends.hosts();
        let pods = |node: u8| format!("10.244.{node}.0/24, fd00:244:{node}::/64");
        let (own, other) = (pods(ends.own), pods(ends.other));
        // The gateway of pods, as most network plugins give the node one: strongSwan routes by it, and
        // clients outside come from there.
        let begin = format!(
            "ip address replace 10.244.{0}.1/32 dev lo; ip address replace fd00:244:{0}::1/128 dev lo",
            ends.own
        );
        room.run(&begin)?;
        room.write("/etc/strongswan.conf", STRONGSWAN)?;
        room.write(
            "/etc/swanctl/swanctl.conf",
            &format!(
                "connections {{ pods {{ version = 2; local_addrs = 172.30.0.{host}; remote_addrs = 172.30.0.{to}
                encap = yes; proposals = aes128-sha256-modp2048
                local {{ auth = psk; id = {host} }} remote {{ auth = psk; id = {to} }}
                children {{ pods {{ local_ts = {own}; remote_ts = {other}; esp_proposals = aes128-sha256 }} }} }} }}
                secrets {{ ike {{ secret = lab }} }}"
            ).replace("; ", "\n"),
        )?;
        let begun = room.serve("charon", &["/usr/lib/ipsec/charon"], "rm -f /run/charon.*")?;
        until("strongSwan", PATIENCE, || {
            let load = room.run("swanctl --load-all");
            Ok(load.map(drop).map_err(|error| format!("{error:#}\n{}", room.said("charon"))))
        })?;
        if ends.own == 2 {
            // The first node's waits already.
            room.run("swanctl --initiate --child pods --timeout 10")?;
        }
        Ok(begun)
    })
}

const STRONGSWAN: &str = "charon {
    load = random nonce aes sha1 sha2 hmac kdf gmp pem pkcs1 socket-default kernel-libipsec kernel-netlink updown vici
    start-scripts {
    }
}
";
