//! Decides when to save the state: soon after a change, seldom during many changes, and at the end.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

use super::error::StateError;
use super::folder::Folder;
use super::format;
use crate::heap;
use topo_lb_core::cluster::Freshness;
use topo_lb_core::cluster::State;
use topo_lb_core::once::Once;

/// Pause between a change and the save, because changes come together.
const SOON: Duration = Duration::from_secs(1);
/// Shortest time between two saves.
const SHORTEST: Duration = Duration::from_secs(10);
/// Long-run limit in bytes per second, because flash wears out.
const RATE: u64 = 128 << 10;
/// Size from which a save fragments the heap noticeably.
const LARGE: u64 = 1 << 20;
/// Time limit of the last save.
const LAST: Duration = Duration::from_secs(3);

/// Saves the state on a blocking thread. Without a folder it does nothing.
#[derive(Debug)]
pub struct Saver {
    folder: Option<Folder>,
    freshness: Freshness,
    phase: Phase,
    /// Digest of the last saved state.
    saved_digest: Option<u32>,
    /// A failure was logged, and no save has succeeded since.
    failing: Once,
}

#[derive(Debug)]
enum Phase {
    /// There is no folder, or the source was never live, so there is nothing new to save.
    Idle,
    /// All changes are saved. The next save begins at `next` or later.
    Clean { next: Instant },
    /// A change is to be saved at this time.
    Due(Instant),
    /// A save runs. A change since it began is to be saved at `due` or later.
    Saving { task: JoinHandle<Outcome>, due: Option<Instant> },
}

/// The digest, and the size if something was written.
type Outcome = Result<(u32, Option<u64>), StateError>;

#[derive(Debug)]
enum Notice {
    /// It failed, and the previous one did not.
    Failed(StateError),
    /// It succeeded, and the previous one failed.
    Recovered,
}

impl Saver {
    /// Saves in `folder`.
    #[must_use]
    pub const fn new(folder: Option<Folder>) -> Self {
        Self {
            folder,
            freshness: Freshness::Live,
            phase: Phase::Idle,
            saved_digest: None,
            failing: Once::new(),
        }
    }

    /// Sets the freshness of the state.
    pub fn observe(&mut self, freshness: Freshness) {
        self.freshness = freshness;
        let can_save = self.folder.is_some() && freshness == Freshness::Live;
        if matches!(self.phase, Phase::Idle) && can_save {
            self.phase = Phase::Clean { next: Instant::now() };
        }
        self.changed();
    }

    /// Records a possible change of the state.
    pub fn changed(&mut self) {
        let soon = Instant::now() + SOON;
        match &mut self.phase {
            Phase::Idle | Phase::Due(_) => {}
            Phase::Clean { next } => self.phase = Phase::Due(soon.max(*next)),
            Phase::Saving { due, .. } => {
                due.get_or_insert(soon);
            }
        }
    }

    /// Waits until [`save`](Self::save) is due. Cancel-safe.
    pub async fn due(&mut self) {
        self.await_running().await;
        match self.phase {
            Phase::Due(due) => sleep_until(due).await,
            Phase::Idle | Phase::Clean { .. } | Phase::Saving { .. } => pending().await,
        }
    }

    /// Waits until the running save ends, if one runs. Cancel-safe.
    async fn await_running(&mut self) {
        if let Phase::Saving { task, .. } = &mut self.phase {
            let outcome = task.await;
            match self.take(outcome.ok()) {
                Some(Notice::Failed(error)) => warn!("{error}"),
                Some(Notice::Recovered) => info!("the state can be saved again"),
                None => {}
            }
        }
    }

    /// Saves `state` unless it equals the last saved one.
    pub fn save(&mut self, state: Arc<State>) {
        self.begin(state, self.saved_digest);
    }

    /// Saves `state` before the agent ends, even if unchanged, to record until when it was current.
    pub async fn finish(mut self, state: Arc<State>) {
        if matches!(self.phase, Phase::Idle) {
            return;
        }
        let last = async {
            self.await_running().await;
            self.begin(state, None);
            self.await_running().await;
        };
        if timeout(LAST, last).await.is_err() {
            warn!("saving the state takes too long: a restart may start from an older one");
        }
    }

    fn begin(&mut self, state: Arc<State>, saved: Option<u32>) {
        let Some(folder) = self.folder.clone() else { return };
        let as_of = match self.freshness {
            Freshness::AsOf(moment) => moment,
            Freshness::Live => SystemTime::now(),
        };
        let task = spawn_blocking(move || {
            let digest = format::digest(&state);
            if Some(digest) == saved {
                return Ok((digest, None));
            }
            let size = folder.save(state, as_of)?;
            if size > LARGE {
                // A change meanwhile has copied the state, and the old copy is free now.
                heap::trim();
            }
            Ok((digest, Some(size)))
        });
        self.phase = Phase::Saving { task, due: None };
    }

    /// Records the outcome of a save. Returns the log message; a lasting failure is logged once.
    fn take(&mut self, outcome: Option<Outcome>) -> Option<Notice> {
        let now = Instant::now();
        let mut next = now + SHORTEST;
        let mut due = match self.phase {
            Phase::Saving { due, .. } => due,
            Phase::Idle | Phase::Clean { .. } | Phase::Due(_) => None,
        };
        let notice = match outcome {
            Some(Ok((digest, size))) => {
                self.saved_digest = Some(digest);
                next = next.max(now + Duration::from_secs(size.unwrap_or_default() / RATE));
                self.failing.ends(&()).then_some(Notice::Recovered)
            }
            Some(Err(error)) => {
                // The change must still be saved.
                due.get_or_insert(now);
                self.failing.begins(()).then_some(Notice::Failed(error))
            }
            // The task panicked, which was logged.
            None => None,
        };
        self.phase = match due {
            Some(due) => Phase::Due(due.max(next)),
            None => Phase::Clean { next },
        };
        notice
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::source::kube::Identity;

    /// Performs the next due save. Returns its log message.
    async fn next(saver: &mut Saver) -> Option<Notice> {
        saver.due().await;
        saver.save(Arc::default());
        let Phase::Saving { task, .. } = &mut saver.phase else { panic!("no save runs") };
        let outcome = task.await;
        saver.take(outcome.ok())
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_stays_full_is_said_once_and_stops_nothing() {
        let parent = tempfile::tempdir().unwrap();
        let place = parent.path().join("state");
        let cluster = Identity { server: "https://10.96.0.1".to_owned(), authorities: vec![1] };
        let mut saver = Saver::new(Some(Folder::new(&place, cluster)));
        saver.observe(Freshness::Live);
        for occasion in ["first", "it is news again"] {
            // A file in the folder's place.
            fs::write(&place, "no folder").unwrap();
            let begun = Instant::now();
            assert!(matches!(next(&mut saver).await, Some(Notice::Failed(_))), "{occasion}");
            for attempt in 1..=3 {
                assert!(next(&mut saver).await.is_none(), "attempt {attempt}");
                assert!(begun.elapsed() >= SHORTEST * attempt, "attempt {attempt} came too soon");
            }
            fs::remove_file(&place).unwrap();
            assert!(matches!(next(&mut saver).await, Some(Notice::Recovered)));
            saver.changed();
            assert!(next(&mut saver).await.is_none());
            fs::remove_dir_all(&place).unwrap();
            saver.saved_digest = None;
            saver.changed();
        }
        fs::write(&place, "no folder").unwrap();
        assert!(matches!(next(&mut saver).await, Some(Notice::Failed(_))));
        fs::remove_file(&place).unwrap();
        saver.finish(Arc::default()).await;
        assert!(place.join("cluster.state").is_file());
    }
}
