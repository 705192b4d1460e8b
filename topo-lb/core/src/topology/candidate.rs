//! The endpoints of a Service port, and which of them can be used.

use std::collections::HashSet;
use std::net::SocketAddr;

use topo_lb_common::backend::Locality;

use crate::cluster::kept::Endpoints;
use crate::cluster::{Clients, Endpoint, Family, Frontend, Port, Service, ServiceId, State};

use super::label::{Here, Site};

/// The families in which a Service has a ClusterIP, in the order of its ClusterIPs; both of a Service without one.
pub(super) fn families(service: &Service) -> Vec<Family> {
    if service.cluster_ips.is_empty() {
        return Family::BOTH.to_vec();
    }
    let mut families = Vec::with_capacity(2);
    for family in service.cluster_ips.iter().copied().map(Family::of) {
        if !families.contains(&family) {
            families.push(family);
        }
    }
    families
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) address: SocketAddr,
    pub(super) site: Site<'a>,
    /// A person may have written it: no Pod need have this address.
    pub(super) mirrored: bool,
}

impl Candidate<'_> {
    /// Serves at least its existing connections.
    pub(super) fn serves(&self) -> bool {
        self.site.endpoint.ready || self.site.endpoint.serving
    }

    fn drains(&self) -> bool {
        self.site.endpoint.serving && self.site.endpoint.terminating
    }

    pub(super) fn is_hinted(&self) -> bool {
        let endpoint = self.site.endpoint;
        !endpoint.for_nodes().is_empty() || !endpoint.for_zones().is_empty()
    }
}

/// The candidates of one Service port in one address family, sorted by address and port.
///
/// Slice ports match by name and protocol, as in kube-proxy. Of duplicates of an address and port
/// one is kept: first one that is not terminating, then a ready one, then a serving one, then the
/// one in the slice with the lowest name.
pub(super) fn of<'a>(
    state: &'a State,
    service: &Service,
    port: &Port,
    family: Family,
) -> Vec<Candidate<'a>> {
    among(state, service, port, family, |slice| counts(slice, service))
}

/// The same of the slices that do not count.
pub(super) fn not_counted<'a>(
    state: &'a State,
    service: &Service,
    port: &Port,
    family: Family,
) -> Vec<Candidate<'a>> {
    among(state, service, port, family, |slice| !counts(slice, service))
}

/// Whether a slice is for proxies, or its Service has no address that proxies could translate. kube-proxy
/// does not even watch slices labelled `service.kubernetes.io/headless` (cmd/kube-proxy/app/server.go); the
/// resolver answers from them.
pub(super) fn counts(slice: &Endpoints, service: &Service) -> bool {
    !slice.headless || service.skipped.is_some()
}

fn among<'a>(
    state: &'a State,
    service: &Service,
    port: &Port,
    family: Family,
    is_meant: impl Fn(&Endpoints) -> bool,
) -> Vec<Candidate<'a>> {
    let mut candidates = Vec::new();
    for (_, slice) in state.slices(&service.id).filter(|(_, slice)| is_meant(slice)) {
        for slice_port in slice.ports.iter().filter(|own| port.matches(own)) {
            let own = slice.endpoints.iter().filter(|one| Family::of(one.address) == family);
            candidates.extend(own.map(|endpoint| Candidate {
                address: SocketAddr::new(endpoint.address, slice_port.port),
                site: Site::of(state, endpoint),
                mirrored: slice.mirrored,
            }));
        }
    }
    let rank = |one: &Endpoint| (one.terminating, !one.ready, !one.serving);
    candidates.sort_by_key(|one| (one.address, rank(one.site.endpoint)));
    candidates.dedup_by_key(|one| one.address);
    candidates
}

/// The state of the endpoints that a policy chooses among.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stock {
    /// Ready endpoints.
    Ready,
    /// No endpoint is ready: terminating endpoints that still serve are used.
    Draining,
}

/// The usable members of `among`, which are indices of `candidates`, and their stock.
pub(super) fn usable(candidates: &[Candidate<'_>], among: &[usize]) -> (Stock, Vec<usize>) {
    let all = |test: fn(&Candidate<'_>) -> bool| -> Vec<usize> {
        among.iter().copied().filter(|&index| test(&candidates[index])).collect()
    };
    let ready = all(|one| one.site.endpoint.ready);
    if ready.is_empty() {
        (Stock::Draining, all(|one| one.drains()))
    } else {
        (Stock::Ready, ready)
    }
}

/// The endpoints that serve a frontend of a Service on any node: those that its slices list as ready
/// or serving. Also answers for bypassed Services.
#[must_use]
pub fn serving(state: &State, id: &ServiceId, frontend: &Frontend) -> HashSet<SocketAddr> {
    let Some(service) = state.service(id) else {
        return HashSet::new();
    };
    let Frontend { address, port: number, protocol, clients } = *frontend;
    // An endpoint is no address of a port: any of them may have it.
    let is_dialled =
        |place| clients == Clients::Steered || service.is_dialled_at(place, address, number);
    let ports = service.ports.iter().enumerate();
    let ports = ports.filter(|(place, port)| port.protocol == protocol && is_dialled(*place));
    ports
        .flat_map(|(_, port)| of(state, service, port, Family::of(address)))
        .filter(Candidate::serves)
        .map(|one| one.address)
        .collect()
}

/// Every endpoint of a Service port in one family, sorted by address and port, and where it is.
#[must_use]
pub fn sites<'a>(
    state: &'a State,
    service: &Service,
    port: &Port,
    family: Family,
) -> Vec<(SocketAddr, Site<'a>)> {
    let all = of(state, service, port, family);
    all.into_iter().map(|one| (one.address, one.site)).collect()
}

/// How far an endpoint is from `node`.
#[must_use]
pub fn distance(state: &State, node: &str, endpoint: &Endpoint) -> Locality {
    Site::of(state, endpoint).locality(Here::of(state, node))
}

/// How far the endpoint of a Service port at this address is from `node`; `None` if it has none there.
#[must_use]
pub fn locality(
    state: &State,
    node: &str,
    service: &Service,
    port: &Port,
    endpoint: SocketAddr,
) -> Option<Locality> {
    let all = of(state, service, port, Family::of(endpoint.ip()));
    let found = all.into_iter().find(|one| one.address == endpoint)?;
    Some(found.site.locality(Here::of(state, node)))
}
