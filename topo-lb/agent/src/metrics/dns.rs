//! Figures of the resolver.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use strum::VariantArray as _;

use super::sample::counter;

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

pub(super) fn encode(figures: &DnsFigures, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Names of headless Services that the resolver of this node answers";
    encoder
        .encode_descriptor("dns_names", help, None, MetricType::Gauge)?
        .encode_gauge(&figures.names.load(Relaxed))?;
    let help = "Queries to the resolver of this node, by what became of them";
    let mut family = encoder.encode_descriptor("dns_queries", help, None, MetricType::Counter)?;
    for (outcome, value) in DnsOutcome::VARIANTS.iter().zip(&figures.queries) {
        counter(&mut family, &[("outcome", <&str>::from(outcome))], value.load(Relaxed))?;
    }
    Ok(())
}
