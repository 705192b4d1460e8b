//! Reaches the API server without its ClusterIP: at the known endpoints of `default/kubernetes`.
//!
//! An agent in a Pod gets the ClusterIP of that Service. On a node without kube-proxy the agent
//! itself translates this ClusterIP, and the installed endpoints may be gone. Then only the last
//! known endpoints lead to a server with newer ones.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use topo_lb_core::cluster::slice::SliceId;
use topo_lb_core::cluster::{Change, Protocol, Service, ServiceId, Slice, Update};

/// The last known state of `default/kubernetes`.
#[derive(Debug, Default)]
struct LastObjects {
    service: Option<Service>,
    slices: BTreeMap<SliceId, Slice>,
}

fn is_bootstrap(id: &ServiceId) -> bool {
    &*id.namespace == "default" && &*id.name == "kubernetes"
}

impl LastObjects {
    fn observe(&mut self, update: &Update) {
        match update {
            Update::Service(Change::Applied(service)) => self.put_service(service),
            Update::Service(Change::Deleted(id)) if is_bootstrap(id) => self.service = None,
            Update::Slice(Change::Applied(slice)) => self.put_slice(slice),
            Update::Slice(Change::Deleted(id)) => {
                self.slices.remove(id);
            }
            Update::Service(Change::Listed(all, unread)) => {
                if !unread.iter().any(is_bootstrap) {
                    self.service = None;
                }
                all.iter().for_each(|service| self.put_service(service));
            }
            Update::Slice(Change::Listed(all, unread)) => {
                self.slices.retain(|id, _| unread.contains(id));
                all.iter().for_each(|slice| self.put_slice(slice));
            }
            _ => {}
        }
    }

    fn put_service(&mut self, service: &Service) {
        if is_bootstrap(&service.id) {
            self.service = Some(service.clone());
        }
    }

    fn put_slice(&mut self, slice: &Slice) {
        if slice.service.as_ref().is_some_and(is_bootstrap) {
            self.slices.insert(slice.id.clone(), slice.clone());
        } else {
            self.slices.remove(&slice.id);
        }
    }

    /// The serving endpoints behind `host` and `port`, if these are a frontend of the Service.
    fn endpoints(&self, host: &str, port: u16) -> Vec<SocketAddr> {
        let Some(service) = self.service.as_ref().filter(|service| is_named(service, host)) else {
            return Vec::new();
        };
        let ports = service.ports.iter();
        let Some(wanted) =
            ports.filter(|it| it.protocol == Protocol::Tcp).find(|it| it.port == port)
        else {
            return Vec::new();
        };
        let mut endpoints = Vec::new();
        for slice in self.slices.values() {
            let Some(target) = slice.ports.iter().find(|it| wanted.matches(it)) else { continue };
            let serving = slice.endpoints.iter().filter(|it| it.ready || it.serving);
            endpoints.extend(serving.map(|it| SocketAddr::new(it.address, target.port)));
        }
        endpoints.sort_unstable();
        endpoints.dedup();
        endpoints
    }
}

/// Whether `host` is one of its ClusterIPs, or its name in the cluster's DNS.
fn is_named(service: &Service, host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    match bare.parse::<IpAddr>() {
        Ok(address) => service.cluster_ips.contains(&address),
        Err(_) => {
            host == "kubernetes.default"
                || host == "kubernetes.default.svc"
                || host.starts_with("kubernetes.default.svc.")
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ApiRoute {
    /// An endpoint of `default/kubernetes`.
    Endpoint(SocketAddr),
    /// The host and port of the URL.
    Url,
}

/// The routes to one API server, best first. Clones share the list.
#[derive(Clone, Debug)]
pub(super) struct Routes(Arc<Mutex<Choice>>);

#[derive(Debug)]
struct Choice {
    host: String,
    port: u16,
    /// Random, so that agents begin with different endpoints.
    random: u64,
    known: LastObjects,
    routes: Vec<ApiRoute>,
    /// Index of the first route to try.
    first: usize,
    /// When the first route was last changed because of a failure.
    turned: Option<Instant>,
}

/// Failures within this time count as one, because requests share a route.
const ONE_FAILURE: Duration = Duration::from_millis(200);

impl Routes {
    /// Routes to the server of a URL. `random` selects the first endpoint, so that agents differ.
    pub(super) fn new(host: &str, port: u16, random: u64) -> Self {
        Self(Arc::new(Mutex::new(Choice {
            host: host.to_owned(),
            port,
            random,
            known: LastObjects::default(),
            routes: vec![ApiRoute::Url],
            first: 0,
            turned: None,
        })))
    }

    /// Updates the routes if `update` concerns `default/kubernetes`.
    pub(super) fn observe(&self, update: &Update) {
        let mut choice = self.lock();
        choice.known.observe(update);
        let mut endpoints = choice.known.endpoints(&choice.host, choice.port);
        if let Some(begin) = choice.random.checked_rem(endpoints.len() as u64) {
            endpoints.rotate_left(usize::try_from(begin).unwrap_or_default());
        }
        let routes: Vec<_> =
            endpoints.into_iter().map(ApiRoute::Endpoint).chain([ApiRoute::Url]).collect();
        if routes != choice.routes {
            choice.routes = routes;
            choice.first = 0;
        }
    }

    /// The endpoints and the URL's own address, beginning with the current first.
    pub(super) fn in_order(&self) -> Vec<ApiRoute> {
        let choice = self.lock();
        let mut routes = choice.routes.clone();
        routes.rotate_left(choice.first);
        routes
    }

    /// Makes this route the first, because it accepts connections.
    pub(super) fn connected(&self, route: ApiRoute) {
        let mut choice = self.lock();
        if let Some(at) = choice.routes.iter().position(|known| *known == route) {
            choice.first = at;
        }
    }

    /// Makes the next route the first, because requests by the first one fail.
    pub(super) fn turn(&self, now: Instant) {
        let mut choice = self.lock();
        if choice.turned.is_some_and(|turned| now.duration_since(turned) < ONE_FAILURE) {
            return;
        }
        choice.turned = Some(now);
        choice.first = (choice.first + 1) % choice.routes.len();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Choice> {
        // No code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use topo_lb_core::cluster::{Endpoint, Placement, Port};

    fn kubernetes() -> Service {
        Service {
            id: ServiceId { namespace: "default".into(), name: "kubernetes".into() },
            cluster_ips: vec![[10, 96, 0, 1].into()],
            ports: vec![Port { name: "https".into(), port: 443, protocol: Protocol::Tcp }],
            ..Service::default()
        }
    }

    fn slice(hosts: &[(u8, bool)]) -> Slice {
        let endpoint = |&(host, serving): &(u8, bool)| Endpoint {
            ready: false,
            serving,
            ..Endpoint::new([172, 30, 0, host].into(), Placement::default())
        };
        Slice {
            id: SliceId { namespace: "default".into(), name: "kubernetes".into() },
            service: Some(kubernetes().id),
            ports: vec![Port { name: "https".into(), port: 6443, protocol: Protocol::Tcp }],
            endpoints: hosts.iter().map(endpoint).collect(),
            headless: false,
            mirrored: false,
            triggered: None,
            ready_since: Vec::new(),
        }
    }

    fn endpoint(host: u8) -> ApiRoute {
        ApiRoute::Endpoint(([172, 30, 0, host], 6443).into())
    }

    fn told(host: &str, port: u16, random: u64) -> Routes {
        let routes = Routes::new(host, port, random);
        routes.observe(&Update::Service(Change::Applied(kubernetes())));
        routes.observe(&Update::Slice(Change::Applied(slice(&[(2, true), (1, true), (3, false)]))));
        routes
    }

    #[test]
    fn endpoints_that_serve_come_before_the_address_of_the_service() {
        for host in ["10.96.0.1", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
        {
            assert_eq!(
                told(host, 443, 4).in_order(),
                [endpoint(1), endpoint(2), ApiRoute::Url],
                "{host}"
            );
        }
    }

    #[test]
    fn agents_begin_with_different_endpoints() {
        for (random, first) in [(0, 1), (1, 2), (2, 1), (3, 2)] {
            let order = told("10.96.0.1", 443, random).in_order();
            assert_eq!((order[0], order[2]), (endpoint(first), ApiRoute::Url));
        }
    }

    #[test]
    fn a_server_that_is_not_behind_the_service_is_reached_by_its_address_alone() {
        for (host, port) in [("127.0.0.1", 10_261), ("10.96.0.1", 6_443), ("example.com", 443)] {
            assert_eq!(told(host, port, 4).in_order(), [ApiRoute::Url], "{host}:{port}");
        }
    }

    #[test]
    fn the_route_that_served_last_is_tried_first() {
        let routes = told("10.96.0.1", 443, 4);
        routes.connected(endpoint(2));
        assert_eq!(routes.in_order(), [endpoint(2), ApiRoute::Url, endpoint(1)]);
    }

    #[test]
    fn what_answers_and_is_of_no_use_comes_last_until_the_others_were_tried() {
        let routes = told("10.96.0.1", 443, 4);
        let now = Instant::now();
        routes.turn(now);
        routes.turn(now + Duration::from_millis(1));
        assert_eq!(routes.in_order(), [endpoint(2), ApiRoute::Url, endpoint(1)], "one failure");
        routes.turn(now + Duration::from_secs(1));
        routes.turn(now + Duration::from_secs(2));
        assert_eq!(routes.in_order(), [endpoint(1), endpoint(2), ApiRoute::Url]);
    }

    #[test]
    fn endpoints_that_are_gone_are_not_tried() {
        let routes = told("10.96.0.1", 443, 4);
        routes.observe(&Update::Slice(Change::Listed(vec![slice(&[(9, true)])], Vec::new())));
        assert_eq!(routes.in_order(), [endpoint(9), ApiRoute::Url]);
        routes.observe(&Update::Slice(Change::Listed(Vec::new(), Vec::new())));
        assert_eq!(routes.in_order(), [ApiRoute::Url]);
    }
}
