//! What connections to a Service port do: what the policy chose, or what keeps them from it.

use super::Outcome;
use super::reason;
use crate::plan::{Lack, Meanwhile};
use crate::topology::Verdict;

/// The verdict while labels of other Nodes are unknown.
pub(super) const WAIT: &str = "wait";

/// What connections to a Service port do.
pub(super) struct ActualOutcome {
    pub(super) outcome: Outcome,
    /// Why no connection goes to any endpoint; `None` if the policy's choice is in force.
    pub(super) no_endpoint: Option<&'static str>,
}

impl ActualOutcome {
    /// The policy's choice is in force.
    pub(super) const fn of(by_policy: Outcome) -> Self {
        Self { outcome: by_policy, no_endpoint: None }
    }

    /// The agent does not know this label of other Nodes. `contest`: text for the end.
    pub(super) fn waits(label: &str, contest: &str) -> Self {
        Self::instead(WAIT, reason::waits_for(label) + contest, "not decided yet")
    }

    /// The Service lacks room in the maps. `verdict` is the one of `by_policy`.
    pub(super) fn without_room(verdict: Verdict, by_policy: Outcome, lack: &Lack) -> Self {
        let reason = format!("{lack}; with room: {}: {}", by_policy.verdict, by_policy.reason);
        match (verdict, lack.meanwhile) {
            (Verdict::Bypass, _) | (Verdict::Refuse, Meanwhile::Refused) => Self::of(by_policy),
            (Verdict::Route, Meanwhile::Refused) => {
                Self::instead(Verdict::Refuse.into(), reason, "no room in the maps")
            }
            (Verdict::Route | Verdict::Refuse, Meanwhile::KubeProxy) => {
                Self::instead(Verdict::Bypass.into(), reason, "left to kube-proxy")
            }
            (Verdict::Route | Verdict::Refuse, Meanwhile::Nobody) => {
                Self::instead(Verdict::Bypass.into(), reason, "served by nobody")
            }
            (Verdict::Route | Verdict::Refuse, Meanwhile::Narrowed | Meanwhile::LastGood) => {
                Self::of(Outcome { reason, ..by_policy })
            }
        }
    }

    fn instead(verdict: &'static str, reason: String, no_endpoint: &'static str) -> Self {
        let outcome = Outcome { verdict, tier: None, key: None, value: None, reason };
        Self { outcome, no_endpoint: Some(no_endpoint) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::report_of_agent;
    use crate::cluster::{ServiceId, State};
    use crate::plan::{Lack, Meanwhile, Shortage};
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
        let id = ServiceId { namespace: "default".into(), name: "a".into() };
        let lack = [(id, Lack { of: Shortage::Endpoints, meanwhile })].into();
        let mut report = report_of_agent(&state(cluster), "here", Scope::All, &[], &lack);
        let port = report.services.remove(0);
        (port.decision.verdict, port.decision.reason, port.endpoints[0].selected)
    }

    #[test]
    fn a_service_without_room_is_explained_by_what_its_connections_do() {
        let served = CLUSTER.replace("nodeName: there", "nodeName: here");
        for (meanwhile, verdict, selected, sentence) in [
            (Meanwhile::KubeProxy, "bypass", false, "the Service is left to kube-proxy, whole"),
            (Meanwhile::Nobody, "bypass", false, "the Service is served by nobody on this node:"),
            (Meanwhile::Refused, "refuse", false, "is refused, as its policy is strict"),
            (Meanwhile::Narrowed, "route", true, "uses at most 6 of its endpoints"),
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
