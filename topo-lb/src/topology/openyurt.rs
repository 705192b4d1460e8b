//! Policy *OpenYurt*: one exact value, for this node or its pool, without fall-back.

use super::candidate::Candidate;
use super::label::{HOSTNAME, Here};
use super::validation::{Rule, quoted};

/// The limit that OpenYurt sets for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Within<'a> {
    Node,
    Pool(&'a str),
    /// The pool is asked for, but this node has none: its own endpoints.
    NodeForLackOfPool,
}

/// The members of `usable` that are within reach.
pub(super) fn choose<'a>(
    reach: Reach,
    here: Here<'a>,
    candidates: &[Candidate<'_>],
    usable: &[usize],
) -> (Within<'a>, Vec<usize>) {
    let within = match (reach, here.pool()) {
        (Reach::Node, _) => Within::Node,
        (Reach::Pool, Some(pool)) => Within::Pool(pool),
        (Reach::Pool, None) => Within::NodeForLackOfPool,
    };
    let reached = |index: &usize| {
        let site = candidates[*index].site;
        match within {
            Within::Pool(pool) => site.pool() == Ok(pool),
            Within::Node | Within::NodeForLackOfPool => site.is_on(here.name),
        }
    };
    (within, usable.iter().copied().filter(reached).collect())
}
