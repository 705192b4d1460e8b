//! Manifests as they change.
//!
//! A thread of its own waits for the system to say that something moved in one of the folders
//! concerned, waits until the files are at rest, and reads all of them. A file that is broken ends
//! the reading, and what was said before stays in force; an object that is wrong stays as it was.
//! Where the system says nothing (network file systems, no inotify left), the files are looked at
//! from time to time.

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

use super::FileError;
use super::listing::{self, Folder, Looks};
use super::reading::Reading;
use crate::source::Event;
use crate::source::object::Names;

/// How long things may take; tests have others, so that what they see has one possible cause.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Files that nobody touched for so long are at rest.
    pub(super) quiet: Duration,
    /// Files that never come to rest are read all the same after so long, and so are those that
    /// somebody keeps open for writing.
    pub(super) patience: Duration,
    /// Files are looked at so often even if nothing is said to have moved.
    pub(super) look_again: Duration,
    /// The same, where nothing can be said.
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

/// What the thread has done so far: a test waits for a number here instead of for a time.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// Readings of all files, good or bad, of which everything was said.
    pub(super) readings: AtomicU64,
    /// Looks at how the files are.
    pub(super) looks: AtomicU64,
}

/// Events that wait for whoever reads the stream, before the next reading waits too.
const WAITING_EVENTS: usize = 8;

/// What wakes the thread.
enum Wake {
    /// Something moved in a folder.
    Moved,
    /// A file's content is being written.
    Writing(PathBuf),
    /// It is closed again.
    Written(PathBuf),
    /// Nobody listens any longer.
    Stop,
}

/// The stream of [`follow`]. It never ends by itself.
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
        // The thread may be gone already.
        let _ = self.wake.send(Wake::Stop);
    }
}

/// Reads a file or folder as [`read`](super::read) does, now and whenever it changes.
///
/// Every good reading is said as three updates (Nodes, EndpointSlices, Services), the first one
/// with `Synced` behind it. A bad one is said as `Trouble`, once, and so is each of its faults.
///
/// # Errors
/// When the path does not exist, or is something that cannot be followed. Manifests that are
/// merely wrong are no error here: they may be right a moment later.
pub fn follow(path: PathBuf) -> Result<Following, FileError> {
    follow_at(path, Pace::DEFAULT)
}

/// [`follow`] at another pace.
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
        said: BTreeSet::new(),
        untold: false,
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
                // Reading is what this side does itself.
                EventKind::Access(_) => return,
                EventKind::Modify(ModifyKind::Data(_)) => {
                    paths.into_iter().map(Wake::Writing).collect()
                }
                _ => vec![Wake::Moved],
            },
            Err(_) => vec![Wake::Moved],
        };
        for wake_up in wakes {
            // The thread may be gone already.
            let _ = wake.send(wake_up);
        }
    })
}

/// Nobody listens any longer.
struct Stopped;

struct Follower {
    path: PathBuf,
    pace: Pace,
    done: Arc<Done>,
    watcher: notify::Result<RecommendedWatcher>,
    watched: BTreeSet<Folder>,
    woken: Receiver<Wake>,
    /// Files that are open for writing and were written to.
    writing: BTreeSet<PathBuf>,
    events: tokio::sync::mpsc::Sender<Event>,
    names: Names,
    /// How the files looked when they were last read.
    seen: Option<Looks>,
    /// What is wrong at present, as it was said.
    said: BTreeSet<String>,
    /// Whether it was said that the system does not tell what moves.
    untold: bool,
    synced: bool,
    /// Whether the last good reading had Pods.
    had_pods: bool,
}

impl Follower {
    fn run(mut self) {
        // Ends when nobody listens any longer.
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
                // Something else moved in the same folder, and may do so all the time.
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

    /// Watches the folders that matter at present.
    fn watch(&mut self) -> Result<(), Stopped> {
        let folders = listing::folders(&self.path);
        if let Ok(watcher) = &mut self.watcher {
            for folder in self.watched.difference(&folders) {
                // It is gone, most likely, and its watch with it.
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
            && !std::mem::replace(&mut self.untold, true)
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

    /// Waits until nobody is at work on the files.
    fn settled(&mut self) -> Result<Result<Looks, FileError>, Stopped> {
        let Pace { quiet, patience, .. } = self.pace;
        let patience = Instant::now() + patience;
        let mut before = None;
        loop {
            let looks = Looks::at(&self.path);
            self.done.looks.fetch_add(1, Ordering::Relaxed);
            let at_rest = looks.as_ref().is_ok_and(|looks| {
                // The others in the folder may be written to for hours.
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

    /// Reads the files and says what came of it; `false` where they changed meanwhile, so that
    /// they may have been read in part.
    fn read(&mut self, looks: Looks) -> Result<bool, Stopped> {
        let files: Vec<_> = looks.files().map(Path::to_owned).collect();
        let reading = Reading::of(&files, &mut self.names);
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
        let mut said = std::mem::take(&mut self.said);
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
        for warning in warnings {
            if said.take(&warning).is_none() {
                self.say(Event::Trouble(warning.clone()))?;
            }
            self.said.insert(warning);
        }
        Ok(())
    }

    /// Says what is wrong, unless it was said since the last good reading.
    fn trouble(&mut self, trouble: String) -> Result<(), Stopped> {
        if !self.said.insert(trouble.clone()) {
            return Ok(());
        }
        self.say(Event::Trouble(trouble))
    }

    fn say(&self, event: Event) -> Result<(), Stopped> {
        self.events.blocking_send(event).map_err(|_| Stopped)
    }

    /// Waits until something moves, at most for `limit`.
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

/// Whether a folder went away before it could be watched; the next turn sees to it.
fn is_gone(error: &notify::Error) -> bool {
    match &error.kind {
        notify::ErrorKind::PathNotFound | notify::ErrorKind::WatchNotFound => true,
        notify::ErrorKind::Io(error) => error.kind() == std::io::ErrorKind::NotFound,
        _ => false,
    }
}
