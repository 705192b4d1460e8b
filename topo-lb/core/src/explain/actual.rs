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
            (
                Verdict::Route | Verdict::Refuse,
                Meanwhile::Narrowed | Meanwhile::LastGood | Meanwhile::DirectDials,
            ) => Self::of(Outcome { reason, ..by_policy }),
        }
    }

    fn instead(verdict: &'static str, reason: String, no_endpoint: &'static str) -> Self {
        let outcome = Outcome { verdict, tier: None, key: None, value: None, reason };
        Self { outcome, no_endpoint: Some(no_endpoint) }
    }
}
