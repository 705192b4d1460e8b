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

/// What the log says of a save.
#[derive(Debug)]
enum Word {
    /// It failed, and the one before did not.
    Trouble(StateError),
    /// It went well, and the one before failed.
    Again,
}

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
        match self.take(outcome) {
            Some(Word::Trouble(error)) => warn!("{error}"),
            Some(Word::Again) => info!("the state can be saved again"),
            None => {}
        }
    }

    /// Takes in what became of a save; what the log says of it. Trouble that lasts is said once.
    fn take(&mut self, outcome: Option<Outcome>) -> Option<Word> {
        let mut pause = SHORTEST;
        let word = match outcome {
            Some(Ok((digest, size))) => {
                self.saved = Some(digest);
                pause = pause.max(Duration::from_secs(size.unwrap_or_default() / RATE));
                std::mem::take(&mut self.told).then_some(Word::Again)
            }
            Some(Err(error)) => {
                // What changed is still to be saved.
                self.due.get_or_insert_with(Instant::now);
                (!std::mem::replace(&mut self.told, true)).then_some(Word::Trouble(error))
            }
            // It panicked, and has said so.
            None => None,
        };
        self.rested = Some(Instant::now() + pause);
        word
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::source::kube::Identity;

    /// The next save that is due, and what the log says of it.
    async fn next(saver: &mut Saver) -> Option<Word> {
        saver.due().await;
        saver.save(Arc::default());
        let outcome = saver.running.take().unwrap().await;
        saver.take(outcome.ok())
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_stays_full_is_said_once() {
        let place = std::env::temp_dir().join(format!("topo-lb-full-{}", std::process::id()));
        // No folder can be made there.
        fs::write(&place, "no folder").unwrap();
        let cluster = Identity { server: "https://10.96.0.1".to_owned(), authorities: vec![1] };
        let mut saver = Saver::new(Some(Folder::new(&place, cluster)));
        saver.observe(Freshness::Live);
        let begun = Instant::now();
        assert!(matches!(next(&mut saver).await, Some(Word::Trouble(_))));
        for attempt in 1..=3 {
            assert!(next(&mut saver).await.is_none(), "attempt {attempt}");
            assert!(begun.elapsed() >= SHORTEST * attempt, "attempt {attempt} came too soon");
        }
        fs::remove_file(&place).unwrap();
        assert!(matches!(next(&mut saver).await, Some(Word::Again)));
        saver.changed();
        assert!(next(&mut saver).await.is_none());
        fs::remove_dir_all(&place).unwrap();
        fs::write(&place, "no folder").unwrap();
        saver.saved = None;
        saver.changed();
        assert!(matches!(next(&mut saver).await, Some(Word::Trouble(_))), "it is news again");
        fs::remove_file(&place).unwrap();
    }
}
