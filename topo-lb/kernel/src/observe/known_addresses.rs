//! Which Service ports addresses are of, and how far endpoints are: pure.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use topo_lb_common::backend::Locality;
use topo_lb_core::cluster::{Protocol, State};
use topo_lb_core::topology::{distance, port_name};

/// Most addresses of either kind that are kept: more than a node dials between two changes, as a rule.
const MOST: usize = 16_384;

/// What is known of addresses that TCP connections dialled, or went to.
///
/// To find it takes a pass over all Services, and one over all EndpointSlices. So it is kept as long as no object
/// changes.
#[derive(Debug, Default)]
pub struct KnownAddresses {
    /// [`State::revision`] for which it holds.
    revision: u64,
    /// The Service port that has an address as its frontend; `None`: no Service has it.
    services: HashMap<SocketAddr, Option<Arc<str>>>,
    endpoints: HashMap<SocketAddr, Endpoint>,
}

/// What is known of an address as an endpoint's.
#[derive(Clone, Debug, Default)]
struct Endpoint {
    /// How far it is; `None`: no endpoint has this IP address.
    locality: Option<Locality>,
    /// The Service port that has it as an endpoint; of several, the first by name with a ClusterIP: that says what
    /// becomes of direct dials for all of them.
    name: Option<Arc<str>>,
}

impl KnownAddresses {
    /// The Service port that has this address as its frontend, after [`find_services`](Self::find_services).
    pub(super) fn service(&self, dialled: &SocketAddr) -> Option<&Arc<str>> {
        self.services.get(dialled)?.as_ref()
    }

    /// The Service port that has this address as an endpoint, after [`find_endpoints`](Self::find_endpoints).
    pub(super) fn endpoint_of(&self, address: &SocketAddr) -> Option<&Arc<str>> {
        self.endpoints.get(address)?.name.as_ref()
    }

    /// Whether an endpoint has this IP address, at any port, likewise.
    pub(super) fn is_endpoint(&self, address: &SocketAddr) -> bool {
        self.endpoints.get(address).is_some_and(|it| it.locality.is_some())
    }

    /// How far an endpoint is, likewise. One that is gone is elsewhere.
    pub(super) fn locality(&self, address: &SocketAddr) -> Locality {
        let known = self.endpoints.get(address).and_then(|it| it.locality);
        known.unwrap_or(Locality::Elsewhere)
    }

    /// Finds the Service ports of these addresses.
    pub(super) fn find_services(
        &mut self,
        state: &State,
        dialled: impl Iterator<Item = SocketAddr>,
    ) {
        if self.revision != state.revision() {
            *self = Self { revision: state.revision(), ..Self::default() };
        }
        let wanted = unknown(&mut self.services, dialled);
        if wanted.is_empty() {
            return;
        }
        let addresses: HashSet<IpAddr> = wanted.iter().map(SocketAddr::ip).collect();
        self.services.extend(wanted.iter().map(|address| (*address, None)));
        for service in state.services().filter_map(|id| state.service(id)) {
            let exposed = service.exposure.iter().flat_map(|exposure| {
                exposure.load_balancer_ips.iter().chain(&exposure.external_ips)
            });
            let own = service.cluster_ips.iter().chain(exposed);
            for address in own.filter(|address| addresses.contains(address)) {
                for port in service.ports.iter().filter(|port| port.protocol == Protocol::Tcp) {
                    let frontend = SocketAddr::new(*address, port.port);
                    if let Some(name) = self.services.get_mut(&frontend) {
                        name.get_or_insert_with(|| port_name(service, port));
                    }
                }
            }
        }
    }

    /// Finds the endpoints with these addresses, as seen from `node`. [`find_services`](Self::find_services) comes
    /// first: it forgets what has changed.
    pub(super) fn find_endpoints(
        &mut self,
        state: &State,
        node: &str,
        addresses: impl Iterator<Item = SocketAddr>,
    ) {
        let wanted = unknown(&mut self.endpoints, addresses);
        if wanted.is_empty() {
            return;
        }
        let addresses: HashSet<IpAddr> = wanted.iter().map(SocketAddr::ip).collect();
        let (mut localities, mut ports_of) = (HashMap::new(), HashMap::new());
        for (_, slice) in state.all_slices() {
            for endpoint in slice.endpoints.iter().filter(|it| addresses.contains(&it.address)) {
                localities
                    .entry(endpoint.address)
                    .or_insert_with(|| distance(state, node, endpoint));
                let Some(service) = state.service(&slice.service) else { continue };
                for own in slice.ports.iter().filter(|own| own.protocol == Protocol::Tcp) {
                    let address = SocketAddr::new(endpoint.address, own.port);
                    let mut ports = service.ports.iter();
                    let Some(port) = ports.find(|port| port.matches(own)) else { continue };
                    if wanted.contains(&address) {
                        let rank = (service.cluster_ips.is_empty(), &service.id, port.port);
                        let first = ports_of.entry(address).or_insert((rank, service, port));
                        if rank < first.0 {
                            *first = (rank, service, port);
                        }
                    }
                }
            }
        }
        self.endpoints.extend(wanted.into_iter().map(|address| {
            let name = ports_of.get(&address).map(|(_, service, port)| port_name(service, port));
            (address, Endpoint { locality: localities.get(&address.ip()).copied(), name })
        }));
    }
}

/// Those of the addresses that `known` lacks, after making room for them.
fn unknown<T>(
    known: &mut HashMap<SocketAddr, T>,
    addresses: impl Iterator<Item = SocketAddr>,
) -> HashSet<SocketAddr> {
    let all: HashSet<SocketAddr> = addresses.collect();
    let lacks = |known: &HashMap<_, _>| all.iter().filter(|it| !known.contains_key(*it)).count();
    if known.len() + lacks(known) > MOST {
        known.clear();
    }
    all.into_iter().filter(|address| !known.contains_key(address)).collect()
}
