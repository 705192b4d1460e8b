//! Where connections to a Service lead, by the decisions of the nodes. Pure.
//!
//! Nodes measure how far the connections to a Service went, and not where to. With the decision, the
//! distance often leaves one group; if it leaves several, their endpoints are taken to be equally likely,
//! as the programs take them.

use std::collections::HashMap;

use topo_lb_common::backend::Locality;
use topo_lb_common::selection::SPILL_ONE;

use super::groups::Groups;
use topo_lb_core::cluster::{Family, ServiceId, State};
use topo_lb_core::topology::label::{REGION, ZONE};
use topo_lb_core::topology::{Decision, NodesByLabel, Scope, decide, sites};

/// Shares of connections by the group of their endpoint; they sum to 1, or there are none.
pub(super) type Shares = Vec<(usize, f64)>;

/// Shares by locality. Those on the client's node are left out: its group is known.
pub(super) type ByLocality = [Shares; Locality::ALL.len()];

/// Where connections to one Service lead. There is one for each Service with traffic, and each knows all
/// nodes: so it has a number for a node, and shares that are the same only once.
#[derive(Debug, Default)]
pub(super) struct Leads {
    /// The place of each node's shares, by the number of the node in its [`Groups`].
    class: Box<[u32]>,
    shares: Vec<ByLocality>,
}

impl Leads {
    /// `share`: [`by_locality`], or [`together`] for [`anywhere`](Self::anywhere). `groups` are those of the nodes by
    /// their values of `label`.
    pub(super) fn of(
        share: fn(Weights) -> ByLocality,
        state: &State,
        nodes: &NodesByLabel<'_>,
        label: &str,
        groups: &Groups,
        scope: Scope,
        id: &ServiceId,
    ) -> Self {
        let mut leads = Self::default();
        let mut class = vec![u32::MAX; groups.nodes()];
        let Some(service) = state.service(id) else { return leads };
        let anywhere = decide(state, "", scope, id);
        for alike in nodes.alike(service, &anywhere, &[label, ZONE, REGION]) {
            let Some(first) = alike.first() else { continue };
            let decisions = decide(state, first, scope, id);
            let shares = share(weights(state, label, groups, &decisions));
            let known = leads.shares.iter().position(|known| *known == shares);
            let place = known.unwrap_or_else(|| {
                leads.shares.push(shares);
                leads.shares.len() - 1
            });
            let place = u32::try_from(place).unwrap_or(u32::MAX);
            for at in alike.iter().filter_map(|node| groups.place(node)) {
                class[groups.number(at)] = place;
            }
        }
        leads.class = class.into();
        leads.shares.shrink_to_fit();
        leads
    }

    /// Where the connections of the node with this number lead at this distance; empty if the decision
    /// names no such endpoint, and for the node itself. Agent and page may know different regions, so what
    /// names none in the region leads elsewhere, and the other way round.
    pub(super) fn from(&self, number: usize, locality: Locality) -> &[(usize, f64)] {
        let place = self.class.get(number).map_or(usize::MAX, |&place| place as usize);
        let Some(shares) = self.shares.get(place) else { return &[] };
        let of = |locality| &*shares[locality as usize];
        match (of(locality), locality) {
            ([], Locality::Region) => of(Locality::Elsewhere),
            ([], Locality::Elsewhere) => of(Locality::Region),
            (leads, _) => leads,
        }
    }

    /// Where the connections of the node with this number lead, of leads that are made [`together`].
    pub(super) fn anywhere(&self, number: usize) -> &[(usize, f64)] {
        let place = self.class.get(number).map_or(usize::MAX, |&place| place as usize);
        self.shares.get(place).map_or(&[], |shares| &shares[WHOLE])
    }
}

/// By locality and group.
pub(super) type Weights = [HashMap<usize, f64>; Locality::ALL.len()];

/// Where shares are that count for any distance.
const WHOLE: usize = Locality::Node as usize;

fn weights(state: &State, label: &str, groups: &Groups, decisions: &[Decision<'_>]) -> Weights {
    let mut weights = Weights::default();
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
                let Some(group) = groups.with(value) else { continue };
                let weight = match endpoint.part.and_then(|part| choice.parts.get(part)) {
                    Some(portion) => portion.each(),
                    None if endpoint.is_chosen() => of_chosen,
                    None => of_wider,
                };
                *weights[endpoint.locality as usize].entry(group).or_default() += weight;
            }
        }
    }
    weights
}

/// To endpoints of other nodes, by their distance.
pub(super) fn by_locality(mut weights: Weights) -> ByLocality {
    weights[Locality::Node as usize].clear();
    weights.map(shares)
}

/// To all endpoints, whatever the distance.
pub(super) fn together(weights: Weights) -> ByLocality {
    let mut all = HashMap::new();
    for (group, weight) in weights.into_iter().flatten() {
        *all.entry(group).or_default() += weight;
    }
    let mut whole = ByLocality::default();
    whole[WHOLE] = shares(all);
    whole
}

fn shares(weights: HashMap<usize, f64>) -> Shares {
    let sum: f64 = weights.values().sum();
    let mut shares: Shares =
        weights.into_iter().map(|(group, weight)| (group, weight / sum)).collect();
    shares.retain(|(_, share)| share.is_finite() && *share > 0.0);
    shares.sort_unstable_by_key(|(group, _)| *group);
    shares.shrink_to_fit();
    shares
}
