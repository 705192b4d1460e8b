//! The listeners of health checks. They share the limits of connections: a Service with a crowd of
//! clients takes nothing from the rest of the agent.

use std::collections::BTreeMap;
use std::future::ready;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::any;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::sleep;
use tracing::{info, warn};

use super::answers;
use super::check::Wanted;
use super::proxy::Proxy;
use crate::events::concern::health_check;
use crate::events::publish::EventPublisher;
use crate::metrics::Figures;
use crate::{
    serve::door::Rooms,
    serve::door::{self},
};
use crate::{
    serve::listen::PAUSE, serve::listen::listen_as_go, serve::listen::reason,
    serve::listen::retried,
};
use topo_lb_core::cluster::ServiceId;
use topo_lb_core::flag::HEALTHZ_BIND_ADDRESS;
use topo_lb_core::once::Once;
use topo_lb_core::rate::Rate;
use topo_lb_kernel::kube_proxy;

/// Rate limit for reporting Services without a listener: a burst, then one per interval. A Service that
/// changes its type a hundred times a second must not fill the log.
const TOLD: (u32, Duration) = (16, Duration::from_secs(10));

/// The listeners in [`Figures::unanswered_health_checks`].
const SERVICES: usize = 0;
const NODE: usize = 1;

type Socket = (ServiceId, SocketAddr);

/// What all listeners have in common.
#[derive(Clone)]
pub(super) struct Common {
    pub(super) node: Arc<str>,
    pub(super) proxy: Arc<Proxy>,
    pub(super) rooms: Rooms,
    pub(super) figures: Arc<Figures>,
    pub(super) publisher: EventPublisher,
}

impl Common {
    fn count_unanswered(&self, place: usize, count: usize) {
        self.figures.unanswered_health_checks[place].store(count as u64, Relaxed);
    }

    /// Answers `/healthz` and `/livez` at this address.
    pub(super) async fn serve_node(self, address: SocketAddr) {
        let advice = format!(
            "load balancers get no answer about this node from topo-lb; kube-proxy has that port while it runs; \
             {HEALTHZ_BIND_ADDRESS} chooses another address"
        );
        let once = || {
            let listener = listen_as_go(address);
            self.count_unanswered(NODE, usize::from(listener.is_err()));
            ready(listener.map_err(|error| reason(&error)))
        };
        let listener = retried("http://", address, &advice, once).await;
        door::serve(listener, of_node(&self.proxy), self.rooms).await;
    }
}

/// `/healthz` and `/livez`.
pub(super) fn of_node(proxy: &Arc<Proxy>) -> Router {
    let (for_healthz, for_livez) = (Arc::clone(proxy), Arc::clone(proxy));
    let healthz =
        async move || answers::of_node(for_healthz.health(), Some(for_healthz.is_eligible()));
    let livez = async move || answers::of_node(for_livez.health(), None);
    Router::new().route("/healthz", any(healthz)).route("/livez", any(livez))
}

/// Every path of a Service's health check.
fn of_service(id: ServiceId, wanted: watch::Receiver<Wanted>, proxy: Arc<Proxy>) -> Router {
    Router::new().fallback(async move || {
        let local = wanted.borrow().checks.get(&id).map_or(0, |check| check.local);
        answers::of_service(&id, local, proxy.health().is_healthy)
    })
}

/// The listeners of Services.
pub(super) struct Servers {
    common: Common,
    /// Most listeners.
    most: usize,
    open: BTreeMap<Socket, JoinHandle<()>>,
    /// Services without a listener, as reported.
    told: Once<ServiceId>,
    rate: Rate,
    /// That kube-proxy has the ports.
    beside: Once,
}

/// Why a Service has no listener.
struct Failure {
    address: SocketAddr,
    why: String,
    is_taken: bool,
}

impl Servers {
    pub(super) fn new(common: Common, most: usize) -> Self {
        let (burst, interval) = TOLD;
        let rate = Rate::new(burst, interval, Instant::now());
        Self { common, most, open: BTreeMap::new(), told: Once::new(), rate, beside: Once::new() }
    }

    /// Listens where it is wanted, until the agent ends.
    pub(super) async fn follow(mut self, mut wanted: watch::Receiver<Wanted>) {
        loop {
            let now = wanted.borrow_and_update().clone();
            let is_complete = self.set(&now, &wanted).await;
            let changed = tokio::select! {
                changed = wanted.changed() => changed,
                () = sleep(PAUSE), if !is_complete => Ok(()),
            };
            if changed.is_err() {
                return;
            }
        }
    }

    /// Closes and opens listeners. Returns whether all are open.
    async fn set(&mut self, now: &Wanted, wanted: &watch::Receiver<Wanted>) -> bool {
        let sockets = now.sockets();
        // Closed before others are opened: one of them may have the port of another.
        for (_, task) in self.open.extract_if(.., |socket, _| !sockets.contains(socket)) {
            task.abort();
            let _ = task.await;
        }
        let mut failed = BTreeMap::new();
        for socket in sockets {
            if self.open.contains_key(&socket) {
                continue;
            }
            let Common { proxy, rooms, .. } = &self.common;
            match self.listen(socket.1) {
                Ok(listener) => {
                    let router = of_service(socket.0.clone(), wanted.clone(), Arc::clone(proxy));
                    let serve = door::serve(listener, router, rooms.clone());
                    self.open.insert(socket, tokio::spawn(serve));
                }
                Err(failure) => {
                    failed.entry(socket.0).or_insert(failure);
                }
            }
        }
        self.common.count_unanswered(SERVICES, failed.len());
        for id in self.told.end_those(|id| !failed.contains_key(id)) {
            if let Some(check) = now.checks.get(&id) {
                info!("the health check of Service {id} is answered at port {}", check.port);
            }
        }
        self.tell(now, &failed).await;
        failed.is_empty()
    }

    fn listen(&self, address: SocketAddr) -> Result<tokio::net::TcpListener, Failure> {
        if self.open.len() >= self.most {
            let most = self.most;
            let why = format!(
                "{most} health checks are answered, and descriptors are kept for the rest of the agent"
            );
            return Err(Failure { address, why, is_taken: false });
        }
        listen_as_go(address).map_err(|error| {
            let is_taken = error.kind() == io::ErrorKind::AddrInUse;
            Failure { address, why: reason(&error), is_taken }
        })
    }

    /// Reports each Service without a listener once. kube-proxy, which has the ports of all Services while
    /// it runs beside the agent, gives the same answers: one line says so, and no action is needed.
    async fn tell(&mut self, now: &Wanted, failed: &BTreeMap<ServiceId, Failure>) {
        let is_new = |(id, _): &(&ServiceId, &Failure)| !self.told.has(id);
        let mut new: Vec<_> = failed.iter().filter(is_new).collect();
        let taken = new.iter().filter(|(_, failure)| failure.is_taken).count();
        let ask = || kube_proxy::mode(kube_proxy::METRICS);
        let mode = match taken {
            0 => None,
            _ => spawn_blocking(ask).await.ok().flatten(),
        };
        if let Some(mode) = &mode {
            new.retain(|(_, failure)| !failure.is_taken);
            if self.beside.begins(()) {
                info!(
                    "kube-proxy runs in mode {mode}, and has the ports of {taken} health checks \
                     of Services until it is stopped"
                );
            }
        }
        if mode.is_none() {
            self.beside.clear();
        }
        let mut news = Vec::new();
        for (id, Failure { address, why, .. }) in new {
            if !self.rate.take(Instant::now()) {
                // The next attempt to listen reports the others.
                break;
            }
            let sentence = format!(
                "load balancers get no answer about this node at healthCheckNodePort {address}: \
                 {why}; retrying every {} s",
                PAUSE.as_secs()
            );
            warn!("Service {id}: {sentence}");
            let uid = now.checks.get(id).and_then(|check| check.uid);
            news.push(health_check(id, uid, &self.common.node, &sentence));
            self.told.begins(id.clone());
        }
        self.common.publisher.tell(news);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use crate::health::Check;
    use crate::readiness::Readiness;

    #[tokio::test]
    async fn a_service_that_comes_and_goes_is_not_told_of_each_time() {
        let here = Ipv4Addr::LOCALHOST.into();
        let taken = TcpListener::bind((here, 0)).expect("a port");
        let port = taken.local_addr().expect("its address").port();
        let figures = Arc::<Figures>::default();
        let (_, ready) = watch::channel(Readiness::default());
        let (_, leaves) = watch::channel(false);
        let (_, receiver) = watch::channel(Wanted::default());
        let common = Common {
            node: "here".into(),
            proxy: Arc::new(Proxy::new(
                Arc::clone(&figures),
                ready,
                false,
                leaves,
                receiver.clone(),
            )),
            rooms: Rooms::new(8),
            publisher: EventPublisher::silent(Arc::clone(&figures)),
            figures,
        };
        let mut servers = Servers::new(common, 8);
        let id = ServiceId { namespace: "a".into(), name: "web".into() };
        let checks = [(id, Check { port, local: 1, uid: None })].into();
        let (none, one) =
            (Wanted::default(), Wanted { checks, addresses: vec![here], is_left: false });
        let mut told = 0;
        for _ in 0..200 {
            assert!(!servers.set(&one, &receiver).await, "the port is taken");
            told += servers.told.count();
            assert!(servers.set(&none, &receiver).await);
        }
        assert!((1..=20).contains(&told), "told {told} times");
    }
}
