//! Runs the resolver, and tells it what it answers.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tracing::{info, warn};

use crate::agent_state::AgentState;
use crate::dns::Options;
use crate::dns::server::Server;
use crate::metrics::Figures;
use topo_lb_core::cluster::{LocalAddresses, Protocol, ServiceId};
use topo_lb_core::dns::lead::{self, Listeners};
use topo_lb_core::dns::names::{SharedNames, Upstreams};
use topo_lb_core::flag::{DNS, DNS_SERVICE};
use topo_lb_core::once::Once;
use topo_lb_core::reconcile::Reconciler;
use topo_lb_core::topology::{self, Bypass, decide, named};
use topo_lb_kernel::datapath::maps::lease::Lease;

/// The resolver, if the agent has one.
pub(super) struct Resolver {
    options: Options,
    pin_dir: PathBuf,
    names: SharedNames,
    /// Services whose names this node answers.
    named: BTreeSet<ServiceId>,
    running: Option<Running>,
    /// Why it does not run, as logged.
    lacks: Once<String>,
    figures: Arc<Figures>,
}

struct Running {
    server: Server,
    /// The host's own addresses at its start, and their devices.
    own: Vec<(IpAddr, Option<Arc<str>>)>,
}

impl Resolver {
    /// Decides all names, and starts to serve if this host allows it.
    pub(super) fn start(options: Options, pin_dir: PathBuf, state: &mut AgentState) -> Self {
        let figures = Arc::clone(&state.telemetry.figures);
        let mut resolver = Self {
            options,
            pin_dir,
            names: SharedNames::default(),
            named: BTreeSet::new(),
            running: None,
            lacks: Once::new(),
            figures,
        };
        let all: Vec<_> = state.reconciler.state().services().cloned().collect();
        resolver.decide(all, &state.reconciler);
        resolver.look(state);
        resolver
    }

    /// Decides again what the cluster's changes have made different. Call it before a plan.
    pub(super) fn keep(&mut self, state: &AgentState) {
        let changed = state.reconciler.changed().cloned().collect();
        self.decide(changed, &state.reconciler);
    }

    fn decide(&mut self, changed: Vec<ServiceId>, reconciler: &Reconciler) {
        let (state, node, scope) = (reconciler.state(), reconciler.node(), reconciler.scope());
        let domain = &self.options.domain;
        for id in changed {
            if id == self.options.service {
                let routes = topology::routes(state, node, scope, None, &id);
                let [udp, tcp] =
                    [Protocol::Udp, Protocol::Tcp].map(|it| lead::upstreams(&routes, it));
                self.names.write(|names| names.set_upstreams(Upstreams { udp, tcp }));
            }
            let asks = state.service(&id).is_some_and(named::is_asked);
            if !asks && !self.named.contains(&id) {
                continue;
            }
            // A decision without these labels could leave a client without an address.
            if topology::waits_for(state, node, scope, &id).is_some() {
                continue;
            }
            let named = named::named(state, node, scope, &id);
            let is_named = named.is_some();
            self.names.write(|names| names.set(&id, domain, named));
            match is_named {
                true => self.named.insert(id),
                false => self.named.remove(&id),
            };
        }
        self.figures.dns.names.store(self.named.len() as u64, Relaxed);
    }

    /// Starts the server if none runs, and again if it died or the host's addresses have changed. Returns
    /// whether the cluster DNS Service has to be planned again.
    pub(super) fn look(&mut self, state: &mut AgentState) -> bool {
        let local = state.reconciler.state().local_addresses();
        let is_fine = |running: &Running| running.server.is_alive() && running.own == own(local);
        if self.running.as_ref().is_some_and(is_fine) {
            return false;
        }
        let local = local.clone();
        self.running = None;
        let mut addresses: Vec<_> =
            local.primary.iter().map(|&ip| SocketAddr::new(ip, self.options.port)).collect();
        match self.serve(&state.reconciler, &addresses, &local) {
            Ok(server) => {
                self.lacks.clear();
                info!(at = ?addresses, service = %self.options.service, "DNS is served");
                self.running = Some(Running { server, own: own(&local) });
            }
            Err(error) => {
                addresses.clear();
                if self.lacks.begins(error.clone()) {
                    warn!(
                        "the cluster DNS answers everything, as without {DNS}: {error}; the agent \
                         retries every second"
                    );
                }
            }
        }
        let service = self.options.service.clone();
        state.reconciler.lead_dns_to(Listeners { service, addresses })
    }

    fn serve(
        &self,
        reconciler: &Reconciler,
        addresses: &[SocketAddr],
        local: &LocalAddresses,
    ) -> Result<Server, String> {
        if addresses.is_empty() {
            return Err("this host has no address of its own".to_owned());
        }
        if self.names.read(|names| !names.has_upstream()) {
            return Err(no_upstream(reconciler, &self.options.service));
        }
        let lease = Lease::open(&self.pin_dir).map_err(|error| error.to_string())?;
        let (names, figures) = (self.names.clone(), Arc::clone(&self.figures));
        Server::start(addresses, local, names, lease, figures)
    }
}

/// Why nobody can be asked what this node does not know itself.
fn no_upstream(reconciler: &Reconciler, service: &ServiceId) -> String {
    let state = reconciler.state();
    let decisions = decide(state, reconciler.node(), reconciler.scope(), service);
    let mut choices = decisions.iter().flat_map(|decision| &decision.choices);
    if choices.any(|choice| choice.bypass == Some(Bypass::OutOfScope)) {
        return format!(
            "Service {service} has no policy, and this agent's scope is opt-in, so its address cannot lead to \
             this node: annotate it, or let the scope be all"
        );
    }
    format!(
        "Service {service} has no ClusterIP and endpoint for DNS here; {DNS_SERVICE} names the cluster DNS"
    )
}

/// The host's own addresses, and their devices.
fn own(local: &LocalAddresses) -> Vec<(IpAddr, Option<Arc<str>>)> {
    local.primary.iter().map(|&own| (own, local.by_device.get(&own).cloned())).collect()
}

#[cfg(test)]
mod tests {
    use topo_lb_core::cluster::{Change, Port, Service, Update};
    use topo_lb_core::topology::Scope;

    use super::*;

    #[test]
    fn a_service_that_is_left_alone_is_told_from_one_that_is_not_there() {
        let id = ServiceId { namespace: "kube-system".into(), name: "kube-dns".into() };
        let said = |scope, is_there| {
            let mut reconciler = Reconciler::new("n1".into(), scope, false);
            let port = Port { name: "dns".into(), port: 53, protocol: Protocol::Udp };
            let service = Service {
                id: id.clone(),
                cluster_ips: vec![IpAddr::from([10, 96, 0, 10])],
                ports: vec![port],
                ..Service::default()
            };
            if is_there {
                reconciler.observe(Update::Service(Change::Applied(service)));
            }
            no_upstream(&reconciler, &id)
        };
        let left = "Service kube-system/kube-dns has no policy, and this agent's scope is opt-in";
        assert!(said(Scope::OptIn, true).starts_with(left), "{}", said(Scope::OptIn, true));
        for (scope, is_there) in [(Scope::OptIn, false), (Scope::All, true)] {
            let said = said(scope, is_there);
            assert!(said.contains("no ClusterIP and endpoint for DNS here"), "{said}");
        }
    }
}
