//! Draws the screen.

use std::collections::BTreeMap;
use std::sync::Arc;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row as Cells, Table, TableState};

use super::cells::{COLUMNS, Cut, Shown, WIDTH, bytes, per_second, printable, title};
use super::columns::{Need, fitting, shortened};
use super::traffic::{ByTier, Row};
use super::view::{Column, View};
use crate::commands::list::EndpointRow;

/// The columns of the open Service's tiers.
const TIER_HEADER: [&str; 4] = ["TCP BY TIER", "ENDED/S", "BYTES/S", "FAILED"];
/// The columns of its endpoints, likewise.
const ENDPOINT_COLUMNS: [(&str, u8); 4] =
    [("FRONTEND", 2), ("ENDPOINT", 0), ("LOCALITY", 1), ("SHARE", 0)];
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
    /// Nodes that there are; `None` if nobody says it.
    pub(super) all_nodes: Option<usize>,
    /// What is evacuated, as a text; `None` if nothing is.
    pub(super) evacuated: Option<String>,
    /// What was moved to no Service, as a text; `None` if no node counts that.
    pub(super) others: Option<String>,
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
        Constraint::Length(u16::from(status.evacuated.is_some())),
        Constraint::Min(3),
        Constraint::Length(u16::from(open.is_some())),
        Constraint::Length(tiers.map_or(0, |tiers| tiers.len().min(8) as u16 + 1)),
        Constraint::Length(below),
        Constraint::Length(u16::from(status.others.is_some())),
        Constraint::Length(1),
    ]);
    let [head, evacuated, body, name, by_tier, nodes, others, foot] = areas.areas(frame.area());
    frame.render_widget(summary(view, status, has_colours), head);
    if let Some(text) = &status.evacuated {
        frame.render_widget(Paragraph::new(text.clone()), evacuated);
    }
    let all = view.rows();
    let sum = Row::sum_of(&all);
    let services: Vec<_> = all.iter().copied().chain(&sum).map(Cut::of_service).collect();
    let of_node = |(node, rate): (&Arc<str>, _)| Cut::of(node, rate);
    let of_nodes = open.filter(|_| endpoints.is_none()).into_iter().flat_map(|row| &row.nodes);
    let of_nodes: Vec<_> = of_nodes.map(of_node).collect();
    let room = usize::from(frame.area().width);
    let shown = Shown::of(room, view.sort, services.iter().chain(&of_nodes));
    let cursor = view.cursor.as_ref().map(|_| view.place());
    let mut state = TableState::default().with_selected(cursor);
    let (rows, sum) = services.split_at(all.len());
    let mut services = table(rows, "SERVICE", Some(view.sort), &shown, has_colours);
    // A small screen has room for Services alone.
    if let [sum] = sum
        && body.height > 3
    {
        services = services.footer(line(sum, &shown, false).bold());
    }
    frame.render_stateful_widget(services, body, &mut state);
    if let Some(text) = &status.others {
        frame.render_widget(Paragraph::new(text.clone()), others);
    }
    let Some(row) = open else { return frame.render_widget(help(view), foot) };
    let title = shortened(&printable(&row.service), room);
    let bold = Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
    frame.render_widget(Paragraph::new(title).style(bold), name);
    if let Some(tiers) = tiers {
        frame.render_widget(tier_table(tiers, shown.name, room), by_tier);
    }
    match endpoints {
        Some(endpoints) => frame.render_widget(endpoint_table(endpoints, room), nodes),
        None => {
            frame.render_widget(table(&of_nodes, "FROM NODE", None, &shown, has_colours), nodes);
        }
    }
    frame.render_widget(help(view), foot);
}

fn table<'a>(
    rows: &[Cut<'_>],
    first: &'static str,
    sort: Option<Column>,
    shown: &Shown,
    has_colours: bool,
) -> Table<'a> {
    let sorted = |column: &str| sort.is_some_and(|sort| title(sort) == column);
    let others = shown.others.iter().map(|(place, _)| COLUMNS[*place].0);
    let header = [first].into_iter().chain(others).enumerate().map(|(place, name)| {
        let style = if sorted(name) { Modifier::REVERSED } else { Modifier::BOLD };
        let text = if place == 0 { Line::from(name) } else { Line::from(name).right_aligned() };
        Cell::from(text).style(Style::new().add_modifier(style))
    });
    Table::new(rows.iter().map(|row| line(row, shown, has_colours)), widths(shown))
        .header(Cells::new(header))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
}

fn widths(shown: &Shown) -> impl Iterator<Item = Constraint> {
    let others = shown.others.iter().map(|(_, width)| Constraint::Length(*width as u16));
    [Constraint::Fill(1)].into_iter().chain(others)
}

fn tier_table<'a>(tiers: &ByTier, name: usize, room: usize) -> Table<'a> {
    let line = |[first, rest @ ..]: [String; TIER_HEADER.len()]| {
        let rest = rest.map(|text| Cell::from(Line::from(text).right_aligned()));
        Cells::new([Cell::from(first)].into_iter().chain(rest))
    };
    let rows = tiers.iter().map(|(tier, rate)| {
        let moved = bytes(rate.bytes);
        line([tier.words(), per_second(rate.ended), moved, per_second(rate.failed)])
    });
    let header = line(TIER_HEADER.map(str::to_owned));
    let width = Constraint::Length(WIDTH as u16);
    let name = name.min(room.saturating_sub(3 * (WIDTH + 1)));
    let widths = [Constraint::Length(name as u16), width, width, width];
    Table::new(rows, widths).header(header.style(Style::new().add_modifier(Modifier::BOLD)))
}

fn endpoint_table<'a>(endpoints: &[EndpointRow], room: usize) -> Table<'a> {
    let cells = |row: &EndpointRow| {
        [&row.frontend, &row.endpoint, row.locality, &row.share()].map(printable)
    };
    let rows: Vec<_> = endpoints.iter().map(cells).collect();
    let widest = |place: usize, title: &str| {
        let cells = rows.iter().map(|row| row[place].chars().count());
        cells.max().unwrap_or_default().max(title.len())
    };
    let needs: Vec<_> = ENDPOINT_COLUMNS
        .into_iter()
        .enumerate()
        .map(|(place, (title, rank))| Need { width: widest(place, title) + 1, rank })
        .collect();
    let kept = fitting(room, &needs);
    let of = |cells: [String; ENDPOINT_COLUMNS.len()]| {
        Cells::new(kept.iter().map(|&at| Cell::from(cells[at].clone())).collect::<Vec<_>>())
    };
    let header = of(ENDPOINT_COLUMNS.map(|(title, _)| title.to_owned()));
    let header = header.style(Style::new().add_modifier(Modifier::BOLD));
    let rows: Vec<_> = rows.iter().cloned().map(of).collect();
    let widths = kept.iter().map(|&at| Constraint::Length(needs[at].width as u16));
    Table::new(rows, widths.collect::<Vec<_>>()).header(header)
}

fn line<'a>(row: &Cut<'_>, shown: &Shown, has_colours: bool) -> Cells<'a> {
    let rate = row.rate;
    let cells = shown.others.iter().map(|(place, _)| row.cells[*place].clone());
    let cells = cells.map(|text| Cell::from(Line::from(text).right_aligned()));
    let colour = if rate.refused > 0.0 || rate.failed > 0.0 {
        Some(Color::Red)
    } else if rate.far_share().is_some_and(|share| share >= MUCH) {
        Some(Color::Yellow)
    } else {
        None
    };
    let style = colour.filter(|_| has_colours).map_or_else(Style::new, |it| Style::new().fg(it));
    let name = Cell::from(row.title(shown.name));
    Cells::new([name].into_iter().chain(cells)).style(style)
}

fn summary<'a>(view: &View, status: &Status, has_colours: bool) -> Paragraph<'a> {
    let mut text = if status.is_first {
        "counting…".to_owned()
    } else {
        let plural = |count| if count == 1 { "" } else { "s" };
        let (services, nodes) = (view.rows().len(), status.asked);
        let of = status.all_nodes.filter(|all| *all > nodes);
        let all = of.map_or_else(String::new, |all| format!(" of {all}"));
        let counted = of.unwrap_or(nodes);
        format!("{services} Service{}, {nodes}{all} node{}", plural(services), plural(counted))
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

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use topo_lb_core::metrics::Tier;

    use super::super::moment::{Moment, Traffic};
    use super::super::traffic::{Rate, TierRate};
    use super::super::view::Key;
    use super::*;

    fn screen(view: &View, status: &Status) -> String {
        screen_of(120, view, status)
    }

    fn screen_of(width: u16, view: &View, status: &Status) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, 15)).expect("a screen");
        terminal.draw(|frame| draw(frame, view, status, false)).expect("drawn");
        let lines = terminal.backend().to_string();
        let lines = lines.lines().map(|line| line.trim_matches('"').trim_end());
        lines.collect::<Vec<_>>().join("\n").trim_end().to_owned()
    }

    #[test]
    fn the_screen_shows_services_nodes_troubles_and_keys() {
        let mut view = View::default();
        view.update(Row::examples());
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
default/web
TCP BY TIER                      ENDED/S   BYTES/S    FAILED
0                                    118    2.0 MB         -
12                                     -         -       1.5
none                                 3.0     7.0 B         -
left to another proxy                2.0    3.0 kB         -
dialled directly                     1.0         -         -
";
        assert!(screen.contains(wanted), "\n{screen}");
        assert!(screen.contains("\nworker-1 "), "\n{screen}");
        assert!(screen.ends_with("q: quit"), "\n{screen}");
    }

    #[test]
    fn the_screen_shows_round_trips_and_this_node_s_endpoints_of_the_open_service() {
        let mut view = View::default();
        view.update(Row::examples());
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
    fn columns_go_where_there_is_no_room_and_digits_never_do() {
        let mut view = View::default();
        let far = |bytes| Rate {
            connections: [1_200.0, 3_300.0, 12_000.0, 40_000.0],
            bytes: [0.0, 0.0, bytes, 0.0],
            ..Rate::default()
        };
        let name = "a-namespace/with-a-service-of-a-long-name";
        let row = |service: &str, bytes| Row {
            service: service.into(),
            nodes: [("worker-1".into(), far(bytes))].into(),
            rate: far(bytes),
            ..Row::default()
        };
        view.update(vec![row(name, 593e3), row("shop/cart", 966e3)]);
        assert!(view.press(Key::Enter));
        for (width, wanted) in [
            (80, "SERVICE CONN/S NODE ZONE ELSEWHERE FAR FAR B/S REFUSED FAILED"),
            (60, "SERVICE CONN/S FAR FAR B/S REFUSED FAILED"),
            (40, "SERVICE CONN/S FAR B/S"),
        ] {
            let screen = screen_of(width, &view, &Status::default());
            let lines: Vec<Vec<&str>> =
                screen.lines().map(|line| line.split_whitespace().collect()).collect();
            assert_eq!(lines[1].join(" "), wanted, "\n{screen}");
            assert!(lines[2][0].starts_with("a-namespace/with-a-ser"), "\n{screen}");
            assert!(lines[2][0].ends_with('…'), "\n{screen}");
            let text = screen.lines().nth(2).expect("a row");
            assert!(text.contains("56500") && text.contains("593 kB"), "\n{screen}");
            let opened = screen.lines().find(|line| line.starts_with("worker-1"));
            assert!(opened.expect("a node").contains("593 kB"), "\n{screen}");
            assert!(screen.lines().skip(4).any(|line| line.contains("a-namespace/")), "{screen}");
        }
        // The column that sorts stays.
        for _ in 0..9 {
            assert!(view.press(Key::Right));
        }
        let screen = screen_of(40, &view, &Status::default());
        assert!(screen.lines().nth(1).is_some_and(|it| it.contains(" FAILED")), "\n{screen}");
    }

    #[test]
    fn endpoints_of_a_narrow_screen_are_whole() {
        let mut view = View::default();
        view.update(Row::examples());
        assert!(view.press(Key::Enter));
        let endpoint = "[fd00:10:244:1::1234]:8080";
        let row = EndpointRow {
            service: "default/web:http".into(),
            frontend: "[fd00:10:96::1234]:80/TCP".to_owned(),
            endpoint: endpoint.to_owned(),
            locality: "elsewhere",
            share_percent: 100.0,
        };
        let status = Status { endpoints: Some(vec![row]), ..Status::default() };
        for (width, has_frontend) in [(80, true), (60, false), (40, false)] {
            let screen = screen_of(width, &view, &status);
            let line = screen.lines().find(|line| line.contains(endpoint)).expect("an endpoint");
            assert!(line.ends_with("100.00%"), "\n{screen}");
            assert_eq!(line.contains("/TCP"), has_frontend, "\n{screen}");
        }
    }

    #[test]
    fn agents_are_counted_against_nodes() {
        let view = View::default();
        let head = |all_nodes| {
            let status = Status { asked: 4, all_nodes, ..Status::default() };
            screen_of(80, &view, &status).lines().next().unwrap_or_default().to_owned()
        };
        assert_eq!([head(None), head(Some(4))], ["0 Services, 4 nodes"; 2]);
        assert_eq!(head(Some(5)), "0 Services, 4 of 5 nodes");
    }

    #[test]
    fn what_is_left_and_what_went_elsewhere_are_visible() {
        let mut view = View::default();
        let left = |name: &str| Row {
            service: name.into(),
            tiers: [(Tier::Left, TierRate::default())].into(),
            ..Row::default()
        };
        view.update(vec![left("shop/cart"), left("a-namespace/with-a-service-of-a-long-name")]);
        let evacuated = Some("evacuated: rack=r1, 3 Services".into());
        let others = Some("To no Service: 5.0 B/s".into());
        let screen = screen_of(40, &view, &Status { others, evacuated, ..Status::default() });
        assert_eq!(screen.lines().nth(1), Some("evacuated: rack=r1, 3 Services"), "\n{screen}");
        assert!(screen.contains("shop/cart (left)"), "\n{screen}");
        assert!(screen.contains("… (left)"), "\n{screen}");
        let foot: Vec<_> = screen.lines().rev().take(2).collect();
        assert!(foot[0].starts_with('←'), "\n{screen}");
        assert_eq!(foot[1], "To no Service: 5.0 B/s", "\n{screen}");
    }

    #[test]
    fn the_last_row_is_the_sum_of_all() {
        let mut view = View::default();
        view.update(Row::examples());
        let screen = screen(&view, &Status::default());
        let sum = screen.lines().find(|line| line.starts_with("all ")).expect("a sum");
        assert!(sum.contains(" 163 ") && sum.contains("1.2 MB"), "\n{screen}");
    }

    #[test]
    fn a_small_screen_does_not_panic() {
        let mut view = View::default();
        view.update(Row::examples());
        view.is_open = true;
        for (width, height) in [(1, 1), (10, 3), (40, 5)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a screen");
            let status = Status { is_first: true, ..Status::default() };
            terminal.draw(|frame| draw(frame, &view, &status, true)).expect("drawn");
        }
    }
}
