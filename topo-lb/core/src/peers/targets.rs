//! Which other nodes have endpoints of Services with direct return, and which frontends these have.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::cluster::{Family, Service, ServiceId, State};
use crate::topology::exposed::Exposing;
use crate::topology::returns_directly;

/// What a change of Services means for the probes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// An endpoint of each node, by family; `None`: there is none any more.
    pub nodes: BTreeMap<(Arc<str>, Family), Option<IpAddr>>,
    /// Whether each of these is a frontend.
    pub frontends: BTreeMap<IpAddr, bool>,
}

impl Changes {
    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.frontends.is_empty()
    }
}

/// What one Service has.
#[derive(Debug, Default, PartialEq, Eq)]
struct Part {
    frontends: Vec<IpAddr>,
    /// One endpoint of each node and family.
    endpoints: BTreeMap<(Arc<str>, Family), IpAddr>,
}

/// What all Services have. A change costs what the changed Services have.
#[derive(Debug, Default)]
pub struct Targets {
    parts: BTreeMap<ServiceId, Part>,
    /// Of how many Services each is a frontend.
    frontends: BTreeMap<IpAddr, u32>,
    /// The endpoints of each node and family, and how many Services name them.
    endpoints: BTreeMap<(Arc<str>, Family), BTreeMap<IpAddr, u32>>,
}

impl Targets {
    /// Looks at Services that may have changed.
    pub fn look<'a>(
        &mut self,
        state: &State,
        node: &str,
        exposing: &Exposing,
        services: impl IntoIterator<Item = &'a ServiceId>,
    ) -> Changes {
        let mut changes = Changes::default();
        for id in services {
            let new = state.service(id).and_then(|it| part(state, node, exposing, it));
            if new.as_ref() == self.parts.get(id) {
                continue;
            }
            // First what comes: what stays is not told to go.
            for (part, by) in [(new.as_ref(), 1), (self.parts.get(id), -1)] {
                let Some(part) = part else { continue };
                for &frontend in &part.frontends {
                    let had = self.frontends.contains_key(&frontend);
                    let has = count(&mut self.frontends, frontend, by);
                    if had != has {
                        changes.frontends.insert(frontend, has);
                    }
                }
                for (of, endpoint) in &part.endpoints {
                    let endpoints = self.endpoints.entry(of.clone()).or_default();
                    let first = |all: &BTreeMap<IpAddr, u32>| all.keys().next().copied();
                    let before = first(endpoints);
                    count(endpoints, *endpoint, by);
                    let now = first(endpoints);
                    if now != before {
                        changes.nodes.insert(of.clone(), now);
                    }
                    if now.is_none() {
                        self.endpoints.remove(of);
                    }
                }
            }
            match new {
                Some(new) => self.parts.insert(id.clone(), new),
                None => self.parts.remove(id),
            };
        }
        changes
    }
}

/// Counts one more or one less; returns whether there is any.
fn count(all: &mut BTreeMap<IpAddr, u32>, address: IpAddr, by: i32) -> bool {
    let counted = all.entry(address).or_default();
    *counted = counted.saturating_add_signed(by);
    let is_any = *counted > 0;
    if !is_any {
        all.remove(&address);
    }
    is_any
}

/// What a Service has; `None` if its packets are never sent on.
fn part(state: &State, node: &str, exposing: &Exposing, service: &Service) -> Option<Part> {
    if service.skipped.is_some() || !returns_directly(state, node, exposing, service) {
        return None;
    }
    let mut frontends: Vec<IpAddr> = exposing.own_addresses(service).collect();
    frontends.sort_unstable();
    frontends.dedup();
    let has = |family| frontends.iter().any(|frontend| Family::of(*frontend) == family);
    let [has4, has6] = Family::BOTH.map(has);
    let mut endpoints = BTreeMap::new();
    let all = state.slices(&service.id).filter(|(_, slice)| !slice.headless);
    for endpoint in all.flat_map(|(_, slice)| &slice.endpoints) {
        let Some(of) = endpoint.node().filter(|of| &***of != node) else { continue };
        let family = Family::of(endpoint.address);
        if if family == Family::V4 { has4 } else { has6 } {
            let one = endpoints.entry((Arc::clone(of), family)).or_insert(endpoint.address);
            *one = endpoint.address.min(*one);
        }
    }
    (has4 || has6).then_some(Part { frontends, endpoints })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Change, Endpoint, Exposure, Placement, Slice, SliceId, Update};

    const HERE: &str = "here";

    fn id(name: &str) -> ServiceId {
        ServiceId { namespace: "default".into(), name: name.into() }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn service(name: &str, balancers: &[&str]) -> Update {
        let load_balancer_ips = balancers.iter().map(|text| ip(text)).collect();
        let exposure = Exposure { load_balancer_ips, ..Exposure::default() };
        let exposure = Some(Arc::new(exposure));
        Update::Service(Change::Applied(Service { id: id(name), exposure, ..Service::default() }))
    }

    fn slice(name: &str, endpoints: &[(&str, &str)]) -> Update {
        let endpoint =
            |&(address, node): &(&str, &str)| Endpoint::new(ip(address), Placement::on(node));
        Update::Slice(Change::Applied(Slice {
            id: SliceId { namespace: "default".into(), name: name.into() },
            service: Some(id(name)),
            endpoints: endpoints.iter().map(endpoint).collect(),
            ..Slice::default()
        }))
    }

    /// What becomes different, in words.
    fn look(targets: &mut Targets, state: &mut State, updates: Vec<Update>) -> Vec<String> {
        let exposing = Exposing { direct_return: true, ..Exposing::everything() };
        let mut all = Vec::new();
        for update in updates {
            let changed = state.apply(update, HERE);
            let Changes { nodes, frontends } =
                targets.look(state, HERE, &exposing, &changed.services);
            all.extend(frontends.into_iter().map(|(address, is)| format!("{address} {is}")));
            all.extend(nodes.into_iter().map(|((node, family), endpoint)| match endpoint {
                Some(endpoint) => format!("{node} {endpoint}"),
                None => format!("{node} {family} none"),
            }));
        }
        all
    }

    #[test]
    fn other_nodes_are_asked_at_their_first_endpoint_until_they_have_none() {
        let (mut targets, mut state) = (Targets::default(), State::default());
        let mut look = |updates| look(&mut targets, &mut state, updates);
        let all = [("10.0.1.2", "b"), ("10.0.1.1", "b"), ("10.0.2.1", "c"), ("10.0.0.1", HERE)];
        let said = look(vec![service("web", &["203.0.113.1"]), slice("web", &all)]);
        assert_eq!(said, ["203.0.113.1 true", "b 10.0.1.1", "c 10.0.2.1"]);
        assert_eq!(look(vec![slice("web", &all)]), [""; 0], "nothing differs");
        assert_eq!(look(vec![slice("web", &all[..1])]), ["b 10.0.1.2", "c IPv4 none"]);
        assert_eq!(look(vec![service("web", &[])]), ["203.0.113.1 false", "b IPv4 none"]);
        assert!(targets.endpoints.is_empty() && targets.frontends.is_empty());
    }

    #[test]
    fn what_two_services_share_stays_until_both_are_gone() {
        let (mut targets, mut state) = (Targets::default(), State::default());
        let mut look = |updates| look(&mut targets, &mut state, updates);
        let of = |name| vec![service(name, &["203.0.113.1"]), slice(name, &[("10.0.1.1", "b")])];
        look([of("one"), of("two")].concat());
        assert_eq!(look(vec![slice("one", &[])]), [""; 0]);
        assert_eq!(look(vec![slice("two", &[])]), ["b IPv4 none"]);
        assert_eq!(look(vec![service("one", &[])]), [""; 0]);
        assert_eq!(look(vec![service("two", &[])]), ["203.0.113.1 false"]);
    }

    #[test]
    fn a_family_without_a_frontend_local_traffic_and_who_opts_out_are_left_out() {
        let (mut targets, mut state) = (Targets::default(), State::default());
        let mut look = |updates| look(&mut targets, &mut state, updates);
        let both = [("10.0.1.1", "b"), ("fd00::1", "b")];
        let said = look(vec![slice("web", &both), service("web", &["2001:db8::7"])]);
        assert_eq!(said, ["2001:db8::7 true", "b fd00::1"]);
        let Update::Service(Change::Applied(mut web)) = service("web", &["2001:db8::7"]) else {
            panic!("a Service")
        };
        web.external_local = true;
        let said = look(vec![Update::Service(Change::Applied(web.clone()))]);
        assert_eq!(said, ["2001:db8::7 false", "b IPv6 none"]);
        web.external_local = false;
        let said = look(vec![Update::Service(Change::Applied(web.clone()))]);
        assert_eq!(said, ["2001:db8::7 true", "b fd00::1"]);
        Arc::make_mut(&mut web.policy).direct_return = Some("false".into());
        let said = look(vec![Update::Service(Change::Applied(web))]);
        assert_eq!(said, ["2001:db8::7 false", "b IPv6 none"], "it opts out");
    }
}
