//! The nftables table that masquerades connections from outside, read and changed by `nft`.

use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use topo_lb_kernel::datapath::masquerade::{self, Masquerade};
use topo_lb_tests::netns::NetNs;
use topo_lb_tests::prefix::Prefix;
use topo_lb_tests::process::{fed, printed};
use topo_lb_tests::requirements;

const BIT: u32 = 0x1000;
/// As `nft` prints it.
const TABLE: &str = "\
table inet topo-lb {
	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		meta l4proto tcp meta mark & 0x00001000 != 0x00000000 masquerade to :32768-65535 fully-random
		meta l4proto udp meta mark & 0x00001000 != 0x00000000 masquerade to :32768-65535 fully-random
		meta l4proto sctp meta mark & 0x00001000 != 0x00000000 masquerade to :32768-65535 fully-random
	}

	chain unmark {
		type filter hook postrouting priority srcnat + 1; policy accept;
		meta mark & 0x00001000 != 0x00000000 meta mark set meta mark & 0xffffefff
	}
}
";

fn namespaces(names: &[&str]) -> Result<Vec<NetNs>> {
    requirements::check()?;
    requirements::command("nft", "nftables")?;
    let prefix = Prefix::new();
    NetNs::make(&names.iter().map(|name| prefix.name(name)).collect::<Vec<_>>())
}

/// Runs `work` in a network namespace of its own.
fn inside(work: impl FnOnce() -> Result<()> + Send) -> Result<()> {
    namespaces(&["node"])?.remove(0).run(work)
}

fn nft(command: &str) -> Result<String> {
    printed(Command::new("nft").args(command.split(' ')))
}

fn load(rules: &str) -> Result<()> {
    let output = fed(Command::new("nft").args(["-f", "-"]), rules)?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{said}");
    Ok(())
}

#[test]
fn nft_lists_the_table_and_reads_what_it_lists() -> Result<()> {
    inside(|| {
        let mut table = Masquerade::new(BIT);
        ensure!(!table.keep()?, "nobody removed it");
        let listed = nft("list ruleset")?;
        ensure!(listed == TABLE, "{listed}");
        nft("flush ruleset")?;
        load(&listed)?;
        ensure!(nft("list ruleset")? == TABLE);
        // Its author was another process.
        ensure!(!Masquerade::new(0x40).keep()?);
        let other = nft("list ruleset")?;
        ensure!(other == TABLE.replace("00001000", "00000040").replace("efff", "ffbf"), "{other}");
        Ok(())
    })
}

#[test]
fn what_somebody_else_changes_is_put_back() -> Result<()> {
    inside(|| {
        let mut table = Masquerade::new(BIT);
        table.keep()?;
        for change in [
            "delete table inet topo-lb",
            "flush ruleset",
            "flush table inet topo-lb",
            "flush chain inet topo-lb unmark",
            "add rule inet topo-lb postrouting counter",
            "insert rule inet topo-lb unmark accept",
            "add chain inet topo-lb more",
            "add chain inet topo-lb unmark { policy drop ; }",
            "add table inet topo-lb { flags dormant ; }",
        ] {
            nft(change)?;
            ensure!(nft("list ruleset")? != TABLE, "{change} changes nothing");
            ensure!(table.keep()?, "{change} is not noticed");
            let listed = nft("list ruleset")?;
            ensure!(listed == TABLE, "after {change}: {listed}");
            ensure!(!table.keep()?, "{change} is put back twice");
        }
        Ok(())
    })
}

#[test]
fn tables_of_others_are_left_alone() -> Result<()> {
    inside(|| {
        let mut table = Masquerade::new(BIT);
        table.keep()?;
        nft("add table ip topo-lb")?;
        nft("add table inet other")?;
        nft("add chain inet other postrouting")?;
        ensure!(!table.keep()?, "the change of another table is not ours");
        ensure!(masquerade::remove()?, "there was a table");
        ensure!(!masquerade::remove()?, "it is gone");
        let listed = nft("list ruleset")?;
        let wanted = "table ip topo-lb {\n}\ntable inet other {\n\tchain postrouting {\n\t}\n}\n";
        ensure!(listed == wanted, "{listed}");
        Ok(())
    })
}

#[test]
fn a_check_writes_nothing() -> Result<()> {
    inside(|| {
        masquerade::check()?;
        ensure!(nft("list ruleset")?.is_empty());
        let mut table = Masquerade::new(BIT);
        table.keep()?;
        masquerade::check()?;
        ensure!(!table.keep()?, "the check changed the table");
        Ok(())
    })
}

/// Which source a server behind a node sees of a client whose packets have this mark, and how many
/// packets have a mark after the table.
fn seen_by_server(mark: u32) -> Result<(SocketAddr, String)> {
    let [client, node, server] =
        namespaces(&["client", "node", "server"])?.try_into().ok().context("three namespaces")?;
    let name = |netns: &NetNs| {
        let name = netns.path().file_name().map(|name| name.to_string_lossy().into_owned());
        name.context("a name")
    };
    let (to_client, to_server) = (name(&client)?, name(&server)?);
    node.ip(&[
        format!("link add client type veth peer name eth0 netns {to_client}"),
        format!("link add server type veth peer name eth0 netns {to_server}"),
        "addr add 192.0.2.1/24 dev client".into(),
        "addr add 198.51.100.1/24 dev server".into(),
        "link set client up".into(),
        "link set server up".into(),
    ])?;
    node.set(&[("ipv4/ip_forward", "1")])?;
    for (netns, own, gateway) in
        [(&client, "192.0.2.9", "192.0.2.1"), (&server, "198.51.100.9", "198.51.100.1")]
    {
        netns.ip(&[
            format!("addr add {own}/24 dev eth0"),
            "link set eth0 up".into(),
            format!("route add default via {gateway}"),
        ])?;
    }
    node.run(|| {
        Masquerade::new(BIT).keep()?;
        load(&format!(
            "table ip marks {{
                counter left {{ }}
                chain before {{
                    type filter hook prerouting priority raw
                    iifname client meta mark set {mark:#x}
                }}
                chain after {{
                    type filter hook postrouting priority 200
                    meta mark & 0x1000 != 0 counter name left
                }}
            }}"
        ))
    })?;
    let listener = server.run(|| Ok(TcpListener::bind((Ipv4Addr::UNSPECIFIED, 80))?))?;
    let mut stream = client.run(|| Ok(TcpStream::connect(("198.51.100.9", 80))?))?;
    let (accepted, source) = listener.accept()?;
    // The replies come back to the client.
    drop(accepted);
    ensure!(stream.read(&mut [0])? == 0, "the server said something");
    Ok((source, node.run(|| nft("list counter ip marks left"))?))
}

#[test]
fn only_marked_connections_are_masqueraded_and_the_mark_is_cleared() -> Result<()> {
    let (source, left) = seen_by_server(0x1001)?;
    ensure!(source.ip() == IpAddr::from([198, 51, 100, 1]), "{source}");
    ensure!(source.port() >= 32_768, "{source}");
    ensure!(left.contains("packets 0 "), "{left}");
    let (source, left) = seen_by_server(0x1)?;
    ensure!(source.ip() == IpAddr::from([192, 0, 2, 9]), "{source}");
    ensure!(left.contains("packets 0 "), "{left}");
    Ok(())
}
