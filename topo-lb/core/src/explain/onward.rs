//! How packets of clients outside get to endpoints of other nodes, where a Service has direct return.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use serde::Serialize;

use super::quoted::some;
use crate::cluster::Family;
use crate::peers::status::{Cause, PeerState, Status};
use crate::topology::Decision;

/// Most nodes that the text names.
const NAMED: usize = 8;

/// Nodes to which packets get in the same way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Onward {
    /// The nodes, by name.
    pub nodes: Vec<String>,
    /// The version of IP; `None`: all those that its load balancer and external IPs have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<Family>,
    /// `proved`: packets are sent on to them; otherwise connections get source NAT.
    pub state: PeerState,
    /// The kind of the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// Why, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What an agent says of other nodes.
pub(super) struct Peers<'a>(HashMap<(&'a str, Family), &'a Status>);

impl<'a> Peers<'a> {
    pub(super) fn new(all: &'a [Status]) -> Self {
        Self(all.iter().map(|it| ((&*it.node, it.family), it)).collect())
    }

    /// The nodes to which new connections of these families go, in groups.
    pub(super) fn onward(
        &self,
        decision: &Decision<'_>,
        this_node: &str,
        families: &[Family],
    ) -> Vec<Onward> {
        let mut groups = BTreeMap::<_, BTreeMap<Family, BTreeSet<&str>>>::new();
        for endpoint in decision.endpoints.iter().filter(|it| it.selected()) {
            let family = Family::of(endpoint.address.ip());
            let Some(node) = endpoint.node.filter(|node| *node != this_node) else { continue };
            if families.contains(&family) {
                let said = self.0.get(&(node, family));
                let key = said.map_or((PeerState::Asking, None), |it| (it.state, it.cause));
                groups.entry(key).or_default().entry(family).or_default().insert(node);
            }
        }
        let mut all = Vec::new();
        for ((state, cause), by_family) in groups {
            let sets: BTreeSet<_> = by_family.values().collect();
            let is_of_all = by_family.len() == families.len() && sets.len() == 1;
            for (family, nodes) in by_family.iter().take(if is_of_all { 1 } else { 2 }) {
                let reason = |node| self.0.get(&(node, *family))?.reason.as_deref();
                let reasons: BTreeSet<_> = nodes.iter().map(|node| reason(*node)).collect();
                // The same for all, as what this node lacks.
                let exact = reasons.first().filter(|_| reasons.len() == 1).copied().flatten();
                all.push(Onward {
                    nodes: nodes.iter().map(|&node| node.to_owned()).collect(),
                    family: (!is_of_all).then_some(*family),
                    state,
                    cause,
                    reason: exact.or_else(|| cause.map(Cause::words)).map(str::to_owned),
                });
            }
        }
        all
    }
}

impl fmt::Display for Onward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&some(self.nodes.iter().map(String::as_str), NAMED))?;
        if let Some(family) = self.family {
            write!(f, " ({family})")?;
        }
        match (self.state, &self.reason) {
            (PeerState::Proved, _) => f.write_str(": sent on"),
            (_, Some(reason)) => write!(f, ": source NAT, as {reason}"),
            (_, None) => f.write_str(": source NAT until it is proved"),
        }
    }
}
