//! Groups of nodes that a Service treats alike, so that one of each group is evaluated.

use std::collections::{BTreeSet, HashMap};

use super::decide::decide;
use super::decision::Decision;
use super::label::{DESIRED_NODEPOOL, NODEPOOL, ZONE};
use super::rules::PolicyKind;
use super::scope::Scope;
use super::spill::Share;
use super::trial::{self, Trial};
use crate::cluster::{Service, State};

/// The nodes of a cluster by their labels: made once for all Services.
#[derive(Debug)]
pub struct NodesByLabel<'a> {
    state: &'a State,
    /// By name.
    nodes: Vec<&'a str>,
    /// For each label and value, the places in `nodes` of those that carry it.
    by_label: HashMap<&'a str, HashMap<&'a str, Vec<usize>>>,
}

impl<'a> NodesByLabel<'a> {
    /// The nodes of `state`.
    #[must_use]
    pub fn of(state: &'a State) -> Self {
        let mut by_label: HashMap<_, HashMap<_, Vec<usize>>> = HashMap::new();
        for (place, (_, labels)) in state.nodes().enumerate() {
            for (key, value) in labels.iter() {
                by_label.entry(key).or_default().entry(value).or_default().push(place);
            }
        }
        Self { state, nodes: state.nodes().map(|(name, _)| name).collect(), by_label }
    }

    /// How many there are.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is a node of this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.nodes.binary_search(&name).is_ok()
    }

    /// The nodes, grouped so that the decisions for `service` are the same on all nodes of a group, and
    /// that these share their values of the labels `also`. Sorted. `decisions` are those for all ports of
    /// `service` on any node.
    #[must_use]
    pub fn alike(
        &self,
        service: &Service,
        decisions: &[Decision<'_>],
        also: &[&str],
    ) -> Vec<Vec<&'a str>> {
        // Hints may be on one port only.
        let has_policy = |one: &&Decision<'_>| one.policy.kind != PolicyKind::None;
        let Some(decision) = decisions.iter().find(has_policy).or(decisions.first()) else {
            return Vec::new();
        };
        let mut groups = Groups { group: vec![0; self.nodes.len()], count: 1 };
        // A node that endpoints or hints name is alone.
        for name in self.named(service) {
            if let Ok(place) = self.nodes.binary_search(&name) {
                groups.split(&[place]);
            }
        }
        also.iter().for_each(|key| self.split_by(key, &mut groups));
        self.split_by_policy(service, decision, &mut groups);
        // Where an object on trial does not hold, another policy does.
        let evacuations = &decision.policy.evacuating.all;
        for key in evacuations.iter().filter_map(|(_, it, _)| it.allow_strict) {
            self.split_by(key, &mut groups);
        }
        let returning = evacuations.iter().map(|(.., share)| *share);
        for places in self.beyond(&decision.policy.trials, returning) {
            groups.split(&places);
            let node = self.nodes[places[0]];
            let all = decide(self.state, node, Scope::All, &service.id);
            if let Some(decision) = all.iter().find(has_policy).or(all.first()) {
                self.split_by_policy(service, decision, &mut groups);
            }
        }
        let mut alike = vec![Vec::new(); groups.count];
        for (node, group) in self.nodes.iter().zip(groups.group) {
            alike[group].push(*node);
        }
        alike.retain(|nodes| !nodes.is_empty());
        alike.sort_unstable();
        alike
    }

    fn split_by(&self, key: &str, groups: &mut Groups) {
        let places = self.by_label.get(key).into_iter().flat_map(HashMap::values);
        places.for_each(|places| groups.split(places));
    }

    fn split_by_policy(&self, service: &Service, decision: &Decision<'_>, groups: &mut Groups) {
        match decision.policy.kind {
            PolicyKind::OpenYurt => {
                [NODEPOOL, DESIRED_NODEPOOL].iter().for_each(|key| self.split_by(key, groups));
            }
            PolicyKind::Hints => self.split_by(ZONE, groups),
            PolicyKind::None => {}
            // To keys, a value that no endpoint has is the same as none.
            PolicyKind::Keys => {
                for key in &decision.policy.keys {
                    let Some(values) = self.by_label.get(key) else { continue };
                    let own = self.values(service, key).into_iter();
                    own.filter_map(|value| values.get(value)).for_each(|it| groups.split(it));
                }
            }
        }
    }

    /// The places of the nodes that are beyond each ramp, or the share of an evacuation that ends, and within the
    /// next one; without empty lists.
    fn beyond(&self, trials: &[Trial], ending: impl Iterator<Item = Share>) -> Vec<Vec<usize>> {
        let ramps = trials.iter().filter(|it| !it.observes).filter_map(|it| it.ramp);
        let ramps: BTreeSet<u16> = ramps.chain(ending).map(Share::parts).collect();
        let ends = ramps.iter().skip(1).copied().chain([u16::MAX]);
        let between = |(begin, end)| -> Vec<usize> {
            let place = |at: &usize| trial::place(self.nodes[*at]).parts();
            (0..self.nodes.len()).filter(|at| (begin..end).contains(&place(at))).collect()
        };
        ramps.iter().copied().zip(ends).map(between).filter(|places| !places.is_empty()).collect()
    }

    fn named(&self, service: &Service) -> BTreeSet<&'a str> {
        let mut named = BTreeSet::new();
        for (_, slice) in self.state.slices(&service.id) {
            for endpoint in &slice.endpoints {
                let names = endpoint.node().into_iter().chain(endpoint.for_nodes());
                named.extend(names.map(|name| &**name));
            }
        }
        named
    }

    /// The values of a label that an endpoint may have.
    fn values(&self, service: &Service, key: &str) -> BTreeSet<&'a str> {
        let mut values = BTreeSet::new();
        for (_, slice) in self.state.slices(&service.id) {
            for endpoint in &slice.endpoints {
                let home = endpoint.node().and_then(|node| self.state.node(node));
                values.extend(endpoint.label(key).map(|value| &**value));
                values.extend(home.and_then(|labels| labels.get(key)).map(|value| &**value));
                // The host name of an unknown Node is its name.
                values.extend(endpoint.node().map(|name| &**name));
            }
        }
        values
    }
}

/// The number of each node's group.
struct Groups {
    group: Vec<usize>,
    /// Above every number.
    count: usize,
}

impl Groups {
    /// Splits each group into the nodes at these places and the others.
    fn split(&mut self, places: &[usize]) {
        let mut new: HashMap<usize, usize> = HashMap::new();
        for &place in places {
            let group = &mut self.group[place];
            *group = *new.entry(*group).or_insert_with(|| {
                self.count += 1;
                self.count - 1
            });
        }
    }
}
