//! docs/external-traffic.md, made only from the kept table of kube-proxy and from the list of differences.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::iter::zip;

use strum::VariantArray as _;

use super::cell::{Caller, Cell, Endpoints, Policy, Service, Target, Variant};
use super::differences::{ALL, expected};
use super::table::Table;
use crate::address::Family;
use crate::dial::Transport;

const HEAD: &str = "\
<!-- Written by `cargo xtask external-matrix --write-docs`; what is changed by hand is lost. -->
# External traffic: topo-lb in place of kube-proxy, and kube-proxy 1.20

`cargo xtask external-matrix` dials every address of 64 Services of type LoadBalancer, by six callers, in a cluster of two nodes \
`here` and `there`: ClusterIP, node port at each node and at the loopback address, load balancer IP, external IP; with each \
`externalTrafficPolicy`; with ready endpoints on one node, on the other, on both, on none, with terminating ones, and with \
servers that have their node's network; plain, with `sessionAffinity`, with `loadBalancerSourceRanges` that allow or deny the \
client; by TCP and UDP, IPv4 and IPv6. That is done with kube-proxy 1.20 (mode iptables), whose table is kept in \
[external](external/kube-proxy.json), and with `topo-lb agent --kube-proxy-replacement`. All cells are the same, but for the \
differences below. Any other one fails the command, and so does a difference that no longer occurs. After an answer of a \
frontend, the caller dials the endpoint directly from the same port, and has to be answered, too.

";

const CELLS: &str = "
## Who answers

`a:client` means that the endpoint `a` answered and saw the source address of `client`. `a` is on node `here`, `b` on node \
`there`; `host-here` and `host-there` are servers with their node's network. The callers: `outside` is a client that routes load \
balancer IPs, external IPs and ClusterIPs to node `here`; `host` and `host-pod` are processes on node `here`, outside of all pods \
and in a pod with the node's network; `pod-here` (`client`) and `pod-there` (`remote`) are pods that are no endpoints; `endpoint` \
is `a`. `unanswered` means that packets were dropped, \
`forbidden` that the system call failed with EPERM. Where the protocols or families of IP differ, all are listed. In italics: \
what kube-proxy 1.20 does, if it differs. Endpoints: `terminating` are `a` and `b`, both serving and terminating; `draining` are \
`a`, serving and terminating, and `b`, ready.
";

const RANGES: &str = "
## Source ranges

Load balancer IPs of Services with endpoints on both nodes, and `loadBalancerSourceRanges` that have node `here`, its pods and the \
client outside (`allowed`), or none of the callers (`denied`). The ranges do not apply to other addresses.

";

/// The page.
#[must_use]
pub fn text(kube_proxy: &Table) -> String {
    let (topo_lb, counts) = expected(kube_proxy);
    let mut text = HEAD.to_owned();
    text.push_str("## Differences\n\n| topo-lb | why | cells |\n|---|---|---|\n");
    for (difference, count) in zip(&ALL, counts) {
        let _ = writeln!(text, "| {} | {} | {count} |", difference.what, difference.reason);
    }
    let _ =
        writeln!(text, "\nTwo of them may apply to one cell. There are {} cells.", topo_lb.0.len());
    let cell = |cell| told(&topo_lb, kube_proxy, cell);
    text.push_str(CELLS);
    for &target in Target::VARIANTS {
        let rows = |policy| {
            rows(|caller| {
                let of = |&endpoints| {
                    let service = Service { policy, endpoints, variant: Variant::Plain };
                    cell((service, target, caller))
                };
                Endpoints::VARIANTS.iter().map(of).collect()
            })
        };
        let [cluster, local] = [Policy::Cluster, Policy::Local].map(rows);
        let tables = if cluster == local {
            vec![("with any `externalTrafficPolicy`", cluster)]
        } else {
            vec![
                ("`externalTrafficPolicy: Cluster`", cluster),
                ("`externalTrafficPolicy: Local`", local),
            ]
        };
        for (policy, rows) in tables {
            let _ = writeln!(text, "\n### {}, {policy}\n", title(target));
            head(&mut text, "caller", Endpoints::VARIANTS.iter().map(|it| name(*it)));
            text.push_str(&rows);
        }
    }
    text.push_str(RANGES);
    let columns = [Policy::Cluster, Policy::Local]
        .map(|policy| [(policy, Variant::Allowed), (policy, Variant::Denied)])
        .concat();
    let titles: Vec<_> =
        columns.iter().map(|it| format!("{}, {}", name(it.0), name(it.1))).collect();
    head(&mut text, "caller", titles.iter().map(String::as_str));
    text.push_str(&rows(|caller| {
        let of = |&(policy, variant)| {
            let service = Service { policy, endpoints: Endpoints::Both, variant };
            cell((service, Target::LoadBalancer, caller))
        };
        columns.iter().map(of).collect()
    }));
    text
}

fn name(of: impl Into<&'static str>) -> &'static str {
    of.into()
}

fn title(target: Target) -> &'static str {
    match target {
        Target::ClusterIp => "ClusterIP",
        Target::NodePortHere => "Node port at node here",
        Target::NodePortThere => "Node port at node there",
        Target::NodePortLoopback => "Node port at the loopback address",
        Target::LoadBalancer => "Load balancer IP",
        Target::ExternalIp => "External IP",
    }
}

fn head<'a>(text: &mut String, first: &str, columns: impl Iterator<Item = &'a str>) {
    let columns: Vec<_> = columns.collect();
    let lines = "---|".repeat(columns.len());
    let _ = writeln!(text, "| {first} | {} |\n|---|{lines}", columns.join(" | "));
}

/// The rows of a table. Callers with the same cells share one.
fn rows(cells: impl Fn(Caller) -> Vec<String>) -> String {
    let mut rows: Vec<(Vec<&str>, Vec<String>)> = Vec::new();
    for &caller in Caller::VARIANTS {
        let cells = cells(caller);
        match rows.iter_mut().find(|(_, other)| *other == cells) {
            Some((callers, _)) => callers.push(name(caller)),
            None => rows.push((vec![name(caller)], cells)),
        }
    }
    let row = |(callers, cells): &(Vec<&str>, Vec<String>)| {
        format!("| {} | {} |\n", callers.join(", "), cells.join(" | "))
    };
    rows.iter().map(row).collect()
}

/// What topo-lb does, and kube-proxy if that differs.
fn told(topo_lb: &Table, kube_proxy: &Table, cell: (Service, Target, Caller)) -> String {
    let (own, other) = (outcomes(topo_lb, cell), outcomes(kube_proxy, cell));
    if own == other { own } else { format!("{own}<br>*{other}*") }
}

/// The outcome of a cell by all protocols and families.
fn outcomes(table: &Table, (service, target, caller): (Service, Target, Caller)) -> String {
    let mut wires: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for &transport in Transport::VARIANTS {
        for family in Family::BOTH {
            let cell = Cell { service, target, caller, transport, family };
            wires.entry(&table.0[&cell].0).or_default().push(cell.wire());
        }
    }
    let is_one = wires.len() == 1;
    let told = |(outcome, wires): (&str, Vec<&str>)| {
        if is_one { outcome.to_owned() } else { format!("{}: {outcome}", wires.join(", ")) }
    };
    wires.into_iter().map(told).collect::<Vec<_>>().join("; ")
}
