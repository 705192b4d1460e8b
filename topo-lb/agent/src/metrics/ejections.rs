//! Figures of endpoints that are left out.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use topo_lb_common::totals::Failure;

use super::sample::counter;
use topo_lb_core::ejection::Probed;

/// What the agent counts of ejections.
#[derive(Debug, Default)]
pub struct EjectionFigures {
    /// Endpoints that are left out.
    pub ejected: AtomicU64,
    /// Ejections by how the last connect failed, in the order of `Failure::ALL`.
    pub ejections: [AtomicU64; 4],
    /// Probes by outcome, in the order of `Probed::ALL`.
    pub probes: [AtomicU64; 3],
}

pub(super) fn encode(
    figures: &EjectionFigures,
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let help = "Endpoints that this node leaves out, because its connects to them failed";
    encoder
        .encode_descriptor("ejected_endpoints", help, None, MetricType::Gauge)?
        .encode_gauge(&figures.ejected.load(Relaxed))?;
    let help = "Times that an endpoint was left out, by how the last connect to it failed";
    let mut family = encoder.encode_descriptor("ejections", help, None, MetricType::Counter)?;
    for (failure, value) in Failure::ALL.iter().zip(&figures.ejections) {
        counter(&mut family, &[("reason", failure.name())], value.load(Relaxed))?;
    }
    let help = "Probes of endpoints that were left out, by what they have shown";
    let mut family =
        encoder.encode_descriptor("ejection_probes", help, None, MetricType::Counter)?;
    for (probed, value) in Probed::ALL.iter().zip(&figures.probes) {
        counter(&mut family, &[("outcome", probed.name())], value.load(Relaxed))?;
    }
    Ok(())
}
