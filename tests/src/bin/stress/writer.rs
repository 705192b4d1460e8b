//! Changes Services as fast as plans and commits allow: they grow, shrink, go and come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use topo_lb_core::cluster::{
    self, Change, Placement, Port, Protocol, Service, ServiceId, Slice, SliceId, Update,
};
use topo_lb_core::plan::Installed;
use topo_lb_core::plan::commit::commit;
use topo_lb_core::plan::store::Store as _;
use topo_lb_core::reconcile::Reconciler;
use topo_lb_core::topology::Scope;
use topo_lb_kernel::datapath::maps::bpf::BpfStore;

use crate::hammer::PORT;
use crate::history::{History, ServiceSize};
use topo_lb_tests::address::{Endpoint, Family, SERVICES, cluster_ip};

/// Sizes around the 8 inline endpoints of a Service. Most are inline: these are written fastest.
const SMALL: [u16; 9] = [0, 1, 2, 3, 4, 5, 7, 8, 9];
/// Sizes around what one byte can count.
const LARGE: [u16; 5] = [40, 255, 256, 257, 300];
/// One of so many Services is large.
const LARGE_SHARE: u8 = 32;

/// The agent's pure core and store, with this program as its source.
pub(crate) struct Writer<'a> {
    reconciler: Reconciler,
    store: BpfStore,
    installed: Installed,
    histories: &'a [[History; SERVICES as usize]; 2],
    random: fastrand::Rng,
}

impl<'a> Writer<'a> {
    /// A writer for these maps.
    pub(crate) fn new(
        mut store: BpfStore,
        histories: &'a [[History; SERVICES as usize]; 2],
        seed: u64,
    ) -> Result<Self> {
        let reconciler = Reconciler::new(Arc::from("stress"), Scope::All, false);
        let installed = store.installed().context("cannot read the maps")?;
        Ok(Self { reconciler, store, installed, histories, random: fastrand::Rng::with_seed(seed) })
    }

    /// Changes Services until `stop` is set, and returns how many it changed.
    pub(crate) fn run(&mut self, stop: &AtomicBool) -> Result<u64> {
        let mut changes = 0;
        while !stop.load(Ordering::Relaxed) {
            let count = self.random.u8(1..=SERVICES);
            for _ in 0..count {
                let family = Family::BOTH[self.random.usize(..2)];
                let service = self.random.u8(..SERVICES);
                self.change(service, family);
            }
            changes += u64::from(count);
            self.settle()?;
        }
        Ok(changes)
    }

    fn change(&mut self, service: u8, family: Family) {
        let history = &self.histories[family as usize][usize::from(service)];
        let (id, slice) = names(service, family);
        if self.random.u8(..8) == 0 {
            history.request(ServiceSize::Gone);
            self.reconciler.observe(Update::Service(Change::Deleted(id)));
            self.reconciler.observe(Update::Slice(Change::Deleted(slice)));
            return;
        }
        let sizes: &[u16] = if self.random.u8(..LARGE_SHARE) == 0 { &LARGE } else { &SMALL };
        let count = sizes[self.random.usize(..sizes.len())];
        let generation = history.request(ServiceSize::Of(count));
        let endpoints = (0..count).map(|place| Endpoint { service, generation, place });
        let endpoints = endpoints
            .map(|endpoint| cluster::Endpoint::new(endpoint.address(family), Placement::default()));
        let protocols = [("tcp", Protocol::Tcp), ("udp", Protocol::Udp)];
        self.reconciler.observe(Update::Slice(Change::Applied(Slice {
            id: slice,
            service: Some(id.clone()),
            ports: protocols
                .map(|(name, protocol)| Port { name: name.into(), port: PORT, protocol })
                .to_vec(),
            endpoints: endpoints.collect(),
            headless: false,
            mirrored: false,
            triggered: None,
            ready_since: Vec::new(),
        })));
        self.reconciler.observe(Update::Service(Change::Applied(Service {
            id,
            cluster_ips: vec![cluster_ip(service, family)],
            ports: protocols
                .map(|(name, protocol)| Port { name: name.into(), port: PORT, protocol })
                .to_vec(),
            ..Service::default()
        })));
    }

    /// Plans and commits as the agent does.
    fn settle(&mut self) -> Result<()> {
        while !self.reconciler.settled() {
            let plan = self.reconciler.plan(&self.installed);
            commit(&plan, &mut self.store, &mut self.installed)?;
            self.reconciler.carried_out(&plan, &self.installed);
        }
        self.histories.iter().flatten().for_each(History::confirm);
        Ok(())
    }
}

fn names(service: u8, family: Family) -> (ServiceId, SliceId) {
    let name: Arc<str> = format!("{family:?}-{service}").to_lowercase().into();
    let namespace: Arc<str> = Arc::from("default");
    (
        ServiceId { namespace: Arc::clone(&namespace), name: Arc::clone(&name) },
        SliceId { namespace, name },
    )
}
