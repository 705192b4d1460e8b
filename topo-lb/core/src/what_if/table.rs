//! The report as text, for a terminal and for reviews of changes.

use std::cmp::Ordering;
use std::fmt::Write;
use std::net::SocketAddr;

use comfy_table::{Cell, Color};

use super::compare::group_changes;
use super::{Both, Bytes, Cost, Endpoint, Group, Report, Served, ServicePort, Totals, Wider};
use crate::explain::{empty, policy_text, port_text, shown, some};
use crate::magnitude;
use crate::topology::label::ZONE;

/// Most groups, and most endpoints, that a Service port shows. JSON has all.
const ROWS: usize = 10;
/// Most nodes that a line names.
const NODES: usize = 5;

/// The Service ports of the report; `colour` adds terminal colours.
#[must_use]
pub fn table(report: &Report<'_>, colour: bool) -> String {
    let mut text = String::new();
    for port in &report.services {
        text += &one(port, report.label, colour);
        text.push('\n');
    }
    text + &foot(report)
}

/// The sums, and what is assumed.
pub(super) fn foot(report: &Report<'_>) -> String {
    let mut text = total(&report.totals, report.label);
    if let Some(cost) = &report.cost {
        text += &money(cost);
    }
    text += &direct(report.bytes_direct.unwrap_or_default(), "Clients of what changes");
    for assumption in [Some(report.assumption), report.bytes_assumption].into_iter().flatten() {
        let _ = writeln!(text, "Assumed: {assumption}.");
    }
    if let Some(over) = &report.bytes_over {
        let _ = writeln!(text, "Bytes are those of the last {over}, as Prometheus has them.");
    }
    text
}

fn one(port: &ServicePort<'_>, label: &str, colour: bool) -> String {
    let paint = |code: &str, text: &str| match colour {
        true => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
        false => text.to_owned(),
    };
    let title = format!(
        "{}/{}  {} {}  {}",
        shown(&port.namespace),
        shown(&port.name),
        port.port.protocol,
        port_text(&port.port),
        port.family,
    );
    let mut text = format!("{}\n", paint("1", &title));
    let Both { before, after } = &port.served;
    if !port.changes {
        let _ = writeln!(text, "  policy    {}", policy(after));
        text += "  Nothing changes.\n";
        return text;
    }
    if before == after {
        let _ = writeln!(text, "  policy    {}", policy(after));
    } else {
        let _ = writeln!(text, "  before    {}", policy(before));
        let _ = writeln!(text, "  after     {}", policy(after));
    }
    if after.is_none() {
        // Nobody gets anything, and no endpoint has load.
        return text;
    }
    for error in after.iter().flat_map(|served| &served.policy.errors) {
        let _ = writeln!(text, "  error     {}", paint("33", error));
    }
    let changed: Vec<_> = port.groups.iter().filter(|group| group_changes(group)).collect();
    let newly: Vec<&str> =
        changed.iter().flat_map(|group| group.newly_refused.iter().copied()).collect();
    let again: Vec<&str> =
        changed.iter().flat_map(|group| group.served_again.iter().copied()).collect();
    if !newly.is_empty() {
        let why = match after {
            Some(after) if after.refusal_intended => " (intended)",
            _ => "",
        };
        let line = format!("{}: {}{why}", nodes(newly.len()), some(newly, NODES));
        let _ = writeln!(text, "  refused   {}", paint("31", &line));
    }
    if !again.is_empty() {
        let _ = writeln!(text, "  served    {}: {}", nodes(again.len()), some(again, NODES));
    }
    let Both { before: old, after: new } = port.refused_direct;
    if old != new {
        let _ = writeln!(
            text,
            "  direct    dials of passed-over endpoints are refused on {old} → {}",
            nodes(new)
        );
    }
    if let Some(bytes) = &port.bytes {
        let _ = writeln!(text, "  bytes     {}", moved(bytes, label));
    }
    let returns = after.iter().any(|served| served.policy.return_after.is_some());
    if let Some(wider) = port.wider.filter(|it| it.connections > 0 || returns) {
        let _ = writeln!(text, "  return    {}", away(wider));
    }
    let tables = groups(&changed, port.groups.len(), label, colour)
        + &endpoints(&port.endpoints, label, colour);
    text += match &*tables {
        "" if old != new => "",
        "" => "  No client and no endpoint is affected.\n",
        tables => tables,
    };
    text
}

/// How much clients moved, how much left its zone, and what is expected.
fn moved(bytes: &Bytes, label: &str) -> String {
    let Bytes { moved, crossed, crossing, stopped } = bytes;
    let mut text = format!("{} moved", magnitude::bytes(*moved));
    if let Some(crossed) = crossed {
        text += &format!(", {} left the zone", magnitude::bytes(*crossed));
    }
    // A line that shows what a change does shows both numbers, also if they look the same.
    let both = |of: &Both<f64>| {
        format!("{} → {}", magnitude::bytes(of.before), magnitude::bytes(of.after))
    };
    text += &format!("; expected out of the {}: {}", place(label), both(crossing));
    if *stopped != Both::default() {
        text += &format!("; without an endpoint: {}", both(stopped));
    }
    text
}

/// How many open connections `topo-lb.io/return` brings home.
fn away(Wider { connections, unknown_nodes }: Wider) -> String {
    let lead = match connections {
        1 => "1 open connection leads".to_owned(),
        _ => format!("{connections} open connections lead"),
    };
    let mut text = format!("{lead} to a wider tier than the one in force now");
    if connections > 0 {
        text += ", and would come home with topo-lb.io/return";
    }
    if unknown_nodes > 0 {
        text += &format!("; of {} it is not known", nodes(unknown_nodes as usize));
    }
    text
}

fn money(Cost { money, months, prices }: &Cost) -> String {
    let time = if months.is_some() { "a month" } else { "in the counted time" };
    let [before, after] = [money.before, money.after].map(|it| it * months.unwrap_or(1.0));
    // In cents, as it is shown.
    let effect = match ((after - before) * 100.0).round() / 100.0 {
        0.0 => "the same".to_owned(),
        more if more > 0.0 => format!("${more:.2} more"),
        less => format!("${:.2} less", -less),
    };
    format!("Bytes of what changes cost ${before:.2} → ${after:.2} {time}, {effect}. {prices}.\n")
}

/// What leaves its zone as before, whatever the policies are; `who` dialled it directly.
pub(super) fn direct(bytes: f64, who: &str) -> String {
    if bytes == 0.0 {
        return String::new();
    }
    let bytes = magnitude::bytes(bytes);
    format!(
        "{who} moved {bytes} more out of their zone, to endpoints that they dialled directly, by their own addresses. \
         The annotation topo-lb.io/direct refuses or steers such clients.\n"
    )
}

fn place(label: &str) -> String {
    if label == ZONE { "zone".to_owned() } else { shown(label) }
}

fn policy(served: &Option<Served>) -> String {
    match served {
        None => "no ClusterIP with this port".to_owned(),
        Some(Served { by, policy, .. }) if *by == "topo-lb" => policy_text(policy),
        Some(Served { by, policy, .. }) if policy.kind == "hints" => format!("left to {by}, hints"),
        Some(Served { by, .. }) => format!("left to {by}"),
    }
}

fn groups(changed: &[&Group<'_>], all: usize, label: &str, colour: bool) -> String {
    if changed.is_empty() {
        return String::new();
    }
    let mut table = empty(colour);
    table.set_header([" CLIENTS IN", "NODES", "REFUSED", "ENDPOINTS", &staying_in(label)]);
    for group in changed.iter().take(ROWS) {
        let cells = [
            format!(" {}", value(group.value)),
            pair(group.nodes, ToString::to_string),
            pair(group.refused, ToString::to_string),
            pair(group.endpoints, ToString::to_string),
            pair(group.staying, |share| share.map_or_else(|| "-".to_owned(), percent)),
        ];
        let is_worse = !group.newly_refused.is_empty();
        table.add_row(cells.map(|text| painted(text, is_worse.then_some(Color::Red), colour)));
    }
    let more = changed.len().saturating_sub(ROWS);
    let same = all - changed.len();
    table.trim_fmt() + "\n" + &rest(more, "more that change") + &rest(same, "more without a change")
}

fn endpoints(all: &[Endpoint<'_>], label: &str, colour: bool) -> String {
    let mut changed: Vec<_> = all.iter().filter(|one| one.load.before != one.load.after).collect();
    if changed.is_empty() {
        return String::new();
    }
    let increase = |one: &Endpoint<'_>| one.load.after - one.load.before;
    changed.sort_by(|a, b| increase(b).partial_cmp(&increase(a)).unwrap_or(Ordering::Equal));
    let mut table = empty(colour);
    let place = if label == ZONE { "ZONE".to_owned() } else { shown(label) };
    table.set_header([" ENDPOINT", "NODE", &place, "LOAD", "TIMES"]);
    for one in changed.iter().take(ROWS) {
        let cells = [
            format!(" {}", SocketAddr::new(one.address, one.port)),
            value(one.node),
            value(one.value),
            pair(one.load, |load| number(*load)),
            one.times.map_or_else(|| "new".to_owned(), number),
        ];
        let is_more = one.times.is_some_and(|times| times >= 2.0);
        table.add_row(cells.map(|text| painted(text, is_more.then_some(Color::Yellow), colour)));
    }
    let more = changed.len().saturating_sub(ROWS);
    let same = all.len() - changed.len();
    table.trim_fmt() + "\n" + &rest(more, "more that change") + &rest(same, "more without a change")
}

fn painted(text: String, paint: Option<Color>, colour: bool) -> Cell {
    match paint {
        Some(paint) if colour => Cell::new(text).fg(paint),
        _ => Cell::new(text),
    }
}

fn rest(count: usize, what: &str) -> String {
    if count == 0 { String::new() } else { format!("  {count} {what}\n") }
}

/// The header of what stays among the nodes of a group.
fn staying_in(label: &str) -> String {
    match label {
        ZONE => "STAY IN ZONE".to_owned(),
        _ => format!("STAY IN {}", shown(label)),
    }
}

fn value(text: Option<&str>) -> String {
    text.map_or_else(|| "-".to_owned(), shown)
}

/// One text if both are the same.
fn pair<T: PartialEq>(Both { before, after }: Both<T>, text: impl Fn(&T) -> String) -> String {
    match before == after {
        true => text(&after),
        false => format!("{} → {}", text(&before), text(&after)),
    }
}

/// At most two decimals.
fn number(number: f64) -> String {
    let text = format!("{number:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn percent(share: f64) -> String {
    format!("{}%", number((share * 1000.0).round() / 10.0))
}

fn nodes(count: usize) -> String {
    format!("{count} node{}", plural(count))
}

const fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

fn total(totals: &Totals, label: &str) -> String {
    let Totals { service_ports, changed, newly_refusing, newly_ignored, staying, .. } = totals;
    if *changed == 0 {
        return format!(
            "Nothing changes in {service_ports} Service port{}.\n",
            plural(*service_ports)
        );
    }
    let mut text = format!(
        "{changed} of {service_ports} Service port{} change{}",
        plural(*service_ports),
        if *changed == 1 { "s" } else { "" },
    );
    match newly_refusing {
        0 => {}
        1 => text += "; 1 refuses nodes that it did not refuse before",
        _ => text += &format!("; {newly_refusing} refuse nodes that they did not refuse before"),
    }
    match newly_ignored {
        0 => {}
        1 => text += "; 1 has an annotation or field that is newly ignored",
        _ => {
            text += &format!("; {newly_ignored} have annotations or fields that are newly ignored")
        }
    }
    let share = pair(*staying, |share| share.map_or_else(|| "-".to_owned(), percent));
    let _ = write!(
        text,
        ".\nOf the connections to what changes, {share} {}.\n",
        format_args!("stay in their {}", place(label)),
    );
    if let Some(bytes) = &totals.bytes {
        let _ = writeln!(text, "Of its bytes: {}.", moved(bytes, label));
    }
    text
}
