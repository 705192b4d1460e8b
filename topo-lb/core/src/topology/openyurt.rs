//! Policy *OpenYurt*: one exact value, for this node or its pool, without fall-back.

use super::candidate::Candidate;
use super::cause::Cause;
use super::label::{HOSTNAME, Here, Site};
use super::validation::{Rule, quoted};

/// The limit that OpenYurt sets for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// `kubernetes.io/hostname`: this node.
    Node,
    /// `openyurt.io/nodepool`, or its alias `kubernetes.io/zone`: this node's pool.
    Pool,
}

/// The reach in annotation `openyurt.io/topologyKeys`.
///
/// # Errors
/// The value is a list, empty or unknown. OpenYurt treats these as no constraint.
pub(super) fn from_annotation(value: &str) -> Result<Reach, Rule> {
    match value {
        HOSTNAME => Ok(Reach::Node),
        "openyurt.io/nodepool" | "kubernetes.io/zone" => Ok(Reach::Pool),
        _ if value.trim().is_empty() => Err(Rule::OpenYurtEmpty),
        _ if value.contains(',') => Err(Rule::OpenYurtList { value: quoted(value) }),
        _ => Err(Rule::OpenYurtUnknown { value: quoted(value) }),
    }
}

/// The members of `usable` that are within reach. A node without a pool reaches its own endpoints.
pub(super) fn choose<'a>(
    reach: Reach,
    here: Here<'a>,
    candidates: &[Candidate<'_>],
    usable: &[usize],
) -> (Cause<'a>, Vec<usize>) {
    let reached = |is_within: &dyn Fn(Site<'_>) -> bool| {
        usable.iter().copied().filter(|&index| is_within(candidates[index].site)).collect()
    };
    match (reach, here.pool()) {
        (Reach::Node, _) => (Cause::Node, reached(&|site| site.is_on(here.name))),
        (Reach::Pool, Some((label, pool))) => {
            (Cause::Pool { label, pool }, reached(&|site| site.pool() == Ok(pool)))
        }
        (Reach::Pool, None) => (Cause::NodeForLackOfPool, reached(&|site| site.is_on(here.name))),
    }
}
