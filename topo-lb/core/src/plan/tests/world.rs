//! For tests of plans: what is desired, and maps in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use topo_lb_common::backend::Locality;

use crate::cluster::{Created, Frontend, FrontendKind, Protocol, ServiceId};
use crate::plan::commit::{commit, perform};
use crate::plan::memory::MemoryStore;
use crate::plan::{Capacity, Desired, Installed, Lack, Plan, Ration, Step, WhenFull, diff};
use crate::topology::{Chosen, Route, Verdict};

pub(super) struct World {
    pub(super) desired: Desired,
    pub(super) installed: Installed,
    pub(super) store: MemoryStore,
    pub(super) ration: Ration,
    /// What the last plans free; it waits for a grace period.
    pub(super) later: Vec<Step>,
    /// By the plans that were carried out.
    pub(super) unprogrammed: BTreeMap<ServiceId, Lack>,
}

impl World {
    pub(super) fn new(capacity: Capacity, when_full: WhenFull) -> Self {
        Self {
            desired: Desired::default(),
            installed: Installed::new(capacity),
            store: MemoryStore::new(capacity),
            ration: Ration::new(when_full, 5),
            later: Vec::new(),
            unprogrammed: BTreeMap::new(),
        }
    }

    /// Whether there is no kube-proxy beside.
    pub(super) fn narrow(&mut self, narrows: bool) {
        self.ration = self.ration.clone().narrowing(narrows);
    }

    /// Sets the routes of Services. Returns the Services to plan.
    pub(super) fn set(
        &mut self,
        changes: impl IntoIterator<Item = (ServiceId, Vec<Route>)>,
    ) -> BTreeSet<ServiceId> {
        let mut touched = BTreeSet::new();
        for (id, mut routes) in changes {
            // Routes of one name are of one port.
            let names: Vec<_> = routes.iter().map(|route| route.name.clone()).collect();
            for route in &mut routes {
                route.place = names.iter().position(|name| *name == route.name).unwrap();
            }
            touched.extend(self.desired.set(id, routes));
        }
        self.ration.renew(&touched);
        touched.extend(self.due());
        touched
    }

    /// The Services without room to plan again.
    pub(super) fn due(&mut self) -> BTreeSet<ServiceId> {
        self.ration.due(&self.desired, &self.installed)
    }

    /// Plans as the agent does: with what earlier plans free if something lacks room without it.
    pub(super) fn plan(&mut self, touched: &BTreeSet<ServiceId>) -> Plan {
        let first = diff::plan(&self.desired, &self.installed, touched, &mut self.ration);
        if first.unprogrammed.is_empty() || self.later.is_empty() {
            return first;
        }
        self.free_later();
        diff::plan(&self.desired, &self.installed, touched, &mut self.ration)
    }

    /// Waits for a grace period, and frees what earlier plans left.
    pub(super) fn free_later(&mut self) {
        let later = [vec![Step::Grace], std::mem::take(&mut self.later)].concat();
        perform(&later, &mut self.store, &mut self.installed).unwrap();
    }

    /// Plans and commits once.
    pub(super) fn carry_out(&mut self, touched: &BTreeSet<ServiceId>) -> Plan {
        let mut plan = self.plan(touched);
        if !self.ration.awaits(&plan) {
            self.later.extend(plan.take_frees());
        }
        commit(&plan, &mut self.store, &mut self.installed).unwrap();
        self.carried_out(touched, &plan);
        plan
    }

    /// Records that a plan for these Services was carried out.
    pub(super) fn carried_out(&mut self, touched: &BTreeSet<ServiceId>, plan: &Plan) {
        self.ration.carried_out(touched.clone(), plan);
        self.unprogrammed.clone_from(self.ration.unprogrammed());
    }
}

/// A route to these endpoints.
pub(super) fn route(
    frontend: (IpAddr, u16, Protocol),
    endpoints: impl IntoIterator<Item = (SocketAddr, Locality)>,
) -> Route {
    let (address, port, protocol) = frontend;
    let endpoints: Vec<_> =
        endpoints.into_iter().map(|(at, locality)| Chosen::new(at, locality)).collect();
    Route {
        frontends: vec![(FrontendKind::ClusterIp, Frontend::new(address, port, protocol))],
        place: 0,
        protocol,
        created: Created::UNKNOWN,
        drops: false,
        source_ranges: None,
        verdict: if endpoints.is_empty() { Verdict::Refuse } else { Verdict::Route },
        tier: None,
        endpoints,
        parts: Vec::new(),
        starts: false,
        wider: Vec::new(),
        spill: 0,
        strict: false,
        failures: 0,
        affinity_seconds: None,
        serving: Vec::new(),
        homeward: None,
        consistent: false,
        nodes: Arc::default(),
        name: "".into(),
    }
}
