//! Draws the screen, and the table of a single look.

use std::collections::BTreeMap;
use std::sync::Arc;

use comfy_table::{CellAlignment, presets};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row as Cells, Table, TableState};

use super::traffic::{ByTier, Rate, Row};
use super::view::{Column, View};
use crate::commands::list::EndpointRow;
use topo_lb_core::magnitude;

/// The columns after the first.
const HEADER: [&str; 9] =
    ["CONN/S", "NODE", "ZONE", "REGION", "ELSEWHERE", "FAR", "FAR B/S", "REFUSED", "FAILED"];
/// The columns of the open Service's tiers.
const TIER_HEADER: [&str; 4] = ["TCP BY TIER", "ENDED/S", "BYTES/S", "FAILED"];
const WIDTH: u16 = 9;
/// At least this part of connections is worth a colour if it leaves its zone.
const MUCH: f64 = 0.5;

/// What is said beside the rows.
#[derive(Debug, Default)]
pub(super) struct Status {
    /// Nodes that answered both times.
    pub(super) asked: usize,
    /// Why others did not.
    pub(super) troubles: BTreeMap<Arc<str>, String>,
    /// No rates yet: two looks make one.
    pub(super) is_first: bool,
    /// What to know of the counts.
    pub(super) caveat: Option<String>,
    /// Median round trips, as a text.
    pub(super) round_trips: String,
    /// Endpoints of the open Service in this node's maps; `None` if others are asked.
    pub(super) endpoints: Option<Vec<EndpointRow>>,
}

pub(super) fn draw(frame: &mut Frame<'_>, view: &View, status: &Status, has_colours: bool) {
    let open = view.open();
    let endpoints = status.endpoints.as_deref();
    let lines = |row: &Row| endpoints.map_or(row.nodes.len(), <[_]>::len);
    let below = open.map_or(0, |row| lines(row).min(12) as u16 + 2);
    let tiers = open.map(|row| &row.tiers).filter(|tiers| !tiers.is_empty());
    let areas = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(tiers.map_or(0, |tiers| tiers.len().min(8) as u16 + 1)),
        Constraint::Length(below),
        Constraint::Length(1),
    ]);
    let [head, body, by_tier, nodes, foot] = areas.areas(frame.area());
    frame.render_widget(summary(view, status, has_colours), head);
    services(frame, body, view, has_colours);
    if let Some(tiers) = tiers {
        frame.render_widget(tier_table(tiers), by_tier);
    }
    if let (Some(_), Some(endpoints)) = (open, endpoints) {
        frame.render_widget(endpoint_table(endpoints), nodes);
    } else if let Some(row) = open {
        let rows = row.nodes.iter().map(|(node, rate)| line(node, rate, has_colours));
        frame.render_widget(table(rows, "FROM NODE", None), nodes);
    }
    frame.render_widget(help(view), foot);
}

fn services(frame: &mut Frame<'_>, area: Rect, view: &View, has_colours: bool) {
    let rows = view.rows();
    let lines = rows.iter().map(|row| line(&row.service, &row.rate, has_colours));
    let cursor = view.cursor.as_ref().map(|_| view.place());
    let mut state = TableState::default().with_selected(cursor);
    frame.render_stateful_widget(table(lines, "SERVICE", Some(view.sort)), area, &mut state);
}

fn table<'a>(
    rows: impl Iterator<Item = Cells<'a>>,
    first: &str,
    sort: Option<Column>,
) -> Table<'a> {
    let sorted = |column: &str| sort.is_some_and(|sort| title(sort) == column);
    let names = [first.to_owned()].into_iter().chain(HEADER.map(str::to_owned));
    let header = names.enumerate().map(|(place, name)| {
        let style = if sorted(&name) { Modifier::REVERSED } else { Modifier::BOLD };
        let text = if place == 0 { Line::from(name) } else { Line::from(name).right_aligned() };
        Cell::from(text).style(Style::new().add_modifier(style))
    });
    Table::new(rows, widths())
        .header(Cells::new(header))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
}

fn widths() -> impl Iterator<Item = Constraint> {
    [Constraint::Min(24)].into_iter().chain(HEADER.map(|_| Constraint::Length(WIDTH)))
}

fn tier_table<'a>(tiers: &ByTier) -> Table<'a> {
    let line = |[first, rest @ ..]: [String; TIER_HEADER.len()]| {
        let rest = rest.map(|text| Cell::from(Line::from(text).right_aligned()));
        Cells::new([Cell::from(first)].into_iter().chain(rest))
    };
    let rows = tiers.iter().map(|(tier, rate)| {
        let moved = bytes(rate.bytes);
        line([tier.to_string(), per_second(rate.ended), moved, per_second(rate.failed)])
    });
    let header = line(TIER_HEADER.map(str::to_owned));
    Table::new(rows, widths()).header(header.style(Style::new().add_modifier(Modifier::BOLD)))
}

fn endpoint_table(endpoints: &[EndpointRow]) -> Table<'_> {
    let rows = endpoints.iter().map(|row| {
        let cells = [&row.frontend, &row.endpoint, row.locality, &row.share()].map(printable);
        Cells::new(cells.map(Cell::from))
    });
    let header = ["FRONTEND", "ENDPOINT", "LOCALITY", "SHARE"].map(Cell::from);
    let widths =
        [Constraint::Fill(2), Constraint::Fill(2), Constraint::Fill(1), Constraint::Fill(1)];
    let bold = Style::new().add_modifier(Modifier::BOLD);
    Table::new(rows, widths).header(Cells::new(header).style(bold))
}

const fn title(column: Column) -> &'static str {
    match column {
        Column::Service => "SERVICE",
        Column::Connections => "CONN/S",
        Column::Far => "FAR",
        Column::Bytes => "FAR B/S",
        Column::Refused => "REFUSED",
        Column::Failed => "FAILED",
    }
}

fn line<'a>(name: &str, rate: &Rate, has_colours: bool) -> Cells<'a> {
    let cells = cells(rate).map(|text| Cell::from(Line::from(text).right_aligned()));
    let colour = if rate.refused > 0.0 || rate.failed > 0.0 {
        Some(Color::Red)
    } else if rate.far_share().is_some_and(|share| share >= MUCH) {
        Some(Color::Yellow)
    } else {
        None
    };
    let style = colour.filter(|_| has_colours).map_or_else(Style::new, |it| Style::new().fg(it));
    Cells::new([Cell::from(printable(name))].into_iter().chain(cells)).style(style)
}

/// A name without characters that a terminal obeys.
fn printable(name: &str) -> String {
    name.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect()
}

/// The cells of [`HEADER`].
fn cells(rate: &Rate) -> [String; HEADER.len()] {
    let [node, zone, region, elsewhere] = rate.connections.map(per_second);
    let far = rate.far_share().map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0));
    [
        per_second(rate.all()),
        node,
        zone,
        region,
        elsewhere,
        far,
        bytes(rate.far_bytes()),
        per_second(rate.refused),
        per_second(rate.failed),
    ]
}

fn per_second(rate: f64) -> String {
    match rate {
        0.0 => "-".to_owned(),
        rate if rate < 9.95 => format!("{rate:.1}"),
        rate => format!("{rate:.0}"),
    }
}

/// Nothing is a dash.
fn bytes(rate: f64) -> String {
    if rate == 0.0 { "-".to_owned() } else { magnitude::bytes(rate) }
}

fn summary<'a>(view: &View, status: &Status, has_colours: bool) -> Paragraph<'a> {
    let mut text = if status.is_first {
        "counting…".to_owned()
    } else {
        let plural = |count| if count == 1 { "" } else { "s" };
        let (services, nodes) = (view.rows().len(), status.asked);
        format!("{services} Service{}, {nodes} node{}", plural(services), plural(nodes))
    };
    if view.is_typing || !view.filter.is_empty() {
        text += &format!("   /{}{}", view.filter, if view.is_typing { "_" } else { "" });
    }
    if !status.round_trips.is_empty() {
        text += &format!("   {}", status.round_trips);
    }
    let coloured = |colour| if has_colours { Style::new().fg(colour) } else { Style::new() };
    let mut spans = vec![Span::from(text)];
    if let Some(caveat) = &status.caveat {
        spans.push(Span::from(format!("   {caveat}")).style(coloured(Color::Yellow)));
    }
    if let Some((node, trouble)) = status.troubles.first_key_value() {
        let more = status.troubles.len() - 1;
        let more = if more > 0 { format!(" (and {more} more like that)") } else { String::new() };
        let trouble = format!("   {}: {}{more}", printable(node), printable(trouble));
        spans.push(Span::from(trouble).style(coloured(Color::Red)));
    }
    Paragraph::new(Line::from(spans))
}

fn help<'a>(view: &View) -> Paragraph<'a> {
    let text = if view.is_typing {
        "type a part of a name · enter: done · esc: all"
    } else {
        "←→ sort · ↑↓ choose · enter: open · /: filter · q: quit"
    };
    Paragraph::new(text).style(Style::new().add_modifier(Modifier::DIM))
}

/// The rows of a single look, as a table for people.
pub(super) fn text(rows: &[&Row]) -> String {
    if rows.is_empty() {
        return "No Service has had a connection.".to_owned();
    }
    let mut table = comfy_table::Table::new();
    table.load_preset(presets::NOTHING).set_header([&["SERVICE"], &HEADER[..]].concat());
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for row in rows {
        table.add_row([vec![printable(&row.service)], cells(&row.rate).to_vec()].concat());
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::moment::{Moment, Tier, Traffic};
    use super::super::traffic::TierRate;
    use super::super::view::Key;
    use super::*;

    fn rows() -> Vec<Row> {
        let rate = Rate {
            connections: [120.0, 3.25, 0.0, 40.0],
            refused: 2.0,
            bytes: [0.0, 0.0, 0.0, 1_234_567.0],
            ..Rate::default()
        };
        let nodes = BTreeMap::from([("worker-1".into(), rate.clone())]);
        let of_tier = |ended, failed, bytes| TierRate { ended, failed, bytes };
        let tiers = [
            (Tier::Key(0), of_tier(118.0, 0.0, 2e6)),
            (Tier::Key(12), of_tier(0.0, 1.5, 0.0)),
            (Tier::None, of_tier(3.0, 0.0, 7.0)),
        ];
        let tiers = tiers.into();
        vec![
            Row { service: "default/web".into(), rate, nodes, tiers },
            Row { service: "default/idle\u{1b}[2J".into(), ..Row::default() },
        ]
    }

    fn screen(view: &View, status: &Status) -> String {
        let mut terminal = Terminal::new(TestBackend::new(120, 14)).expect("a screen");
        terminal.draw(|frame| draw(frame, view, status, false)).expect("drawn");
        let lines = terminal.backend().to_string();
        let lines = lines.lines().map(|line| line.trim_matches('"').trim_end());
        lines.collect::<Vec<_>>().join("\n").trim_end().to_owned()
    }

    #[test]
    fn the_screen_shows_services_nodes_troubles_and_keys() {
        let mut view = View::default();
        view.update(rows());
        let troubles = BTreeMap::from([("worker-2".into(), "no answer within 5 s".to_owned())]);
        let status = Status { asked: 1, troubles, ..Status::default() };
        assert!(view.press(Key::Enter));
        let wanted = "\
2 Services, 1 node   worker-2: no answer within 5 s
SERVICE                           CONN/S      NODE      ZONE    REGION ELSEWHERE       FAR   FAR B/S   REFUSED    FAILED
default/web                          163       120       3.2         -        40      25 %    1.2 MB       2.0         -
default/idle\u{fffd}[2J                       -         -         -         -         -         -         -         -         -";
        let screen = screen(&view, &status);
        let top: Vec<&str> = screen.lines().take(4).collect();
        assert_eq!(top.join("\n"), wanted, "\n{screen}");
        assert!(screen.contains("FROM NODE "), "\n{screen}");
        let wanted = "\
TCP BY TIER                      ENDED/S   BYTES/S    FAILED
0                                    118    2.0 MB         -
12                                     -         -       1.5
none                                 3.0     7.0 B         -
";
        assert!(screen.contains(wanted), "\n{screen}");
        assert!(screen.contains("\nworker-1 "), "\n{screen}");
        assert!(screen.ends_with("q: quit"), "\n{screen}");
    }

    #[test]
    fn the_screen_shows_round_trips_and_this_node_s_endpoints_of_the_open_service() {
        let mut view = View::default();
        view.update(rows());
        assert!(view.press(Key::Enter));
        let row = |endpoint: &str, locality, share_percent| EndpointRow {
            service: "default/web:http".into(),
            frontend: "10.96.0.1:80/TCP".to_owned(),
            endpoint: endpoint.to_owned(),
            locality,
            share_percent,
        };
        let endpoints = vec![row("10.0.0.3:80", "node", 95.0), row("10.0.2.3:80", "zone", 5.0)];
        let round_trips = "round trips node 0.1 ms".to_owned();
        let observing = Moment {
            observing: 1,
            nodes: [("n".into(), Ok(Traffic::new()))].into(),
            ..Moment::at(Instant::now())
        };
        let status = Status {
            asked: 1,
            round_trips,
            caveat: observing.caveat(),
            endpoints: Some(endpoints),
            ..Status::default()
        };
        let screen = screen(&view, &status);
        let head = "2 Services, 1 node   round trips node 0.1 ms   the agent only observes: connections and \
                    refusals are those that would be\n";
        assert!(screen.starts_with(head), "\n{screen}");
        let lines: Vec<String> = screen
            .lines()
            .skip_while(|line| !line.starts_with("FRONTEND"))
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        let wanted = [
            "FRONTEND ENDPOINT LOCALITY SHARE",
            "10.96.0.1:80/TCP 10.0.0.3:80 node 95.00%",
            "10.96.0.1:80/TCP 10.0.2.3:80 zone 5.00%",
        ];
        assert_eq!(lines[..3], wanted, "\n{screen}");
        assert!(!screen.contains("FROM NODE"), "\n{screen}");
    }

    #[test]
    fn a_small_screen_does_not_panic() {
        let mut view = View::default();
        view.update(rows());
        view.is_open = true;
        for (width, height) in [(1, 1), (10, 3), (40, 5)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a screen");
            let status = Status { is_first: true, ..Status::default() };
            terminal.draw(|frame| draw(frame, &view, &status, true)).expect("drawn");
        }
    }

    #[test]
    fn numbers_keep_to_their_columns() {
        let shown = [0.0, 0.04, 9.94, 9.96, 12_345.6].map(per_second);
        assert_eq!(shown, ["-", "0.0", "9.9", "10", "12346"]);
        assert_eq!([0.0, 1.5e6].map(bytes), ["-", "1.5 MB"]);
    }

    #[test]
    fn a_table_of_no_services_is_a_sentence() {
        assert_eq!(text(&[]), "No Service has had a connection.");
        let rows = rows();
        let text = text(&rows.iter().collect::<Vec<_>>());
        assert!(text.lines().nth(1).is_some_and(|line| line.contains("1.2 MB")), "{text}");
    }
}
