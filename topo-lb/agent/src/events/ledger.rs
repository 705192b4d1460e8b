//! The known problems of every Service, so that only news is reported.

use std::collections::BTreeMap;
use std::sync::Arc;

use uuid::Uuid;

use super::concern::{Concern, News, clients_refused, news, no_room};
use topo_lb_core::cluster::ServiceId;
use topo_lb_core::plan::Meanwhile;
use topo_lb_core::reconcile::{Recomputed, Reconciler};
use topo_lb_core::refusal::Refusal;

/// Services with problems; all others take no memory here.
#[derive(Debug, Default)]
pub struct Ledger {
    concerns: BTreeMap<ServiceId, Concern>,
    unprogrammed: BTreeMap<ServiceId, Meanwhile>,
    /// The first look is done.
    has_begun: bool,
}

fn uid(reconciler: &Reconciler, id: &ServiceId) -> Option<Uuid> {
    reconciler.state().service(id)?.uid
}

impl Ledger {
    /// Sets which Services (`namespace/name`) the last agent reported as unprogrammed.
    pub fn begin<'a>(&mut self, unprogrammed: impl IntoIterator<Item = (&'a str, Meanwhile)>) {
        let told = unprogrammed.into_iter().filter_map(|(name, meanwhile)| {
            let (namespace, name) = name.split_once('/')?;
            Some((ServiceId { namespace: namespace.into(), name: name.into() }, meanwhile))
        });
        self.unprogrammed = told.collect();
    }

    /// Compares recomputed Services with their known problems. Returns the news. The first look
    /// skips broken rules of installed Services, which the last agent reported.
    pub fn look(
        &mut self,
        reconciler: &Reconciler,
        services: BTreeMap<ServiceId, Recomputed>,
    ) -> Vec<News> {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let node = reconciler.node();
        let mut all = Vec::new();
        for (id, recomputed) in services {
            let mut before = self.concerns.remove(&id).unwrap_or_default();
            if !recomputed.is_concern {
                continue;
            }
            let mut after = Concern::of(reconciler.state(), node, reconciler.scope(), &id);
            if is_first && recomputed.is_installed {
                before.ignored.clone_from(&after.ignored);
            }
            let uid = uid(reconciler, &id);
            all.extend(news(&id, uid, node, &recomputed, &before, &mut after));
            if !after.is_none() {
                self.concerns.insert(id, after);
            }
        }
        all
    }

    /// Records which Services lack room, and returns the news.
    pub fn lacking(&mut self, reconciler: &Reconciler) -> Vec<News> {
        let unprogrammed = reconciler.unprogrammed();
        let new = unprogrammed
            .iter()
            .filter(|(id, lack)| self.unprogrammed.get(*id) != Some(&lack.meanwhile));
        let all = new
            .map(|(id, lack)| no_room(id, uid(reconciler, id), reconciler.node(), *lack))
            .collect();
        self.unprogrammed =
            unprogrammed.iter().map(|(id, lack)| (id.clone(), lack.meanwhile)).collect();
        all
    }

    /// News of refusals that the kernel counted, by Service port.
    #[must_use]
    pub fn counted(&self, reconciler: &Reconciler, counted: &BTreeMap<Arc<str>, u64>) -> Vec<News> {
        let concerns = self.concerns.iter();
        concerns
            .filter_map(|(id, concern)| {
                clients_refused(id, uid(reconciler, id), reconciler.node(), concern, counted)
            })
            .collect()
    }

    /// Service ports that refuse connections, and why. Services left to kube-proxy do not refuse.
    #[must_use]
    pub fn reasons(&self, reconciler: &Reconciler) -> BTreeMap<Arc<str>, Refusal> {
        let no_room = reconciler.refused_for_room().map(|name| (name, Refusal::NoRoom));
        let is_refused = |id: &ServiceId| {
            let lack = reconciler.unprogrammed().get(id);
            lack.is_none_or(|lack| !lack.meanwhile.is_left_out())
        };
        let concerns = self.concerns.iter().filter(|(id, _)| is_refused(id));
        let by_policy = concerns.flat_map(|(_, concern)| &concern.refused);
        let by_policy = by_policy.map(|(name, refused)| (name, refused.why));
        let direct = reconciler.refusing_direct().map(|name| (name, Refusal::DirectDial));
        // What is refused at the Service itself tells more.
        let all = direct.chain(no_room).chain(by_policy);
        all.map(|(name, why)| (Arc::clone(name), why)).collect()
    }
}
