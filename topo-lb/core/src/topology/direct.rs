//! `topo-lb.io/direct: refuse`: a strict policy also holds for clients that dial an endpoint by its address.
//!
//! Such an endpoint becomes a frontend that refuses, so programs need nothing for it, and excluded Pods are free,
//! as at every frontend.

use std::net::SocketAddr;

use super::evaluation::{CandidateStatus, Evaluation};
use super::label::Here;
use super::rules::Rules;
use super::validation::{Rule, quoted};

/// The values of the annotation.
const REFUSE: &str = "refuse";
const ALLOW: &str = "allow";

/// The most endpoints of a Service port and family for which it holds: each takes an entry of `services4/6`.
pub const MOST: usize = 1_000;

/// Whether direct dials are refused.
///
/// # Errors
/// The rule that `text` breaks.
pub(super) fn from_annotation(text: &str, rules: &Rules<'_>) -> Result<bool, Rule> {
    match text.trim() {
        ALLOW => Ok(false),
        REFUSE if rules.are_strict() => Ok(true),
        REFUSE => Err(Rule::DirectWithoutStrict),
        _ => Err(Rule::DirectUnknown { text: quoted(text) }),
    }
}

/// How many endpoints clients of this node may not dial; `None`: the Service says nothing of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectDials {
    /// Usable endpoints on other nodes that the policy passes over. Not among them:
    /// * what is not ready, or ejected by this node: it is passed over for another reason;
    /// * what has no node, as the API server's endpoints: it may be near;
    /// * what is copied from an Endpoints object: before Kubernetes 1.22, tenants could write any address there
    ///   (CVE-2021-25740).
    pub passed_over: usize,
}

impl DirectDials {
    pub(super) fn of(done: &Evaluation<'_>, here: Here<'_>) -> Self {
        Self { passed_over: passed_over(done, here).count() }
    }

    /// Whether they are refused: at most [`MOST`] are.
    #[must_use]
    pub const fn are_refused(self) -> bool {
        self.passed_over <= MOST
    }
}

/// The endpoints that are refused, sorted.
pub(super) fn refused(done: &Evaluation<'_>, here: Here<'_>) -> Vec<SocketAddr> {
    match DirectDials::of(done, here).are_refused() {
        true => passed_over(done, here).collect(),
        false => Vec::new(),
    }
}

fn passed_over(done: &Evaluation<'_>, here: Here<'_>) -> impl Iterator<Item = SocketAddr> {
    let all = done.candidates.iter().zip(&done.statuses);
    let far = all.filter(move |(one, status)| {
        let is_elsewhere = one.site.node().is_some_and(|node| node != here.name);
        **status == CandidateStatus::Passed && is_elsewhere && !one.mirrored
    });
    far.map(|(one, _)| one.address)
}
