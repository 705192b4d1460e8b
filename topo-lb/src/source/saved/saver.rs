//! When the state is saved: soon after a change, seldom while changes go on, and at the end.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

use super::{Folder, StateError, format};
use crate::cluster::State;
use crate::heap;
use crate::source::Freshness;

/// Pause between a change and its being saved: changes come together.
const SOON: Duration = Duration::from_secs(1);
/// Shortest time between two saves.
const SHORTEST: Duration = Duration::from_secs(10);
/// Bytes a second that saving may write in the long run: flash wears out.
const RATE: u64 = 128 << 10;
/// Bytes from which on saving leaves holes in the heap that matter.
const LARGE: u64 = 1 << 20;
/// How long the last save may take.
const LAST: Duration = Duration::from_secs(3);

/// Saves what the owner of the state hands to it, on a thread of its own. Without a folder it does
/// nothing.
#[derive(Debug)]
pub struct Saver {
    folder: Option<Folder>,
    freshness: Option<Freshness>,
    /// The server has been heard of: there is something that was not saved already.
    live: bool,
    /// When a change is to be saved.
    due: Option<Instant>,
    /// Not before.
    rested: Option<Instant>,
    running: Option<JoinHandle<Outcome>>,
    /// Digest of what was saved last.
    saved: Option<u32>,
    /// Trouble that people know of.
    told: bool,
}

/// What became of a save: its digest, and its size unless nothing was to be written.
type Outcome = Result<(u32, Option<u64>), StateError>;

impl Saver {
    /// Saves in `folder`.
    #[must_use]
    pub const fn new(folder: Option<Folder>) -> Self {
        Self {
            folder,
            freshness: None,
            live: false,
            due: None,
            rested: None,
            running: None,
            saved: None,
            told: false,
        }
    }

    /// How fresh the state is from now on.
    pub fn observe(&mut self, freshness: Freshness) {
        self.freshness = Some(freshness);
        self.live |= freshness == Freshness::Live;
        self.changed();
    }

    /// The state may be another than before.
    pub fn changed(&mut self) {
        if self.folder.is_some() && self.live {
            self.due.get_or_insert_with(|| Instant::now() + SOON);
        }
    }

    /// Returns when [`save`](Self::save) is to be called. May be dropped at any time.
    pub async fn due(&mut self) {
        if let Some(running) = &mut self.running {
            let outcome = running.await;
            self.running = None;
            self.done(outcome.ok());
        }
        match (self.due, self.rested) {
            (Some(due), rested) => sleep_until(rested.map_or(due, |rested| rested.max(due))).await,
            (None, _) => std::future::pending().await,
        }
    }

    /// Saves `state` unless it is as it was saved last.
    pub fn save(&mut self, state: Arc<State>) {
        self.begin(state, self.saved);
    }

    /// Saves `state` once more before the agent ends, so that it is known how long it was good.
    pub async fn finish(mut self, state: Arc<State>) {
        if !self.live {
            return;
        }
        let last = async {
            if let Some(running) = self.running.take() {
                let _ = running.await;
            }
            self.begin(state, None);
            if let Some(running) = self.running.take() {
                let outcome = running.await;
                self.done(outcome.ok());
            }
        };
        if timeout(LAST, last).await.is_err() {
            warn!("saving the state takes too long: a restart may start from an older one");
        }
    }

    fn begin(&mut self, state: Arc<State>, saved: Option<u32>) {
        let Some(folder) = self.folder.clone() else { return };
        let as_of = match self.freshness {
            Some(Freshness::AsOf(moment)) => moment,
            Some(Freshness::Live) | None => SystemTime::now(),
        };
        self.due = None;
        self.running = Some(spawn_blocking(move || {
            let digest = format::digest(&state);
            if Some(digest) == saved {
                return Ok((digest, None));
            }
            let size = folder.save(state, as_of)?;
            if size > LARGE {
                // A change in the meantime has copied what was being saved.
                heap::trim();
            }
            Ok((digest, Some(size)))
        }));
    }

    fn done(&mut self, outcome: Option<Outcome>) {
        let mut pause = SHORTEST;
        match outcome {
            Some(Ok((digest, size))) => {
                self.saved = Some(digest);
                pause = pause.max(Duration::from_secs(size.unwrap_or_default() / RATE));
                if std::mem::take(&mut self.told) {
                    info!("the state can be saved again");
                }
            }
            Some(Err(error)) => {
                // What changed is still to be saved.
                self.due.get_or_insert_with(Instant::now);
                if !std::mem::replace(&mut self.told, true) {
                    warn!("{error}");
                }
            }
            // It panicked, and has said so.
            None => {}
        }
        self.rested = Some(Instant::now() + pause);
    }
}
