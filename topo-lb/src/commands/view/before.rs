//! Where the traffic of now would go without the evacuations that are in force. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use rayon::prelude::*;

use super::cluster::{id, is_same};
use super::groups::Groups;
use super::leads::{Leads, together};
use super::lines::{Line, Lines};
use crate::commands::top::Row;
use topo_lb_core::cluster::State;
use topo_lb_core::topology::{NodesByLabel, Scope};
use topo_lb_core::what_if::restored;

/// The cluster without evacuations, and where Services lead there.
#[derive(Debug)]
pub(super) struct Before {
    state: State,
    leads: HashMap<Arc<str>, Leads>,
}

impl Before {
    /// That of the cluster of `state`; `None` if nothing is evacuated now. `old`: what was known before, if the nodes
    /// are the same.
    pub(super) fn of(state: &State, old: Option<Self>) -> Option<Self> {
        let state = restored(state)?;
        let mut leads = HashMap::new();
        if let Some(old) = old {
            leads = old.leads;
            leads.retain(|service, _| {
                id(service).is_some_and(|id| is_same(&old.state, &state, &id))
            });
        }
        Some(Self { state, leads })
    }

    /// The traffic of `rows`, as it would go from group to group.
    pub(super) fn lines<'a>(
        &mut self,
        rows: impl Iterator<Item = &'a Row> + Clone,
        label: &str,
        groups: &Groups,
        scope: Scope,
    ) -> Vec<Line> {
        let Self { state, leads } = self;
        let new: Vec<_> = rows.clone().filter(|row| !leads.contains_key(&row.service)).collect();
        if !new.is_empty() {
            let nodes = NodesByLabel::of(state);
            let new = new.par_iter().filter_map(|row| {
                let id = id(&row.service).filter(|id| state.service(id).is_some())?;
                let leads = Leads::of(together, state, &nodes, label, groups, scope, &id);
                Some((Arc::clone(&row.service), leads))
            });
            leads.extend(new.collect::<Vec<_>>());
        }
        let mut lines = Lines::default();
        for row in rows {
            let Some(leads) = leads.get(&row.service) else { continue };
            for (node, rate) in &row.nodes {
                let Some((group, place)) = groups.place(node) else { continue };
                lines.suppose(group, leads.anywhere(groups.number((group, place))), rate);
            }
        }
        lines.largest().0
    }
}
