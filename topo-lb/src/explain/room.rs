//! Services that lack room in the maps: their connections do not do what the policy chose.

use std::collections::BTreeMap;

use super::{Outcome, Report};
use crate::cluster::ServiceId;
use crate::plan::{Lack, Meanwhile};

impl Report {
    /// Says what connections to Services do that lack room in the maps of the node's agent.
    pub fn lack_room(&mut self, unprogrammed: &BTreeMap<ServiceId, Lack>) {
        if unprogrammed.is_empty() {
            return;
        }
        for port in &mut self.services {
            let id = ServiceId {
                namespace: port.namespace.as_str().into(),
                name: port.name.as_str().into(),
            };
            let Some(lack) = unprogrammed.get(&id) else { continue };
            let chosen = &port.decision;
            let (verdict, why) = match (chosen.verdict, lack.meanwhile) {
                ("bypass" | "wait", _) | ("refuse", Meanwhile::Refused) => continue,
                (_, Meanwhile::KubeProxy) => ("bypass", "left to kube-proxy"),
                (_, Meanwhile::Refused) => ("refuse", "no room in the maps"),
                (verdict, Meanwhile::Narrowed | Meanwhile::LastGood) => (verdict, ""),
            };
            let reason = format!("{lack}; with room: {}: {}", chosen.verdict, chosen.reason);
            if verdict == chosen.verdict {
                port.decision.reason = reason;
                continue;
            }
            port.decision = Outcome { verdict, tier: None, key: None, value: None, reason };
            for endpoint in &mut port.endpoints {
                endpoint.selected = false;
                why.clone_into(&mut endpoint.reason);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::report;
    use super::*;
    use crate::cluster::State;
    use crate::plan::Shortage;
    use crate::source::file::example::{CLUSTER, updates};
    use crate::topology::Scope;

    fn state(cluster: &str) -> State {
        let mut state = State::default();
        for update in updates(cluster) {
            let _ = state.apply(update, "here");
        }
        state
    }

    /// Verdict, reason, and whether the endpoint is selected.
    fn explained(cluster: &str, meanwhile: Meanwhile) -> (&'static str, String, bool) {
        let mut report = report(&state(cluster), "here", Scope::All, &[]);
        let id = ServiceId { namespace: "default".into(), name: "a".into() };
        let lack = Lack { of: Shortage::Endpoints, meanwhile };
        report.lack_room(&BTreeMap::from([(id, lack)]));
        let port = report.services.remove(0);
        (port.decision.verdict, port.decision.reason, port.endpoints[0].selected)
    }

    #[test]
    fn a_service_without_room_is_explained_by_what_its_connections_do() {
        let served = CLUSTER.replace("nodeName: there", "nodeName: here");
        for (meanwhile, verdict, selected, sentence) in [
            (Meanwhile::KubeProxy, "bypass", false, "the Service is left to kube-proxy, whole"),
            (Meanwhile::Refused, "refuse", false, "is refused, as its policy is strict"),
            (Meanwhile::Narrowed, "route", true, "uses at most 8 of its endpoints"),
            (Meanwhile::LastGood, "route", true, "keeps its last endpoints"),
        ] {
            let (got, reason, is_selected) = explained(&served, meanwhile);
            assert_eq!((got, is_selected), (verdict, selected), "{meanwhile:?}: {reason}");
            assert!(reason.contains(sentence), "{reason}");
            assert!(reason.contains("a larger --max-endpoints; with room: route: "), "{reason}");
        }
    }

    #[test]
    fn what_the_policy_refuses_is_refused_by_the_policy() {
        let (verdict, reason, _) = explained(CLUSTER, Meanwhile::Refused);
        assert_eq!(verdict, "refuse");
        assert!(!reason.contains("the maps are full"), "{reason}");
        let (verdict, reason, _) = explained(CLUSTER, Meanwhile::KubeProxy);
        assert_eq!(verdict, "bypass");
        assert!(reason.contains("with room: refuse: "), "{reason}");
    }
}
