//! `topo-lb top`: which Services have how much traffic, and how much of it leaves its zone. Only reads.
//!
//! `source` asks nodes for what they have counted: `agents` says which Pods, `agent` asks one, `scraped`
//! reads its answer, and `moment` is what all of them say. `traffic` makes rates of two moments; `view` sorts and filters them; `round_trips`
//! has their medians, `zones` what was moved to which zone, `others` what went to no Service, `evacuations` what is evacuated; `draw` shows
//! them, in the `columns` that fit.

mod agent;
mod agents;
mod cells;
mod columns;
mod draw;
mod evacuations;
mod moment;
mod others;
mod round_trips;
mod scraped;
mod source;
mod text;
mod traffic;
mod view;
mod zones;

use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use serde::Serialize;
use tokio::runtime::Builder;
use tokio::time::sleep;

pub use agent::{get, metrics};
pub use agents::scope;
pub(crate) use agents::{AgentPod, agent_on};
use draw::Status;
pub use evacuations::Evacuation;
#[cfg(test)]
pub(crate) use moment::{Counter, Series, Traffic};
pub(crate) use moment::{Moment, Moved, Zones};
use round_trips::{in_words, medians};
pub use source::From;
pub(crate) use source::Source;
pub(crate) use traffic::rates;
pub use traffic::{Rate, Row, TierRate};
pub use view::Column;
pub(crate) use view::order;
use view::{Key, View};
pub(crate) use zones::zone_rates;

use topo_lb_kube::source::clock::now;

use crate::{
    commands::list::Listed,
    commands::list::list,
    commands::list::{self},
};

/// How long a key may wait.
const GLANCE: Duration = Duration::from_millis(100);

/// What to show.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the counts come from.
    pub from: From,
    /// The time between two looks.
    pub interval: Duration,
    /// The column that sorts.
    pub sort: Column,
    /// Only Services whose names contain this.
    pub filter: String,
}

/// What a single look shows. Its JSON is a fixed interface.
#[derive(Clone, Debug, Serialize)]
pub struct Looked {
    /// The rates of Services.
    pub services: Vec<Row>,
    /// What is evacuated.
    pub evacuations: Vec<Evacuation>,
    /// The same as a sentence; `None` if nothing is.
    #[serde(skip)]
    evacuated: Option<String>,
}

/// Looks twice, and returns the rates in the order of `options`, and sentences on nodes that could not be asked or
/// only observe.
///
/// # Errors
/// No node can be asked.
pub async fn once(options: &Options) -> anyhow::Result<(Looked, Vec<String>)> {
    let mut source = Source::open(&options.from).await?;
    let before = source.moment().await?;
    sleep(options.interval).await;
    let after = source.moment().await?;
    let (rows, status) = looked(&before, &after);
    let troubles: Vec<_> =
        status.troubles.iter().map(|(node, it)| format!("{node}: {it}")).collect();
    let advice = match options.from {
        From::Cluster { .. } if !troubles.iter().all(|it| it.contains("not allowed")) => {
            "; agents answer the API server only with the chart value listen.onNode=true"
        }
        _ => "",
    };
    anyhow::ensure!(status.asked > 0, "no node answers: {}{advice}", troubles.join("; "));
    let mut view = View::new(options.sort, options.filter.clone());
    view.update(rows);
    let sentences = troubles.into_iter().chain(status.caveat).chain(status.others).collect();
    let services = view.rows().into_iter().cloned().collect();
    let evacuations = evacuations::all(&after);
    Ok((Looked { services, evacuations, evacuated: status.evacuated }, sentences))
}

/// The rows as a table for people, below what is evacuated; on a terminal only the columns that it has room for.
#[must_use]
pub fn table(looked: &Looked, sort: Column, is_terminal: bool) -> String {
    let size = if is_terminal { ratatui::crossterm::terminal::size().ok() } else { None };
    let room = size.map(|(columns, _)| usize::from(columns));
    let table = text::text(&looked.services.iter().collect::<Vec<_>>(), sort, room);
    looked.evacuated.iter().map(|it| format!("{it}\n")).collect::<String>() + &table
}

/// Shows the rates until the user quits.
///
/// # Errors
/// The source cannot be used, or there is no terminal.
pub fn watch(options: &Options, has_colours: bool) -> anyhow::Result<()> {
    let (sender, moments) = mpsc::channel();
    let (from, interval) = (options.from.clone(), options.interval);
    thread::Builder::new()
        .name("look".to_owned())
        .spawn(move || look(&from, interval, &sender))
        .context("cannot start a thread")?;
    // The first look shows whether the source can be used, while errors can still be read.
    let first = moments.recv().context("the source gave up")??;
    let terminal = ratatui::try_init().context("cannot draw on this terminal: try --once")?;
    let view = View::new(options.sort, options.filter.clone());
    let pin_dir = match &options.from {
        From::Maps(pin_dir) => Some(&**pin_dir),
        From::Agents(_) | From::Cluster { .. } => None,
    };
    let result = show(terminal, view, first, &moments, pin_dir, has_colours);
    ratatui::restore();
    result
}

/// Looks again and again, until nobody listens.
fn look(from: &From, interval: Duration, sender: &Sender<anyhow::Result<Moment>>) {
    let asked = Builder::new_current_thread().enable_all().build().map_err(Into::into);
    let asked = asked.and_then(|runtime| Ok((runtime.block_on(Source::open(from))?, runtime)));
    let (mut source, runtime) = match asked {
        Ok(both) => both,
        Err(error) => return drop(sender.send(Err(error))),
    };
    while sender.send(runtime.block_on(source.moment())).is_ok() {
        thread::sleep(interval);
    }
}

fn show(
    mut terminal: DefaultTerminal,
    mut view: View,
    first: Moment,
    moments: &Receiver<anyhow::Result<Moment>>,
    pin_dir: Option<&Path>,
    has_colours: bool,
) -> anyhow::Result<()> {
    let (mut last, mut now) = (first, Status { is_first: true, ..Status::default() });
    loop {
        match moments.try_recv() {
            Ok(Ok(moment)) => {
                let (rows, status) = looked(&last, &moment);
                view.update(rows);
                now = status;
                show_endpoints(pin_dir, &view, &mut now);
                last = moment;
            }
            // The last rates stay, and the head says why they are old.
            Ok(Err(error)) => {
                now.troubles.insert("source".into(), format!("{error:#}"));
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
        }
        terminal.draw(|frame| draw::draw(frame, &view, &now, has_colours))?;
        if event::poll(GLANCE)?
            && let Some(key) = key(&event::read()?)
        {
            if !view.press(key) {
                return Ok(());
            }
            show_endpoints(pin_dir, &view, &mut now);
        }
    }
}

/// Reads the endpoints of the open Service from this node's maps, if these are what is shown.
fn show_endpoints(pin_dir: Option<&Path>, view: &View, now: &mut Status) {
    let (Some(pin_dir), Some(open)) = (pin_dir, view.open()) else { return };
    let rows = match list(pin_dir, list::View::Endpoints) {
        Ok(Listed::Endpoints { endpoints }) => endpoints,
        Ok(_) => Vec::new(),
        Err(error) => {
            now.troubles.insert("endpoints".into(), error.to_string());
            Vec::new()
        }
    };
    let is_of_open = |port: &str| port.rsplit_once(':').is_some_and(|it| it.0 == &*open.service);
    now.endpoints = Some(rows.into_iter().filter(|row| is_of_open(&row.service)).collect());
}

fn key(event: &Event) -> Option<Key> {
    let key = event.as_key_press_event()?;
    Some(match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Key::Interrupt,
        KeyCode::Char(letter) => Key::Char(letter),
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        _ => return None,
    })
}

/// The rates between two looks, and what is said beside them.
fn looked(before: &Moment, after: &Moment) -> (Vec<Row>, Status) {
    let answered = |node| matches!(before.nodes.get(node), Some(Ok(_)));
    let asked = after.nodes.iter().filter(|(node, now)| now.is_ok() && answered(*node)).count();
    let (rows, impossible) = rates(before, after);
    let mut troubles = after.doubts.clone();
    troubles.extend(impossible);
    let silent = after.nodes.iter();
    troubles
        .extend(silent.filter_map(|(node, now)| Some((node.clone(), now.as_ref().err()?.clone()))));
    let (medians, impossible) = medians(before, after);
    troubles.extend(impossible);
    let round_trips = in_words(&medians);
    let caveats: Vec<_> = after.caveat().into_iter().chain(after.uncounted()).collect();
    let caveat = (!caveats.is_empty()).then(|| caveats.join("; "));
    let others = [others::sentence(before, after), others::direct(&rows)];
    let others: Vec<_> = others.into_iter().flatten().collect();
    let others = (!others.is_empty()).then(|| others.join(". "));
    let all_nodes = after.all_nodes;
    let answering = after.nodes.values().filter(|it| it.is_ok()).count();
    let evacuated = evacuations::sentence(&evacuations::all(after), answering, now());
    let said = Status { round_trips, caveat, others, evacuated, ..Status::default() };
    (rows, Status { asked, troubles, all_nodes, ..said })
}
