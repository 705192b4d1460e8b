//! Where TCP connections went that topo-lb did not translate: pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use topo_lb_common::backend::Locality;
use topo_lb_common::counters::sum;
use topo_lb_common::far_endpoints::{MOST_FAR_ENDPOINTS, Moved};
use topo_lb_common::totals::{Failure, Totals};

use super::{ByServicePort, KnownAddresses};
use crate::datapath::maps::ended::EndedConnection;
use crate::datapath::maps::totals::Group;
use topo_lb_core::cluster::{ServiceId, State};
use topo_lb_core::metrics::Tier;

/// Where a connection went that counts for no Service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Other {
    /// To the address of an endpoint, at a port that no Service has; or to another address in the Pods' ranges.
    Pods,
    /// To a Service that another proxy translates; it is not known to which endpoint.
    Unknown,
    /// To anything else.
    Elsewhere,
}

impl Other {
    /// All.
    pub const ALL: [Self; 3] = [Self::Pods, Self::Unknown, Self::Elsewhere];

    /// The name in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pods => "pods",
            Self::Unknown => "unknown",
            Self::Elsewhere => "elsewhere",
        }
    }
}

/// What connections moved that topo-lb did not translate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Untranslated {
    /// By Service port and locality, with [`Tier::Left`] or [`Tier::Direct`].
    pub by_service: BTreeMap<Group, Totals>,
    /// Connections of [`Tier::Left`], those that failed too.
    pub connections: ByServicePort,
    /// To everything else: what was moved, and how many connections were established.
    pub others: BTreeMap<Other, (Moved, u64)>,
    /// To endpoints outside of this node's zone; `None` is all of those beyond as many as the programs have room for.
    pub far: BTreeMap<Option<IpAddr>, Moved>,
}

impl Untranslated {
    /// Counts what has ended, as seen from `node`. `pods`: ranges of the Pods' addresses, if they are known. `ask`
    /// finds out to which endpoint another proxy sent each connection, in their order.
    pub fn count(
        &mut self,
        known: &mut KnownAddresses,
        (state, node): (&State, &str),
        pods: &[IpNet],
        ended: &[EndedConnection],
        ask: impl FnOnce(&[EndedConnection]) -> Vec<Option<SocketAddr>>,
    ) {
        known.find_services(state, ended.iter().map(|one| one.dialled));
        let (left, rest): (Vec<_>, Vec<_>) =
            ended.iter().copied().partition(|one| known.service(&one.dialled).is_some());
        let answers = if left.is_empty() { Vec::new() } else { ask(&left) };
        let answers = answers.into_iter().chain(std::iter::repeat(None));
        let left: Vec<_> = left.into_iter().zip(answers).collect();
        let dialled = rest.iter().map(|one| one.dialled);
        let answered = left.iter().filter_map(|(_, endpoint)| *endpoint);
        known.find_endpoints(state, node, dialled.chain(answered));
        for (one, endpoint) in left {
            match (known.service(&one.dialled), endpoint) {
                (Some(name), Some(endpoint)) => {
                    let locality = known.locality(&endpoint);
                    self.add(name, locality, Tier::Left, endpoint.ip(), &one.totals);
                }
                _ => self.add_other(Other::Unknown, &one.totals),
            }
        }
        for one in rest {
            let address = one.dialled.ip();
            match known.endpoint_of(&one.dialled) {
                Some(name) => {
                    let locality = known.locality(&one.dialled);
                    self.add(name, locality, Tier::Direct, address, &one.totals);
                }
                None => {
                    let is_pod = known.is_endpoint(&one.dialled)
                        || pods.iter().any(|range| range.contains(&address));
                    let to = if is_pod { Other::Pods } else { Other::Elsewhere };
                    self.add_other(to, &one.totals);
                }
            }
        }
    }

    fn add(
        &mut self,
        name: &Arc<str>,
        locality: Locality,
        tier: Tier,
        endpoint: IpAddr,
        more: &Totals,
    ) {
        let group = Group { service: Some(Arc::clone(name)), locality, tier };
        let totals = self.by_service.entry(group).or_default();
        *totals = sum([&*totals, more]);
        if tier == Tier::Left {
            *self.connections.entry((Arc::clone(name), locality)).or_default() += 1;
        }
        if locality > Locality::Zone && more.sent | more.received != 0 {
            let has_room = self.far.len() < MOST_FAR_ENDPOINTS as usize;
            let is_known = has_room || self.far.contains_key(&Some(endpoint));
            add_moved(self.far.entry(is_known.then_some(endpoint)).or_default(), more);
        }
    }

    fn add_other(&mut self, to: Other, more: &Totals) {
        let (moved, connections) = self.others.entry(to).or_default();
        add_moved(moved, more);
        let is_established = Failure::ALL.iter().all(|one| more.failures[*one as usize] == 0);
        *connections += u64::from(is_established);
    }

    /// Drops what is known of Services that are gone.
    pub fn keep(&mut self, state: &State) {
        let exists = |name: &Arc<str>| {
            let service = name.rsplit_once(':').and_then(|(service, _)| service.split_once('/'));
            service.is_some_and(|(namespace, name)| {
                let id = ServiceId { namespace: namespace.into(), name: name.into() };
                state.service(&id).is_some()
            })
        };
        self.by_service.retain(|group, _| group.service.as_ref().is_some_and(exists));
        self.connections.retain(|(name, _), _| exists(name));
    }
}

fn add_moved(moved: &mut Moved, more: &Totals) {
    moved.sent = moved.sent.saturating_add(more.sent);
    moved.received = moved.received.saturating_add(more.received);
}
