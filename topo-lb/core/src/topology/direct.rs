//! `topo-lb.io/direct: refuse`: a strict policy also holds for clients that dial an endpoint by its address.
//!
//! Such an endpoint becomes a frontend that refuses. So nothing is asked of other connections, and excluded
//! Pods are free, as at every frontend.

use std::net::SocketAddr;

use super::evaluation::{CandidateStatus, Evaluation};
use super::label::Here;
use super::rules::Rules;
use super::validation::{Rule, quoted};

/// The value of the annotation.
const REFUSE: &str = "refuse";

/// The most endpoints of a Service port and family for which it holds: each takes an entry of `services4/6`.
pub const MOST: usize = 1_000;

/// Whether direct dials are refused.
///
/// # Errors
/// The rule that `text` breaks.
pub(super) fn from_annotation(text: &str, rules: &Rules<'_>) -> Result<(), Rule> {
    match text.trim() {
        REFUSE if rules.are_strict() => Ok(()),
        REFUSE => Err(Rule::DirectWithoutStrict),
        _ => Err(Rule::DirectUnknown { text: quoted(text) }),
    }
}

/// How many endpoints clients of this node may not dial; `None`: the Service says nothing of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectDials {
    /// Usable endpoints on other nodes that the policy passes over. An endpoint that is not ready, or that this
    /// node ejects, is passed over for another reason. One that is copied from an Endpoints object may be any
    /// address: before Kubernetes 1.22, tenants could write these (CVE-2021-25740).
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
        **status == CandidateStatus::Passed && !one.site.is_on(here.name) && !one.mirrored
    });
    far.map(|(one, _)| one.address)
}
