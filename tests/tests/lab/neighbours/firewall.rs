//! Firewalls: they let what the node serves pass, and block what they block.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Result, ensure};
use topo_lb_tests::town::{Town, WEST4, visit};
use topo_lb_tests::wait::patient;

/// A port of a process of west that firewalls block, and one that they do not.
const BLOCKED: u16 = 7_777;
const OPEN: u16 = 7_778;
/// How long a client outside waits for an answer that must not come.
const SILENCE: Duration = Duration::from_millis(200);

/// What a client outside gets at a port of west where a process listens.
fn dial(town: &Town<'_>, port: u16) -> Result<io::Result<()>> {
    let to = SocketAddr::from((WEST4, port));
    let node = town.cluster.node_netns(town.rooms[0].node())?;
    let _listener = node.run(|| Ok(TcpListener::bind(to)?))?;
    town.cluster.fabric().run(|| Ok(TcpStream::connect_timeout(&to, patient(SILENCE)).map(drop)))
}

/// Checks that clients outside reach one port of west, and not the other.
fn blocks(town: &mut Town<'_>) -> Result<()> {
    let (blocked, open) = (dial(town, BLOCKED)?, dial(town, OPEN)?);
    ensure!(blocked.is_err(), "port {BLOCKED} is open");
    ensure!(open.is_ok(), "port {OPEN}: {open:?}");
    Ok(())
}

/// A firewall on both nodes that lines of a shell begin, and others end.
fn beside(begin: &str, end: &str) -> Result<()> {
    visit(|town| town.has(|town| town.begin(begin, end), blocks))
}

/// What an administrator allows on a node of Kubernetes: all from pods and to pods.
const NFTABLES: &str = "
table inet guard {
    set pods4 { type ipv4_addr; flags interval; elements = { 10.244.0.0/16 } }
    set pods6 { type ipv6_addr; flags interval; elements = { fd00:244::/32 } }
    chain input {
        type filter hook input priority filter; policy drop;
        ct state established,related accept
        ct state invalid drop
        iif lo accept
        meta l4proto { icmp, icmpv6 } accept
        ip saddr @pods4 accept
        ip6 saddr @pods6 accept
        tcp dport 7778 accept
    }
    chain forward {
        type filter hook forward priority filter; policy drop;
        ct state established,related accept
        ip saddr @pods4 accept
        ip daddr @pods4 accept
        ip6 saddr @pods6 accept
        ip6 daddr @pods6 accept
    }
}
";

#[test]
fn nftables() -> Result<()> {
    beside(&format!("echo '{NFTABLES}' | nft -f -"), "nft delete table inet guard")
}

/// As the package's installation makes its files.
const UFW: &str = "
cp /usr/share/ufw/iptables/*.rules /etc/ufw/
printf 'ENABLED=no\\nLOGLEVEL=off\\n' > /etc/ufw/ufw.conf
ufw allow 7778/tcp
for pods in 10.244.0.0/16 fd00:244::/32; do ufw route allow from $pods; ufw route allow to $pods; done
ufw --force enable
";

#[test]
fn ufw() -> Result<()> {
    beside(UFW, "ufw --force disable")
}

/// Its engine, without the daemon around it, which asks polkit on the system's bus for each change.
const FIREWALLD: &str = "
mkdir -p /etc/firewalld/zones /etc/firewalld/policies
cat > /etc/firewalld/zones/public.xml <<END
<zone><interface name=\"eth0\"/><port port=\"7778\" protocol=\"tcp\"/></zone>
END
cat > /etc/firewalld/zones/trusted.xml <<END
<zone target=\"ACCEPT\"><source address=\"10.244.0.0/16\"/><source address=\"fd00:244::/32\"/></zone>
END
cat > /etc/firewalld/policies/pods.xml <<END
<policy target=\"ACCEPT\"><ingress-zone name=\"public\"/><egress-zone name=\"trusted\"/></policy>
END
/usr/bin/python3 -c 'from firewall.core.fw import Firewall; Firewall().start()'
nft list table inet firewalld | grep -q 7778
";

#[test]
fn firewalld() -> Result<()> {
    beside(FIREWALLD, "nft delete table inet firewalld")
}
