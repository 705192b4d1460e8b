//! Where connections to a Service lead, by the decisions of the nodes. Pure.
//!
//! Nodes measure how far the connections to a Service went, and not where to. With the decision, the
//! distance often leaves one group; if it leaves several, their endpoints are taken to be equally likely,
//! as the programs take them.

use std::collections::HashMap;

use topo_lb_common::backend::Locality;
use topo_lb_common::selection::SPILL_ONE;

use crate::cluster::{Family, ServiceId, State};
use crate::topology::label::{REGION, ZONE};
use crate::topology::{Decision, NodesByLabel, Scope, decide, sites};

/// Shares of connections by the group of their endpoint; they sum to 1, or there are none.
pub(super) type Shares = Vec<(usize, f64)>;

/// Where connections to one Service lead.
#[derive(Debug, Default)]
pub(super) struct Leads {
    /// The class of each node that is alike to others.
    class: HashMap<Box<str>, usize>,
    /// For each class, the shares of each locality.
    shares: Vec<[Shares; Locality::ALL.len()]>,
}

impl Leads {
    /// `group` says which group has this value of `label`.
    pub(super) fn of(
        state: &State,
        nodes: &NodesByLabel<'_>,
        label: &str,
        group: &impl Fn(Option<&str>) -> Option<usize>,
        scope: Scope,
        id: &ServiceId,
    ) -> Self {
        let mut leads = Self::default();
        let Some(service) = state.service(id) else { return leads };
        let anywhere = decide(state, "", scope, id);
        for alike in nodes.alike(service, &anywhere, &[label, ZONE, REGION]) {
            let Some(first) = alike.first() else { continue };
            let decisions = decide(state, first, scope, id);
            let class = leads.shares.len();
            leads.class.extend(alike.iter().map(|&node| (node.into(), class)));
            leads.shares.push(shares(state, label, group, &decisions));
        }
        leads
    }

    /// Where the connections of a node at this distance lead; empty if the decision names no such
    /// endpoint.
    pub(super) fn from(&self, node: &str, locality: Locality) -> &[(usize, f64)] {
        let class = self.class.get(node);
        class.map_or(&[], |&class| &self.shares[class][locality as usize])
    }
}

fn shares(
    state: &State,
    label: &str,
    group: &impl Fn(Option<&str>) -> Option<usize>,
    decisions: &[Decision<'_>],
) -> [Shares; Locality::ALL.len()] {
    let mut weights: [HashMap<usize, f64>; Locality::ALL.len()] = Default::default();
    for decision in decisions {
        for choice in &decision.choices {
            let sites = sites(state, decision.service, decision.port, choice.family);
            let spill = choice
                .wider
                .map_or(0.0, |wider| f64::from(wider.share.parts()) / f64::from(SPILL_ONE));
            let of_wider = choice.wider.map_or(0.0, |wider| spill / wider.endpoints as f64);
            let of_chosen = (1.0 - spill) / choice.chosen as f64;
            let of_family = decision.endpoints.iter();
            let of_family = of_family.filter(|it| Family::of(it.address.ip()) == choice.family);
            for endpoint in of_family.filter(|endpoint| endpoint.selected()) {
                let site = sites.binary_search_by_key(&endpoint.address, |(address, _)| *address);
                let value = site.ok().and_then(|place| sites[place].1.label(label).ok());
                let Some(group) = group(value) else { continue };
                let weight = match endpoint.part.and_then(|part| choice.parts.get(part)) {
                    Some(portion) => portion.each(),
                    None if endpoint.is_chosen() => of_chosen,
                    None => of_wider,
                };
                *weights[endpoint.locality as usize].entry(group).or_default() += weight;
            }
        }
    }
    weights.map(|weights| {
        let sum: f64 = weights.values().sum();
        let mut shares: Shares =
            weights.into_iter().map(|(group, weight)| (group, weight / sum)).collect();
        shares.retain(|(_, share)| share.is_finite() && *share > 0.0);
        shares.sort_unstable_by_key(|(group, _)| *group);
        shares
    })
}
