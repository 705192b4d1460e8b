//! Firewalls: they let what the node serves pass, and block what they block.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Result, ensure};
use topo_lb_tests::scene::FOLLOWS;
use topo_lb_tests::town::{Doors, Town, WEST4, visit};
use topo_lb_tests::wait::{PATIENCE, patient, until};

/// A port of a process of west that firewalls block, and one that they do not.
const BLOCKED: u16 = 7_777;
const OPEN: u16 = 7_778;
/// How long a client outside waits for an answer that must not come.
const SILENCE: Duration = Duration::from_millis(100);

/// What a client outside gets there.
pub(super) fn dial(town: &Town<'_>, to: SocketAddr) -> Result<io::Result<()>> {
    town.cluster.fabric().run(|| Ok(TcpStream::connect_timeout(&to, patient(SILENCE)).map(drop)))
}

/// The same at a port of west where a process listens.
fn dial_west(town: &Town<'_>, port: u16) -> Result<io::Result<()>> {
    let to = SocketAddr::from((WEST4, port));
    let _listener = town.rooms[0].netns()?.run(|| Ok(TcpListener::bind(to)?))?;
    dial(town, to)
}

/// Checks that clients outside reach one port of west, and not the other.
pub(super) fn blocks(town: &mut Town<'_>) -> Result<()> {
    let (blocked, open) = (dial_west(town, BLOCKED)?, dial_west(town, OPEN)?);
    ensure!(blocked.is_err(), "port {BLOCKED} is open");
    ensure!(open.is_ok(), "port {OPEN}: {open:?}");
    Ok(())
}

/// A firewall on west that lines of a shell begin, and others end.
fn beside(begin: &str, end: &str) -> Result<()> {
    visit(|town| town.has(|town| town.begin(begin, end), blocks))
}

/// What an administrator allows on a node of Kubernetes: all from pods and to pods.
pub(super) const NFTABLES: &str = "
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

/// As the package's installation makes its files; all of pods is allowed where the administrator's own rules belong.
pub(super) const UFW: &str = "
cp /usr/share/ufw/iptables/*.rules /etc/ufw/
printf 'ENABLED=no\\nLOGLEVEL=off\\n' > /etc/ufw/ufw.conf
allow() {
    sed -i \"s,^# allow all on loopback,-A $2-forward -s $3 -j ACCEPT\\\\n-A $2-forward -d $3 -j ACCEPT\\\\n&,\" /etc/ufw/$1.rules
}
allow before ufw-before 10.244.0.0/16
allow before6 ufw6-before fd00:244::/32
ufw allow 7778/tcp
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

/// Docker drops what is forwarded but for its own; a network plugin then allows pods, as flannel does.
const DOCKER: &str = "
pods() {
    $1 -N PODS
    $1 -A PODS -s $2 -j ACCEPT
    $1 -A PODS -d $2 -j ACCEPT
    $1 -A FORWARD -j PODS
}
pods iptables 10.244.0.0/16
pods ip6tables fd00:244::/32
";

/// `dockerd` itself, without containers. Docker ends, its rules stay, and it starts again.
#[test]
fn docker() -> Result<()> {
    visit(|town| {
        // Where Docker is who lets the node forward, it drops all but its own.
        town.rooms[0].run("echo 0 > /proc/sys/net/ipv4/ip_forward")?;
        town.rooms[0].run(DOCKER)?;
        town.has(
            |town| {
                let room = &town.rooms[0];
                let docker = room.serve("dockerd", DOCKERD, "")?;
                until("Docker's rules", PATIENCE, || {
                    let rules = room.run("iptables -S FORWARD")?;
                    let are_there = rules.contains("-P FORWARD DROP");
                    let is_up = room.said("dockerd").contains("API listen on");
                    let said = || format!("{rules}{}", room.said("dockerd"));
                    Ok(if are_there && is_up { Ok(()) } else { Err(said()) })
                })?;
                Ok(docker)
            },
            |town| {
                // It drops what is forwarded to others than pods, as before.
                let rules = town.rooms[0].run("iptables -S; iptables -t nat -S")?;
                ensure!(rules.contains("-P FORWARD DROP"), "{rules}");
                ensure!(rules.contains("-s 172.17.0.0/16 ! -o docker0 -j MASQUERADE"), "{rules}");
                Ok(())
            },
        )
    })
}

const DOCKERD: &[&str] = &[
    "/usr/sbin/dockerd",
    "--data-root=/run/docker/data",
    "--exec-root=/run/docker/exec",
    "--pidfile=/run/docker/pid",
    "--host=unix:///run/docker/socket",
    "--storage-driver=vfs",
];

/// Rules in the kernel's own tables of iptables, which nftables does not show.
#[test]
fn legacy_iptables() -> Result<()> {
    let chain = |command: &str| {
        format!(
            "
            {command} -A INPUT -p tcp --dport 7777 -j DROP
            {command} -A FORWARD -m conntrack --ctstate INVALID -j DROP
        "
        )
    };
    let begin = format!("{}{}", chain("iptables-legacy"), chain("ip6tables-legacy"));
    beside(&begin, "iptables-legacy -F; ip6tables-legacy -F")
}

/// It comes while connections are opened, the agent leaves new ones to the kernel, and it goes: none fails.
#[test]
fn comes_and_goes_under_load() -> Result<()> {
    visit(|town| {
        // What it forwards between nodes, too.
        town.doors = Doors::All;
        town.start_agents()?;
        town.serves()?;
        let room = town.rooms[0].clone();
        town.under_load(|load| {
            for _ in 0..3 {
                let rules = format!("echo '{NFTABLES}' | nft -f -");
                let guard = room.begin(&rules, "nft delete table inet guard")?;
                load.agents[0].wait_for_log("of the nftables table guard", FOLLOWS)?;
                drop(guard);
            }
            Ok(())
        })?;
        town.serves()
    })
}
