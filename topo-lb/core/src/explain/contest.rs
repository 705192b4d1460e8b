//! Frontends of a Service port that other Services claim, too.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::quoted::shown_id;
use crate::cluster::{Frontend, FrontendKind, Service};
use crate::topology::claim::Claim;

/// The claims of one Service port among all contested ones.
#[derive(Clone, Copy)]
pub(super) struct Own<'a> {
    pub(super) contested: &'a HashMap<Frontend, Vec<Claim>>,
    pub(super) service: &'a Service,
    /// Its place in `spec.ports`.
    pub(super) place: usize,
}

impl Own<'_> {
    /// What to say of its ClusterIPs, after a sentence; empty if nobody else claims them.
    pub(super) fn cluster_ips(self) -> String {
        let Some(port) = self.service.ports.get(self.place) else { return String::new() };
        let at = |&address| self.at(FrontendKind::ClusterIp, Some(address), port.port);
        let all = self.service.cluster_ips.iter().filter_map(at);
        all.map(|said| format!("; {said}")).collect()
    }

    /// What to say of one of its frontends; a node port has no address. `None` if nobody else claims it.
    pub(super) fn at(
        self,
        kind: FrontendKind,
        address: Option<IpAddr>,
        port: u16,
    ) -> Option<String> {
        let protocol = self.service.ports.get(self.place)?.protocol;
        // Node ports are served at loopback, too, on every node.
        let loopback = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        let addresses = address.map_or(loopback.to_vec(), |address| vec![address]);
        let all = addresses.into_iter().map(|address| Frontend::new(address, port, protocol));
        let (frontend, claims) = all.filter_map(|it| self.contested.get_key_value(&it)).next()?;
        let is_own =
            |claim: &Claim| claim.service == self.service.id && claim.place as usize == self.place;
        let frontend = frontend.in_words(kind);
        let first = claims.first()?;
        if !is_own(first) {
            let winner = shown_id(&first.service);
            return Some(format!(
                "BUT {frontend} is {winner}'s, which claims it first: one must change"
            ));
        }
        let others = claims.iter().filter(|claim| !is_own(claim));
        let others: BTreeSet<_> = others.map(|claim| shown_id(&claim.service)).collect();
        let names = others.into_iter().collect::<Vec<_>>().join(", ");
        Some(format!("{names} claims {frontend} too and gets none of it: one must change"))
    }
}
