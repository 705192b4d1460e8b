//! Chapters as tables: who called, through which Service, who answered, by which tier, and why.

use std::time::Duration;

use comfy_table::modifiers::UTF8_ROUND_CORNERS;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Attribute, Cell, Color, ContentArrangement, Table};
use topo_lb_tests::kind::{
    BEIJING_CLIENT, HANGZHOU, HANGZHOU_CLIENT, NEIGHBOUR, SHANGHAI, SHANGHAI_CLIENT,
};
use topo_lb_tests::traffic::Via;

use crate::check::{REQUESTS, Report};
use crate::paint::Paint;
use crate::stage::Row;

/// Columns where standard output is no terminal.
const WIDTH: u16 = 132;
/// Cells of the longest bar.
const BAR: u32 = 16;

/// A chapter, ready to print.
pub(crate) fn chapter(title: &str, about: &str, rows: &[Row], moral: &str, paint: Paint) -> String {
    let mut table = Table::new();
    table
        .load_preset(UTF8_FULL_CONDENSED)
        .apply_modifier(UTF8_ROUND_CORNERS)
        .set_content_arrangement(ContentArrangement::Dynamic);
    if table.width().is_none() {
        table.set_width(WIDTH);
    }
    if !paint.is_coloured() {
        table.force_no_tty();
    }
    table.set_header(
        ["", "WHO CALLED", "THROUGH", "WHO ANSWERED, OF 200", "TIER", "WHY"]
            .map(|text| Cell::new(text).add_attribute(Attribute::Bold)),
    );
    for row in rows {
        let (mark, colour) = if row.ok { ("✓", Color::Green) } else { ("✗", Color::Red) };
        table.add_row([
            Cell::new(mark).fg(colour),
            Cell::new(format!("{}\n{}", row.name, caller(row))),
            Cell::new(format!("{}\n{}", row.service, frontend(row))).fg(Color::Cyan),
            Cell::new(answers(row)).fg(if row.tally.replies.is_empty() {
                Color::Yellow
            } else {
                Color::Green
            }),
            Cell::new(tier(row)),
            Cell::new(&row.decision.reason).add_attribute(Attribute::Dim),
        ]);
    }
    let moral = if moral.is_empty() { String::new() } else { format!("{moral}\n") };
    format!("\n{}\n{about}\n{table}\n{moral}", paint.bold(title))
}

/// The last line.
pub(crate) fn summary(report: &Report, took: Duration, paint: Paint) -> String {
    let (all, ok) = (report.checks.len(), report.checks.iter().filter(|check| check.ok).count());
    let requests: u32 = report.checks.iter().map(|check| check.requests).sum();
    let verdict = format!("{ok} of {all} checks ok");
    let verdict = if ok == all { paint.green(&verdict) } else { paint.red(&verdict) };
    format!(
        "{}: {requests} real connections in {:.1} s, and nothing left behind.",
        paint.bold(&verdict),
        took.as_secs_f64()
    )
}

fn caller(row: &Row) -> String {
    format!("{} on {}", short(&row.from), row.node)
}

fn frontend(row: &Row) -> String {
    let protocol = match row.via {
        Via::Http => "TCP",
        Via::HttpMptcp => "MPTCP",
        Via::Udp | Via::UdpConnected => "UDP",
    };
    format!("{} {protocol}", row.to)
}

fn answers(row: &Row) -> String {
    let mut lines = Vec::new();
    for (pod, count) in &row.tally.replies {
        let cells = (count * BAR).div_ceil(REQUESTS) as usize;
        let bar = "█".repeat(cells);
        lines.push(format!("{:<18} {count:>3} {bar}", short(pod)));
    }
    for (failure, count) in &row.tally.failures {
        if failure.is_refusal() {
            lines.push(format!("{count} refused, in {} µs each", row.tally.median_us));
        } else {
            lines.push(format!("{count} failed: {failure}"));
        }
    }
    lines.join("\n")
}

fn tier(row: &Row) -> String {
    let decision = &row.decision;
    match (decision.tier, &decision.key, &decision.value) {
        (None, ..) => "–".to_owned(),
        (Some(tier), None, _) => tier.to_string(),
        (Some(tier), Some(key), None) => format!("{tier}: {key}"),
        (Some(tier), Some(key), Some(value)) => format!("{tier}: {key}\n= {value}"),
    }
}

/// A pod's name as people would say it.
fn short(pod: &str) -> String {
    let place = if HANGZHOU.contains(&pod) {
        "hangzhou"
    } else if SHANGHAI.contains(&pod) {
        "shanghai"
    } else {
        return match pod {
            HANGZHOU_CLIENT => "client in hangzhou".to_owned(),
            SHANGHAI_CLIENT => "client in shanghai".to_owned(),
            BEIJING_CLIENT => "client in beijing".to_owned(),
            NEIGHBOUR => "beijing-neighbour".to_owned(),
            other => other.to_owned(),
        };
    };
    format!("{place}-{}", pod.rsplit('-').next().unwrap_or(pod))
}
