//! The handler of each path.

use std::mem::take;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
use tokio::runtime::Handle;

use super::shared::{Admin, Remembered, plain};
use crate::metrics::figures::PLANNED;
use crate::metrics::scrape::{CONTENT_TYPE, Counted, Scrape};
use crate::metrics::zones::{Zones, named};
use crate::readiness::{self, Condition, Readiness};
use crate::state_query::View;
use topo_lb_core::stale_write_gate::in_words;
use topo_lb_core::topology::zone::{zone_of, zones_of};
use topo_lb_core::topology::{Scope, without_policy};
use topo_lb_kernel::datapath::maps::error::{OpenError, ReadError};
use topo_lb_kernel::datapath::maps::{ended, far_endpoints};
use topo_lb_kernel::observe::Untranslated;

/// The agent task counts as stuck after this time; the longest plan takes a few seconds.
pub(crate) const STUCK: Duration = Duration::from_secs(60);

/// `/livez` and `/healthz`: whether the agent task makes progress.
pub(super) async fn alive(State(admin): State<Arc<Admin>>) -> Response {
    let since = admin.sources.figures.since_beat();
    if since < STUCK {
        return plain(StatusCode::OK, "ok".to_owned());
    }
    let since = in_words(since);
    let sentence = format!("the task that owns the state has not moved for {since}");
    plain(StatusCode::SERVICE_UNAVAILABLE, sentence)
}

/// `/readyz`: whether every condition is met.
pub(super) async fn ready(State(admin): State<Arc<Admin>>, RawQuery(query): RawQuery) -> Response {
    let is_verbose = match query.as_deref() {
        None | Some("") => false,
        Some("verbose" | "verbose=" | "verbose=true" | "verbose=1") => true,
        Some(other) => {
            let sentence = format!("{other:?} is not understood: /readyz takes ?verbose");
            return plain(StatusCode::BAD_REQUEST, sentence);
        }
    };
    let conditions = conditions(&admin, &admin.sources.readiness.borrow(), SystemTime::now());
    let (is_ready, text) = readiness::report(&conditions, is_verbose);
    plain(if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, text)
}

/// `/metrics`. One scrape runs at a time. A scrape that began after a request also answers it, so
/// many requests at once cost at most two scrapes.
pub(super) async fn metrics(State(admin): State<Arc<Admin>>) -> Response {
    let asked = Instant::now();
    let mut last = admin.scraped.lock().await;
    let text = match &*last {
        Some((began, text)) if *began >= asked => text.clone(),
        _ => {
            let began = Instant::now();
            match scrape(&admin).await {
                Ok(text) => last.insert((began, text.into())).1.clone(),
                Err(sentence) => return plain(StatusCode::INTERNAL_SERVER_ERROR, sentence),
            }
        }
    };
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response()
}

async fn scrape(admin: &Admin) -> Result<String, String> {
    // If the owner is too busy to return reasons, this scrape uses the last ones.
    let reasons = admin.sources.state_query.reasons().await.ok();
    let readiness = admin.sources.readiness.borrow().clone();
    let figures = Arc::clone(&admin.sources.figures);
    let remembered = Arc::clone(&admin.remembered);
    let pin_dir = admin.sources.pin_dir.clone();
    let (state_query, node) = (admin.sources.state_query.clone(), Arc::clone(&admin.sources.node));
    // Before everything is listed, the owner answers no query.
    let is_listed = readiness.listed;
    let runtime = Handle::current();
    let observed = admin.sources.observed.as_ref().map(|observed| observed.connections());
    let (observes, scope) = (observed.is_some(), admin.sources.scope);
    in_background(move || {
        let mut counted = match Counted::read(&pin_dir) {
            // Before the maps exist, nothing is counted.
            Err(ReadError::Open(OpenError::Absent(_))) => Counted::default(),
            counted => counted.map_err(|error| error.to_string())?,
        };
        counted.services.observed = observed.unwrap_or_default();
        if let Some(untranslated) = figures.untranslated.get() {
            let lost = ended::lost(&pin_dir).map_err(|error| error.to_string())?;
            counted.add(locked(untranslated).clone(), lost);
        }
        let far_endpoints = take(&mut counted.far_endpoints);
        // Asked late, and dropped soon.
        let view = is_listed.then(|| runtime.block_on(state_query.view()).ok()).flatten();
        let unhandled = view.as_ref().map(|View { state, .. }| without_policy(state, &node, scope));
        let zones = view.map(|View { state, .. }| {
            let own = named(state.node(&node).and_then(zone_of).map(|zone| &**zone));
            (Arc::from(own), zones_of(&state, &Zones::endpoints(&far_endpoints)))
        });
        let mut remembered = remembered.lock().unwrap_or_else(PoisonError::into_inner);
        let Remembered { refusals, bounded, reasons: last, zones: moved, own_zone } =
            &mut *remembered;
        if let Some(reasons) = reasons {
            *last = reasons;
        }
        let mut scrape = Scrape::of(Arc::clone(&figures), counted, last, refusals, bounded);
        if let Some((own, zones)) = zones {
            *own_zone = own;
            let gone = moved.look(far_endpoints, zones, Instant::now());
            // What cannot be removed now is found again at the next scrape.
            let _ = far_endpoints::remove(&pin_dir, &gone);
            if let Some(untranslated) = figures.untranslated.get() {
                let is_gone = |it: &Option<IpAddr>| it.is_some_and(|it| gone.contains(&it));
                locked(untranslated).far.retain(|endpoint, _| !is_gone(endpoint));
            }
        }
        scrape.matrix = moved.matrix(own_zone, &scrape.services.by_locality);
        let now = SystemTime::now();
        scrape.observes = observes;
        scrape.unhandled = unhandled.unwrap_or_default() as u64;
        scrape.age = readiness.age(now);
        scrape.ready = readiness.conditions(now).iter().all(|condition| condition.met);
        scrape.text().map_err(|error| error.to_string())
    })
    .await
}

fn locked(untranslated: &Mutex<Untranslated>) -> MutexGuard<'_, Untranslated> {
    untranslated.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs slow work on a thread for blocking tasks.
pub(super) async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err("the answer could not be made: see the agent's log".to_owned()))
}

/// `/peers`: which other nodes packets of clients outside are sent on to; null without direct return.
pub(super) async fn peers(State(admin): State<Arc<Admin>>, RawQuery(query): RawQuery) -> Response {
    if query.is_some_and(|query| !query.is_empty()) {
        return plain(StatusCode::BAD_REQUEST, "/peers takes no parameters".to_owned());
    }
    json(&admin.sources.figures.peers.nodes())
}

/// All conditions, with what is known of other nodes: one to which nothing is sent on is served by source NAT.
fn conditions(admin: &Admin, readiness: &Readiness, now: SystemTime) -> Vec<Condition> {
    let peers = admin.sources.figures.peers.sentence();
    let peers = peers.map(|sentence| Condition { name: "peers", met: true, sentence });
    readiness.conditions(now).into_iter().chain(peers).collect()
}

/// The answer of `/state`: what the agent knows and has installed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StateAnswer {
    version: &'static str,
    node: String,
    scope: &'static str,
    ready: bool,
    conditions: Vec<Condition>,
    /// Null while the state is live.
    state_age_seconds: Option<u64>,
    nodes: usize,
    services: usize,
    frontends: usize,
    maps: Vec<MapAnswer>,
    /// Unprogrammed Services, as `namespace/name`.
    #[serde(rename = "leftOut")]
    unprogrammed: Vec<String>,
    devices: Vec<String>,
    pin_dir: String,
}

#[derive(Debug, Serialize)]
struct MapAnswer {
    name: &'static str,
    used: u64,
    capacity: u64,
}

pub(super) async fn state(State(admin): State<Arc<Admin>>, RawQuery(query): RawQuery) -> Response {
    if query.is_some_and(|query| !query.is_empty()) {
        return plain(StatusCode::BAD_REQUEST, "/state takes no parameters".to_owned());
    }
    // Before everything is listed, the owner answers no query.
    let is_listed = admin.sources.readiness.borrow().listed;
    let view = match is_listed {
        true => match admin.sources.state_query.view().await {
            Ok(view) => Some(view),
            Err(busy) => return plain(StatusCode::SERVICE_UNAVAILABLE, busy.to_string()),
        },
        false => None,
    };
    json(&answer(&admin, view))
}

/// Answers with a value as indented JSON.
pub(super) fn json(value: &impl Serialize) -> Response {
    match serde_json::to_vec_pretty(value) {
        Ok(json) => ([(header::CONTENT_TYPE, "application/json")], json).into_response(),
        Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

fn answer(admin: &Admin, view: Option<View>) -> StateAnswer {
    let sources = &admin.sources;
    let readiness = sources.readiness.borrow().clone();
    let now = SystemTime::now();
    let conditions = conditions(admin, &readiness, now);
    let uses = PLANNED.iter().zip(&sources.figures.uses);
    StateAnswer {
        version: env!("CARGO_PKG_VERSION"),
        node: sources.node.to_string(),
        scope: match sources.scope {
            Scope::All => "all",
            Scope::OptIn => "opt-in",
        },
        ready: conditions.iter().all(|condition| condition.met),
        conditions,
        state_age_seconds: readiness.age(now).map(|age| age.as_secs()),
        nodes: view.as_ref().map_or(0, |view| view.state.nodes().count()),
        services: view.as_ref().map_or(0, |view| view.state.services().count()),
        frontends: view.as_ref().map_or(0, |view| view.frontends),
        maps: uses
            .map(|(&name, one)| {
                let [used, capacity] = [&one.used, &one.capacity]
                    .map(|value| value.load(std::sync::atomic::Ordering::Relaxed));
                MapAnswer { name, used, capacity }
            })
            .collect(),
        unprogrammed: view
            .as_ref()
            .map(|view| view.unprogrammed.keys().map(ToString::to_string).collect())
            .unwrap_or_default(),
        devices: view.map(|view| view.devices).unwrap_or_default(),
        pin_dir: sources.pin_dir.display().to_string(),
    }
}
