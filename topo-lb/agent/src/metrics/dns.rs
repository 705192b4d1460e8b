//! Figures of the resolver.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use strum::VariantArray as _;

use super::families::Families;
use topo_lb_core::metrics::declared;

/// What became of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum DnsOutcome {
    /// Answered here, with addresses.
    Answered,
    /// Answered here, without: the policy allows no endpoint.
    Empty,
    /// Answered by the cluster DNS; over TCP, handed to it.
    Forwarded,
    /// The cluster DNS did not answer.
    Failed,
    /// Given up for others: too many were on their way, most of them of this client.
    Dropped,
}

/// What the agent counts of queries.
#[derive(Debug, Default)]
pub struct DnsFigures {
    /// Names that this node answers.
    pub names: AtomicU64,
    /// Queries by outcome.
    pub queries: [AtomicU64; DnsOutcome::VARIANTS.len()],
}

pub(super) fn encode(figures: &DnsFigures, families: &mut Families<'_, '_>) -> fmt::Result {
    families.one(&declared::DNS_NAMES, figures.names.load(Relaxed))?;
    let outcomes = DnsOutcome::VARIANTS.iter().map(<&str>::from);
    families.by(&declared::DNS_QUERIES, outcomes.zip(&figures.queries))
}
