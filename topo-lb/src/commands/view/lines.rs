//! Traffic between groups of nodes: as agents measured it, or estimated from decisions. Pure.

use std::collections::HashMap;

use serde::Serialize;
use topo_lb_common::backend::Locality;

use crate::{commands::top::Moved, commands::top::Rate};

/// Most lines that are sent: those with most traffic.
const MOST: usize = 150;

/// Traffic from one group to another, or within one.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Line {
    pub(super) from: usize,
    /// `None`: no group has these endpoints, or no endpoint that the decisions name is that far away.
    pub(super) to: Option<usize>,
    /// A second.
    pub(super) connections: f64,
    /// A second.
    pub(super) bytes: f64,
    /// What endpoints of more than one group may have got.
    pub(super) estimated: Estimated,
    /// Of the bytes, what clients in `from` sent, a second; the others they received.
    pub(super) sent: f64,
    /// The share of both, 0–1, that left the zone of its client.
    pub(super) far: f64,
    /// The share of both, 0–1, that left its region, too, or may have.
    pub(super) elsewhere: f64,
}

/// Shares of a line, 0–1. Zero: `to` was measured, or follows from the measured distance and the
/// decision.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Estimated {
    pub(super) connections: f64,
    pub(super) bytes: f64,
}

/// Lines that are being summed.
#[derive(Debug, Default)]
pub(super) struct Lines(HashMap<(usize, Option<usize>), Line>);

impl Lines {
    /// Adds what clients of the group `from` did at one distance. `leads` are groups that it led to by the
    /// decisions, with shares.
    pub(super) fn estimate(
        &mut self,
        from: usize,
        locality: Locality,
        leads: &[(usize, f64)],
        rate: &Rate,
        measured: bool,
    ) {
        let [connections, bytes] = [rate.connections, rate.bytes].map(|it| it[locality as usize]);
        let bytes = if measured { 0.0 } else { bytes };
        if connections + bytes == 0.0 {
            return;
        }
        let to: Vec<_> = match leads {
            // Whatever the decision is by now, that is where they went.
            _ if locality == Locality::Node => vec![(Some(from), 1.0)],
            [] => vec![(None, 1.0)],
            leads => leads.iter().map(|&(group, share)| (Some(group), share)).collect(),
        };
        let estimated = if to.len() > 1 { 1.0 } else { 0.0 };
        let all: f64 = rate.bytes.iter().sum();
        let sent = if all > 0.0 { bytes * rate.sent / all } else { 0.0 };
        for (to, share) in to {
            let moved = Moved { sent: sent * share, received: (bytes - sent) * share };
            let line = self.add(from, to, locality, connections * share, moved);
            line.estimated.connections += estimated * connections * share;
            line.estimated.bytes += estimated * bytes * share;
        }
    }

    /// Adds what clients of the group `from` do, wherever it goes, as if it led to `leads`.
    pub(super) fn suppose(&mut self, from: usize, leads: &[(usize, f64)], rate: &Rate) {
        let (connections, bytes): (f64, f64) =
            (rate.connections.iter().sum(), rate.bytes.iter().sum());
        for &(to, share) in leads.iter().filter(|_| connections + bytes > 0.0) {
            let moved = Moved { sent: rate.sent * share, received: (bytes - rate.sent) * share };
            self.add(from, Some(to), Locality::Node, connections * share, moved);
        }
    }

    /// Adds bytes that an agent measured.
    pub(super) fn measure(
        &mut self,
        from: usize,
        to: Option<usize>,
        distance: Locality,
        moved: Moved,
    ) {
        self.add(from, to, distance, 0.0, moved);
    }

    fn add(
        &mut self,
        from: usize,
        to: Option<usize>,
        distance: Locality,
        connections: f64,
        moved: Moved,
    ) -> &mut Line {
        let line = self.0.entry((from, to)).or_default();
        let bytes = moved.sent + moved.received;
        (line.from, line.to) = (from, to);
        line.connections += connections;
        line.bytes += bytes;
        line.sent += moved.sent;
        let weight = weight(connections, bytes);
        line.far += if distance >= Locality::Region { weight } else { 0.0 };
        line.elsewhere += if distance == Locality::Elsewhere { weight } else { 0.0 };
        line
    }

    /// The lines with most traffic, the largest first, and how many there are.
    pub(super) fn largest(self) -> (Vec<Line>, usize) {
        let mut lines: Vec<_> = self.0.into_values().collect();
        for line in &mut lines {
            let share = |part: f64, all: f64| if all > 0.0 { (part / all).min(1.0) } else { 0.0 };
            line.estimated.connections = share(line.estimated.connections, line.connections);
            line.estimated.bytes = share(line.estimated.bytes, line.bytes);
            let all = weight(line.connections, line.bytes);
            (line.far, line.elsewhere) = (share(line.far, all), share(line.elsewhere, all));
        }
        lines.sort_by(|a, b| {
            let size = |line: &Line| weight(line.connections, line.bytes);
            size(b).total_cmp(&size(a)).then((a.from, a.to).cmp(&(b.from, b.to)))
        });
        let all = lines.len();
        lines.truncate(MOST);
        (lines, all)
    }
}

/// One number for connections and bytes together: lines of either kind are kept.
fn weight(connections: f64, bytes: f64) -> f64 {
    connections + bytes / 1e3
}
