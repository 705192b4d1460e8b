//! Logs which ClusterIPs topo-lb leaves alone because a device of this host has them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use tracing::info;

use crate::cluster::{ServiceId, State};

/// What was logged: local ClusterIPs by Service, with their devices.
#[derive(Debug, Default)]
pub struct LocalLog(BTreeMap<ServiceId, BTreeMap<IpAddr, Arc<str>>>);

impl LocalLog {
    /// Logs the news of changed Services.
    pub fn look<'a>(&mut self, state: &State, changed: impl Iterator<Item = &'a ServiceId>) {
        for id in changed {
            for sentence in self.news(state, id) {
                info!("{sentence}");
            }
        }
    }

    fn news(&mut self, state: &State, id: &ServiceId) -> Vec<String> {
        let addresses = state.service(id).map_or(&[][..], |service| &service.cluster_ips);
        let local = |&address: &IpAddr| Some((address, Arc::clone(state.local_device(address)?)));
        let now: BTreeMap<_, _> = addresses.iter().filter_map(local).collect();
        let before = match now.is_empty() {
            true => self.0.remove(id),
            false => self.0.insert(id.clone(), now.clone()),
        };
        let before = before.unwrap_or_default();
        let new = now.iter().filter(|(address, device)| before.get(address) != Some(device));
        let new = new.map(|(address, device)| {
            format!("{address} of Service {id} is left alone: device {device} of this node has it")
        });
        // No line for an address that the Service itself lost while a device has it.
        let gone = before.keys().filter(|address| state.local_device(**address).is_none());
        let gone = gone.map(|address| {
            format!(
                "{address} of Service {id} is left alone no more: no device of this node has it"
            )
        });
        new.chain(gone).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Change, LocalAddresses, Service, Update};

    fn service(address: IpAddr) -> Service {
        Service {
            id: ServiceId { namespace: "kube-system".into(), name: "kube-dns".into() },
            cluster_ips: vec![address],
            ..Service::default()
        }
    }

    fn at(address: IpAddr) -> LocalAddresses {
        let by_device = [(address, "nodelocaldns".into())].into();
        LocalAddresses { by_device, primary: Vec::new() }
    }

    #[test]
    fn an_address_is_told_when_it_comes_and_when_it_goes() {
        let address: IpAddr = [10, 96, 0, 10].into();
        let service = service(address);
        let id = service.id.clone();
        let mut state = State::default();
        let _ = state.apply(Update::Service(Change::Applied(service)), "n");
        let mut log = LocalLog::default();
        assert!(log.news(&state, &id).is_empty());
        let all = at(address);
        let _ = state.apply(Update::LocalAddresses(all), "n");
        let news = log.news(&state, &id);
        assert!(news[0].contains("device nodelocaldns of this node has it"), "{news:?}");
        assert!(log.news(&state, &id).is_empty(), "once");
        let _ = state.apply(Update::LocalAddresses(LocalAddresses::default()), "n");
        assert_eq!(log.news(&state, &id).len(), 1);
        assert!(log.news(&state, &id).is_empty());
    }

    #[test]
    fn a_device_that_outlives_the_service_is_not_said_to_be_gone() {
        let address: IpAddr = [10, 96, 0, 10].into();
        let mut state = State::default();
        let all = at(address);
        let _ = state.apply(Update::LocalAddresses(all), "n");
        let service = service(address);
        let id = service.id.clone();
        let _ = state.apply(Update::Service(Change::Applied(service)), "n");
        let mut log = LocalLog::default();
        assert_eq!(log.news(&state, &id).len(), 1);
        let _ = state.apply(Update::Service(Change::Deleted(id.clone())), "n");
        assert_eq!(log.news(&state, &id), [""; 0]);
    }
}
