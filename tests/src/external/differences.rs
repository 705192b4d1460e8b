//! Where topo-lb's outcomes differ from kube-proxy 1.20's, and why. Every other outcome is the same.

use std::iter::zip;

use super::cell::{Caller, Cell, Endpoints, Policy, Service, THERE, Target, Variant};
use super::table::{FORBIDDEN, Outcome, REFUSED, Table, UNANSWERED};
use crate::address::Family;
use crate::scene::HERE;

/// A difference: what topo-lb does in the cells where this applies.
#[derive(Clone, Copy, Debug)]
pub struct Difference {
    /// What topo-lb does, for docs.
    pub what: &'static str,
    /// Why, for docs.
    pub reason: &'static str,
    /// Whether kube-proxy's outcomes are drawn at random, so that by chance none may differ.
    pub(super) is_random: bool,
    /// topo-lb's outcome, from those of all cells before this difference; `None` where it does not apply.
    apply: fn(&Cell, &Outcome, &Table) -> Option<Outcome>,
}

/// All differences, in the order in which they apply.
pub const ALL: [Difference; 10] = [
    Difference {
        what: "If all endpoints terminate, those that still serve are dialled.",
        reason: "kube-proxy does the same since Kubernetes 1.26 (KEP-1669); 1.20 refuses.",
        is_random: false,
        apply: |cell, _, table| {
            let is_so = cell.service.endpoints == Endpoints::Terminating;
            is_so.then(|| table.with(cell, Endpoints::Both))
        },
    },
    Difference {
        what: "With `externalTrafficPolicy: Local`, a node whose only endpoint terminates dials it.",
        reason: "kube-proxy does the same since Kubernetes 1.26 (KEP-1669), so that a rollout loses no \
                 connection until the load balancer has noticed; 1.20 drops.",
        is_random: false,
        apply: |cell, _, table| {
            let is_so = cell.service.policy == Policy::Local
                && cell.service.endpoints == Endpoints::Draining
                && cell.target != Target::ClusterIp
                && cell.uplink() == Some(HERE);
            is_so.then(|| table.with(cell, Endpoints::Here))
        },
    },
    Difference {
        what: "Processes of a node reach external IPs, and are refused at load balancer IPs without an \
               endpoint.",
        reason: "kube-proxy does the same for external IPs since Kubernetes 1.21 \
                 (kubernetes/kubernetes#96296); 1.20 leaves the packets of a node's processes alone \
                 (`! --src-type LOCAL`). Its refusals apply to packets that come in.",
        is_random: false,
        apply: |cell, outcome, table| {
            let is_external = matches!(cell.target, Target::LoadBalancer | Target::ExternalIp);
            let is_so = matches!(cell.caller, Caller::Host | Caller::HostPod)
                && is_external
                && outcome.0 == UNANSWERED
                && !cell.is_limited();
            is_so.then(|| table.0[&Cell { target: Target::ClusterIp, ..*cell }].clone())
        },
    },
    Difference {
        what: "A datagram to a Service without an endpoint is refused with ECONNREFUSED.",
        reason: "kube-proxy's REJECT in the chain OUTPUT gives a process of the node EPERM.",
        is_random: false,
        apply: |cell, outcome, _| {
            let is_so = outcome.0 == FORBIDDEN && !cell.is_limited();
            is_so.then(|| REFUSED.to_owned().into())
        },
    },
    Difference {
        what: "For clients on nodes and in pods, a load balancer IP with `loadBalancerSourceRanges` leads \
               to the load balancer.",
        reason: "The hooks of sockets do not know the source address that a connection will have, so they \
                 leave the decision to the load balancer. In this lab there is none, and nobody answers. \
                 kube-proxy checks the ranges on the node.",
        is_random: false,
        apply: |cell, _, _| {
            let is_so = cell.is_limited() && cell.caller != Caller::Outside;
            is_so.then(|| UNANSWERED.to_owned().into())
        },
    },
    Difference {
        what: "A client outside of `loadBalancerSourceRanges` gets no answer, whatever the endpoints.",
        reason: "kube-proxy refuses if there is no endpoint, and so tells a client that is denied.",
        is_random: false,
        apply: |cell, outcome, _| {
            let is_so = cell.is_limited()
                && cell.service.variant == Variant::Denied
                && outcome.0 == REFUSED;
            is_so.then(|| UNANSWERED.to_owned().into())
        },
    },
    Difference {
        what: "With `externalTrafficPolicy: Local`, a pod that dials the node port of another node gets \
               that node's endpoints.",
        reason: "A node knows which pods are its own; those of others are outside. kube-proxy 1.20 gives \
                 all pods (`--cluster-cidr`) all endpoints, but without masquerade, so that answers \
                 from other nodes never reach them.",
        is_random: false,
        apply: |cell, outcome, _| {
            let node = cell.uplink()?;
            let is_pod =
                matches!(cell.caller, Caller::PodHere | Caller::PodThere | Caller::Endpoint);
            if !is_pod || cell.service.policy != Policy::Local || outcome.answers().next().is_none()
            {
                return None;
            }
            let own = outcome.answers().filter(|(server, _)| node_of(server) == node);
            let own = own.map(|(server, source)| format!("{server}:{source}")).next();
            Some(own.unwrap_or_else(|| UNANSWERED.to_owned()).into())
        },
    },
    Difference {
        what: "With `externalTrafficPolicy: Local` and `sessionAffinity`, a client outside has an endpoint \
               at the ClusterIP, and another at all other addresses.",
        reason: "kube-proxy notes at each endpoint who has used it: what a client uses at other \
                 addresses changes what it gets at the ClusterIP.",
        is_random: true,
        apply: |cell, _, table| {
            let is_so = cell.service.policy == Policy::Local
                && cell.service.variant == Variant::Affinity
                && (cell.target, cell.caller) == (Target::ClusterIp, Caller::Outside);
            let plain = is_so.then(|| &table.0[&cell.plain()])?;
            (plain.words().count() > 1).then(|| format!("one of {plain}").into())
        },
    },
    Difference {
        what: "At `::1` there are no node ports.",
        reason: "The kernel routes nothing from `::1` to other addresses. kube-proxy translates it for a \
                 server on the same node with the node's network, and loses all else.",
        is_random: false,
        apply: |cell, _, _| {
            let is_so = cell.target == Target::NodePortLoopback && cell.family == Family::V6;
            is_so.then(|| REFUSED.to_owned().into())
        },
    },
    Difference {
        what: "Endpoints see the client's own address, but for a client outside whose endpoint is on \
               another node than the one it has dialled.",
        reason: "Sockets of nodes and pods are connected to the endpoint itself, and what comes in \
                 from outside to an endpoint of the same node needs no masquerade: its answers pass the \
                 same node anyway.",
        is_random: false,
        apply: |cell, outcome, _| {
            let see = |word: &str| match word.split_once(':') {
                Some((server, _)) if cell.uplink().is_none_or(|node| node == node_of(server)) => {
                    format!("{server}:{}", cell.caller.address())
                }
                _ => word.to_owned(),
            };
            let words: Vec<_> = outcome.words().map(see).collect();
            Some(words.join(" ").into())
        },
    },
];

/// The node that a server is on.
fn node_of(server: &str) -> &'static str {
    if matches!(server, "a" | "host-here") { HERE } else { THERE }
}

impl Caller {
    /// The name of its address.
    fn address(self) -> &'static str {
        match self {
            Self::Outside => "outside",
            Self::Host | Self::HostPod => HERE,
            Self::PodHere => "client",
            Self::PodThere => "remote",
            Self::Endpoint => "a",
        }
    }
}

impl Cell {
    /// The node that translates packets which come to it from outside; `None`: the caller's own node
    /// translates the address that its socket connects to.
    fn uplink(&self) -> Option<&'static str> {
        match (self.caller, self.target) {
            (Caller::PodThere, Target::NodePortHere) => Some(HERE),
            (Caller::PodThere, _) => None,
            (_, Target::NodePortThere) => Some(THERE),
            (Caller::Outside, _) => Some(HERE),
            _ => None,
        }
    }

    /// Whether `loadBalancerSourceRanges` apply.
    fn is_limited(&self) -> bool {
        self.target == Target::LoadBalancer
            && matches!(self.service.variant, Variant::Allowed | Variant::Denied)
    }
}

impl Difference {
    /// Whether there is a cell for which it says something.
    pub(super) fn applies(&self, table: &Table) -> bool {
        table.0.iter().any(|(cell, outcome)| (self.apply)(cell, outcome, table).is_some())
    }
}

impl Table {
    /// The outcome of the same cell with other endpoints.
    fn with(&self, cell: &Cell, endpoints: Endpoints) -> Outcome {
        let service = Service { endpoints, ..cell.service };
        self.0[&Cell { service, ..*cell }].clone()
    }
}

/// What direct return changes: endpoints see a client outside at load balancer and external IPs, wherever they are.
/// Returns in how many cells that is.
pub fn return_directly(topo_lb: &mut Table) -> usize {
    let mut changed = 0;
    for (cell, outcome) in &mut topo_lb.0 {
        let is_external = matches!(cell.target, Target::LoadBalancer | Target::ExternalIp);
        if cell.caller != Caller::Outside || !is_external {
            continue;
        }
        let words = outcome.words().map(|word| match word.split_once(':') {
            Some((server, _)) => format!("{server}:{}", cell.caller.address()),
            None => word.to_owned(),
        });
        let seen = Outcome::from(words.collect::<Vec<_>>().join(" "));
        changed += usize::from(seen != *outcome);
        *outcome = seen;
    }
    changed
}

/// The outcomes that topo-lb must have, given kube-proxy's of all cells. Also the number of cells that
/// each difference changes; a difference without any occurs no longer.
#[must_use]
pub fn expected(kube_proxy: &Table) -> (Table, [usize; ALL.len()]) {
    let mut table = kube_proxy.clone();
    let mut counts = [0; ALL.len()];
    for (difference, count) in zip(&ALL, &mut counts) {
        let before = table.clone();
        for (cell, outcome) in &mut table.0 {
            let other = (difference.apply)(cell, outcome, &before);
            if let Some(other) = other.filter(|it| it != outcome) {
                *outcome = other;
                *count += 1;
            }
        }
    }
    (table, counts)
}
