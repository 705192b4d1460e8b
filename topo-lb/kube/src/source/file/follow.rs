//! Follows manifests. A thread waits for inotify events in the folders concerned, then until the
//! files are at rest, and reads all of them. A broken file discards the reading, and the previous
//! state stays. A wrong object keeps its previous state. Without inotify (network file systems,
//! limits reached) the files are checked at intervals.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::Stream;
use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};

use super::error::FileError;
use super::listing::{self, Folder, Looks};
use super::reading::Reading;
use crate::source::Event;
use crate::source::object::Names;
use topo_lb_core::once::Once;

/// Intervals. Tests use others, so that each effect has only one possible cause.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Files are at rest if unchanged for this time.
    pub(super) quiet: Duration,
    /// After this time files are read although they change, or are open for writing.
    pub(super) patience: Duration,
    /// Interval of checks with inotify.
    pub(super) look_again: Duration,
    /// Interval of checks without inotify.
    pub(super) look_again_untold: Duration,
}

impl Pace {
    pub(super) const DEFAULT: Self = Self {
        quiet: Duration::from_millis(50),
        patience: Duration::from_secs(1),
        look_again: Duration::from_secs(2),
        look_again_untold: Duration::from_millis(250),
    };
}

/// Progress of the thread: tests wait for a number here instead of a time.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// Readings of all files, good or bad, after all their events were sent.
    pub(super) readings: AtomicU64,
    /// Checks of the files' metadata.
    pub(super) looks: AtomicU64,
}

/// Events in the queue to the stream's reader; a full queue delays the next reading.
const WAITING_EVENTS: usize = 8;

enum Wake {
    /// Something moved in a folder.
    Moved,
    /// A write to this open file.
    Writing(PathBuf),
    /// The file was closed.
    Written(PathBuf),
    /// The stream was dropped.
    Stop,
}

/// The stream of [`follow`]. It does not end by itself.
#[derive(Debug)]
pub struct Following {
    events: tokio::sync::mpsc::Receiver<Event>,
    wake: Sender<Wake>,
    #[cfg(test)]
    pub(super) done: Arc<Done>,
}

impl Stream for Following {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll_recv(context)
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        // The thread may have ended.
        let _ = self.wake.send(Wake::Stop);
    }
}

/// Reads a file or folder like [`read`](super::read), now and after each change.
///
/// Each good reading yields three updates (Nodes, EndpointSlices, Services); `Synced` follows the
/// first. A bad reading, and each fault of a good one, yields one `Trouble`; the next good reading
/// without it, `Mended`.
///
/// # Errors
/// The path does not exist, is neither a file nor a folder, or cannot be listed; or the system
/// starts no thread. Broken manifests are no error, because they may be fixed a moment later.
pub fn follow(path: PathBuf) -> Result<Following, FileError> {
    follow_at(path, Pace::DEFAULT)
}

pub(super) fn follow_at(path: PathBuf, pace: Pace) -> Result<Following, FileError> {
    let kind = std::fs::metadata(&path).map_err(|_| FileError::Missing(path.clone()))?;
    if !kind.is_dir() && !kind.is_file() {
        return Err(FileError::NotFollowable(path));
    }
    listing::files(&path)?;
    let (wake, woken) = channel();
    let (sender, events) = tokio::sync::mpsc::channel(WAITING_EVENTS);
    let done = Arc::new(Done::default());
    let follower = Follower {
        path,
        pace,
        done: Arc::clone(&done),
        watcher: watcher(wake.clone()),
        watched: BTreeSet::new(),
        woken,
        writing: BTreeSet::new(),
        events: sender,
        names: Names::default(),
        seen: None,
        troubles: Once::new(),
        unwatched: Once::new(),
        synced: false,
        had_pods: false,
    };
    std::thread::Builder::new()
        .name("manifests".to_owned())
        .spawn(move || follower.run())
        .map_err(FileError::Thread)?;
    Ok(Following {
        events,
        wake,
        #[cfg(test)]
        done,
    })
}

fn watcher(wake: Sender<Wake>) -> notify::Result<RecommendedWatcher> {
    notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let wakes: Vec<_> = match event {
            Ok(notify::Event { kind, paths, .. }) => match kind {
                EventKind::Access(AccessKind::Close(AccessMode::Write)) => {
                    paths.into_iter().map(Wake::Written).collect()
                }
                // Our own reads cause these.
                EventKind::Access(_) => return,
                EventKind::Modify(ModifyKind::Data(_)) => {
                    paths.into_iter().map(Wake::Writing).collect()
                }
                _ => vec![Wake::Moved],
            },
            Err(_) => vec![Wake::Moved],
        };
        for wake_up in wakes {
            // The thread may have ended.
            let _ = wake.send(wake_up);
        }
    })
}

/// The stream was dropped.
struct Stopped;

struct Follower {
    path: PathBuf,
    pace: Pace,
    done: Arc<Done>,
    watcher: notify::Result<RecommendedWatcher>,
    watched: BTreeSet<Folder>,
    woken: Receiver<Wake>,
    /// Files that were written to and are still open.
    writing: BTreeSet<PathBuf>,
    events: tokio::sync::mpsc::Sender<Event>,
    names: Names,
    /// Metadata of the files at the last reading.
    seen: Option<Looks>,
    /// Current problems that were reported.
    troubles: Once<String>,
    /// The lack of inotify, if it was reported.
    unwatched: Once,
    synced: bool,
    had_pods: bool,
}

impl Follower {
    fn run(mut self) {
        let Stopped = loop {
            if let Err(stopped) = self.turn() {
                break stopped;
            }
        };
    }

    fn turn(&mut self) -> Result<(), Stopped> {
        let looks = self.settled()?;
        match looks {
            Ok(looks) if self.seen.as_ref() == Some(&looks) => {
                // Another file in the folder changed, perhaps as one of many changes.
                std::thread::sleep(self.pace.quiet);
            }
            Ok(looks) => {
                self.watch()?;
                if !self.read(looks)? {
                    return Ok(());
                }
            }
            Err(error) => {
                self.seen = None;
                self.trouble(error.to_string())?;
            }
        }
        self.wait(if self.watcher.is_ok() {
            self.pace.look_again
        } else {
            self.pace.look_again_untold
        })
    }

    fn watch(&mut self) -> Result<(), Stopped> {
        let folders = listing::folders(&self.path);
        if let Ok(watcher) = &mut self.watcher {
            for folder in self.watched.difference(&folders) {
                // Usually the folder is gone, and its watch with it.
                let _ = watcher.unwatch(&folder.path);
            }
            self.watched.retain(|folder| folders.contains(folder));
            for folder in folders {
                if self.watched.contains(&folder) {
                    continue;
                }
                match watcher.watch(&folder.path, RecursiveMode::NonRecursive) {
                    Ok(()) => {
                        self.watched.insert(folder);
                    }
                    Err(error) if is_gone(&error) => {}
                    Err(error) => {
                        self.watcher = Err(error);
                        break;
                    }
                }
            }
        }
        if let Err(error) = &self.watcher
            && self.unwatched.begins(())
        {
            let trouble = format!(
                "the system cannot say when {} changes ({error}), so it is looked at every {} ms: \
                 raising fs.inotify.max_user_instances or fs.inotify.max_user_watches may help",
                self.path.display(),
                self.pace.look_again_untold.as_millis(),
            );
            self.say(Event::Trouble(trouble))?;
        }
        Ok(())
    }

    /// Waits until the files are at rest.
    fn settled(&mut self) -> Result<Result<Looks, FileError>, Stopped> {
        let Pace { quiet, patience, .. } = self.pace;
        let patience = Instant::now() + patience;
        let mut before = None;
        loop {
            let looks = Looks::at(&self.path);
            self.done.looks.fetch_add(1, Ordering::Relaxed);
            let at_rest = looks.as_ref().is_ok_and(|looks| {
                // Ignore other files of the folder: writes to them may last for hours.
                self.writing.retain(|path| looks.names(path));
                self.writing.is_empty() && (looks.rested(quiet) || before.as_ref() == Some(looks))
            });
            if at_rest || Instant::now() >= patience {
                self.writing.clear();
                return Ok(looks);
            }
            before = looks.ok();
            let until = Instant::now() + quiet;
            while let Some(left) = until.checked_duration_since(Instant::now()) {
                self.wait(left)?;
            }
        }
    }

    /// Reads the files and sends the events. Returns `false` if the files changed meanwhile.
    fn read(&mut self, looks: Looks) -> Result<bool, Stopped> {
        let files: Vec<_> = looks.files().map(Path::to_owned).collect();
        let reading = Reading::of(&files, &mut self.names, false);
        if !Looks::at(&self.path).is_ok_and(|now| now == looks) {
            return Ok(false);
        }
        self.seen = Some(looks);
        match reading {
            Ok(reading) => self.publish(reading, files.is_empty())?,
            Err(error) => self.trouble(error.to_string())?,
        }
        self.done.readings.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    fn publish(&mut self, mut reading: Reading, is_empty: bool) -> Result<(), Stopped> {
        let pods = std::mem::take(&mut reading.pods);
        let has_pods = !pods.is_empty();
        if std::mem::replace(&mut self.had_pods, has_pods) || has_pods {
            self.say(Event::Pods(pods))?;
        }
        let mut warnings: Vec<String> =
            reading.faults.iter().map(|fault| fault.sentence.clone()).collect();
        if is_empty {
            let folder = self.path.display();
            warnings.push(format!("there is no manifest (*.yaml, *.yml, *.json) in {folder}"));
        }
        for update in reading.updates() {
            self.say(Event::Update(update))?;
        }
        if !std::mem::replace(&mut self.synced, true) {
            self.say(Event::Synced)?;
        }
        let over = self.troubles.end_those(|trouble| !warnings.contains(trouble));
        for warning in warnings {
            self.trouble(warning)?;
        }
        for over in over {
            self.say(Event::Mended(over))?;
        }
        Ok(())
    }

    /// Reports a problem once until the next good reading.
    fn trouble(&mut self, trouble: String) -> Result<(), Stopped> {
        if !self.troubles.begins(trouble.clone()) {
            return Ok(());
        }
        self.say(Event::Trouble(trouble))
    }

    fn say(&self, event: Event) -> Result<(), Stopped> {
        self.events.blocking_send(event).map_err(|_| Stopped)
    }

    /// Waits for a wake-up, at most for `limit`.
    fn wait(&mut self, limit: Duration) -> Result<(), Stopped> {
        let mut wake = match self.woken.recv_timeout(limit) {
            Ok(wake) => Some(wake),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return Err(Stopped),
        };
        while let Some(reason) = wake {
            match reason {
                Wake::Moved => {}
                Wake::Writing(path) => {
                    self.writing.insert(path);
                }
                Wake::Written(path) => {
                    self.writing.remove(&path);
                }
                Wake::Stop => return Err(Stopped),
            }
            wake = self.woken.try_recv().ok();
        }
        Ok(())
    }
}

/// Whether the folder vanished before it could be watched; the next turn handles that.
fn is_gone(error: &notify::Error) -> bool {
    match &error.kind {
        notify::ErrorKind::PathNotFound | notify::ErrorKind::WatchNotFound => true,
        notify::ErrorKind::Io(error) => error.kind() == std::io::ErrorKind::NotFound,
        _ => false,
    }
}
