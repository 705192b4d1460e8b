//! The metrics of what TCP connections to Services moved.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use topo_lb_common::backend::Locality;
use topo_lb_common::totals::{Failure, RTT_LIMITS, Totals};

use super::bounded::Shown;
use super::sample::counter;
use super::services::shown_parts;
use topo_lb_kernel::datapath::maps::totals::{Group, ended};

const MICROS: f64 = 1_000_000.0;

/// Encodes all of them.
pub(super) fn encode(shown: &Shown, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    type Value = fn(&Totals) -> u64;
    let moved: [(&str, &str, Value); 4] = [
        (
            "tcp_sent_bytes",
            "Bytes that clients of this node sent to a Service port over TCP, without headers and \
             retransmissions, by locality of the endpoint and tier in force",
            |totals| totals.sent,
        ),
        (
            "tcp_received_bytes",
            "Bytes that clients of this node received from a Service port, likewise",
            |totals| totals.received,
        ),
        (
            "tcp_retransmitted_segments",
            "TCP segments that clients of this node sent again to a Service port, with SYNs",
            |totals| totals.retransmitted,
        ),
        (
            "tcp_ended_connections",
            "TCP connections of this node to a Service port that were established and have ended",
            ended,
        ),
    ];
    for (name, help, value) in moved {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (group, totals) in &shown.tcp {
            each(&mut family, group, None, value(totals))?;
        }
    }
    let help = "TCP connections of this node to a Service port that were never established, without \
                those that topo-lb refused: answered with a RST, timed out, given up by the client \
                after a retransmitted SYN, or answered as unreachable";
    let mut family =
        encoder.encode_descriptor("connect_failures", help, None, MetricType::Counter)?;
    for (group, totals) in &shown.tcp {
        for failure in Failure::ALL {
            each(&mut family, group, Some(failure), totals.failures[failure as usize])?;
        }
    }
    round_trips(shown, encoder)
}

/// A counter of a group, unless it is zero.
fn each(
    family: &mut MetricEncoder<'_>,
    group: &Group,
    reason: Option<Failure>,
    value: u64,
) -> fmt::Result {
    if value == 0 {
        return Ok(());
    }
    let [namespace, service, port] = shown_parts(group.service.as_deref());
    let tier = group.tier.map_or_else(|| "none".to_owned(), |tier| tier.to_string());
    let mut labels = vec![
        ("namespace", namespace),
        ("service", service),
        ("port", port),
        ("locality", group.locality.name()),
        ("tier", &tier),
    ];
    labels.extend(reason.map(|reason| ("reason", reason.name())));
    counter(family, &labels, value)
}

fn round_trips(shown: &Shown, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Last smoothed round trips of TCP connections of this node to Services that ended, by \
                locality of the endpoint";
    let unit = Some(&Unit::Seconds);
    let mut family = encoder.encode_descriptor("tcp_rtt", help, unit, MetricType::Histogram)?;
    let limits: Vec<f64> = RTT_LIMITS.iter().map(|limit| f64::from(*limit) / MICROS).collect();
    for locality in Locality::ALL {
        let Some(totals) = shown.by_locality.get(&locality) else { continue };
        let places = limits.iter().copied().chain([f64::INFINITY]).zip(totals.rtt);
        let places: Vec<(f64, u64)> = places.collect();
        let count = ended(totals);
        family.encode_family(&[("locality", locality.name())])?.encode_histogram::<NoLabelSet>(
            totals.rtt_micros as f64 / MICROS,
            count,
            &places,
            None,
        )?;
    }
    Ok(())
}
