//! The metrics of what TCP connections to Services moved.

use std::fmt;

use topo_lb_common::backend::Locality;
use topo_lb_common::totals::{Failure, RTT_LIMITS, Totals};

use super::bounded::Shown;
use super::families::{Families, Family};
use super::services::shown_parts;
use topo_lb_core::metrics::declared::{self, Metric};
use topo_lb_kernel::datapath::maps::totals::{Group, ended};

const MICROS: f64 = 1_000_000.0;

/// Encodes all of them.
pub(super) fn encode(shown: &Shown, families: &mut Families<'_, '_>) -> fmt::Result {
    type Value = fn(&Totals) -> u64;
    let moved: [(&Metric, Value); 4] = [
        (&declared::TCP_SENT_BYTES, |totals| totals.sent),
        (&declared::TCP_RECEIVED_BYTES, |totals| totals.received),
        (&declared::TCP_RETRANSMITTED_SEGMENTS, |totals| totals.retransmitted),
        (&declared::TCP_ENDED_CONNECTIONS, ended),
    ];
    for (metric, value) in moved {
        let mut family = families.begin(metric)?;
        for (group, totals) in &shown.tcp {
            each(&mut family, group, None, value(totals))?;
        }
    }
    let mut family = families.begin(&declared::CONNECT_FAILURES)?;
    for (group, totals) in &shown.tcp {
        for failure in Failure::ALL {
            each(&mut family, group, Some(failure), totals.failures[failure as usize])?;
        }
    }
    round_trips(shown, families)
}

/// A counter of a group, unless it is zero.
fn each(
    family: &mut Family<'_>,
    group: &Group,
    reason: Option<Failure>,
    value: u64,
) -> fmt::Result {
    if value == 0 {
        return Ok(());
    }
    let [namespace, service, port] = shown_parts(group.service.as_deref());
    let tier = group.tier.to_string();
    let mut labels = vec![namespace, service, port, group.locality.name(), &tier];
    labels.extend(reason.map(Failure::name));
    family.sample(&labels, value)
}

fn round_trips(shown: &Shown, families: &mut Families<'_, '_>) -> fmt::Result {
    let mut family = families.begin(&declared::TCP_RTT)?;
    let limits: Vec<f64> = RTT_LIMITS.iter().map(|limit| f64::from(*limit) / MICROS).collect();
    for locality in Locality::ALL {
        let Some(totals) = shown.by_locality.get(&locality) else { continue };
        let sizes = limits.iter().copied().chain([f64::INFINITY]).zip(totals.rtt);
        let sizes: Vec<(f64, u64)> = sizes.collect();
        family.sizes(&[locality.name()], totals.rtt_micros as f64 / MICROS, &sizes)?;
    }
    Ok(())
}
