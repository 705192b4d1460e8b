//! Policy *OpenYurt*: one exact value, this node or this node's pool, and no fall-back.

use super::candidate::Candidate;
use super::label::{HOSTNAME, Here};
use super::validation::{Rule, quoted};

/// How far OpenYurt lets a connection go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// `kubernetes.io/hostname`: this node.
    Node,
    /// `openyurt.io/nodepool`, or `kubernetes.io/zone`, which is an alias of it: this node's pool.
    Pool,
}

/// The reach that annotation `openyurt.io/topologyKeys` asks for.
///
/// # Errors
/// OpenYurt takes a list, an empty or an unknown value for no constraint.
pub(super) fn from_annotation(value: &str) -> Result<Reach, Rule> {
    match value {
        HOSTNAME => Ok(Reach::Node),
        "openyurt.io/nodepool" | "kubernetes.io/zone" => Ok(Reach::Pool),
        _ if value.trim().is_empty() => Err(Rule::OpenYurtEmpty),
        _ if value.contains(',') => Err(Rule::OpenYurtList { value: quoted(value) }),
        _ => Err(Rule::OpenYurtUnknown { value: quoted(value) }),
    }
}

/// What is within reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Within<'a> {
    Node,
    Pool(&'a str),
    /// The pool was asked for, but this node is in none: its own endpoints.
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
