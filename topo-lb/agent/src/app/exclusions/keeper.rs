//! The task that updates the maps as Pods and their cgroups change.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::Context as _;
use futures::{Stream, StreamExt as _};
use notify::event::EventKind;
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::{Notify, oneshot};
use tokio::time::MissedTickBehavior;
use topo_lb_common::exclusion::Treatment;
use tracing::{debug, info, warn};

use crate::metrics::Figures;
use topo_lb_core::exclusion::{Books, PodReport, Rules};
use topo_lb_core::once::Once;
use topo_lb_kernel::datapath::maps::excluded::ExcludedMap;
use topo_lb_kernel::pod_cgroups::{Found, Tree};

/// Interval of searching the cgroups without a notification.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// The same without inotify.
const LOOK_AGAIN_UNTOLD: Duration = Duration::from_millis(250);

/// Completes when the Pods that existed at first are in the maps.
pub(super) type Ready = oneshot::Receiver<()>;

/// Keeps the maps up to date.
pub(super) struct Keeper {
    books: Books,
    tree: Tree,
    map: ExcludedMap,
    figures: Arc<Figures>,
    watcher: notify::Result<RecommendedWatcher>,
    watched: BTreeSet<PathBuf>,
    moved: Arc<Notify>,
    /// Pods without room, as logged.
    without_room: usize,
    kubepods: Kubepods,
    /// Whether a failed write was logged.
    failing: Once,
}

impl Keeper {
    /// Opens the maps in `maps`; the Pods' cgroups are below `cgroup_root`.
    ///
    /// # Errors
    /// Maps or folders cannot be opened.
    pub(super) fn open(
        rules: Rules,
        cgroup_root: &Path,
        maps: &Path,
        figures: Arc<Figures>,
    ) -> anyhow::Result<Self> {
        let tree = Tree::new(cgroup_root)
            .with_context(|| format!("cannot look into {}", cgroup_root.display()))?;
        for (selection, what) in [(&rules.excluded, "excluded"), (&rules.steered, "steered")] {
            if !selection.is_empty() {
                info!(
                    namespaces = selection.namespaces.len(),
                    annotated = selection.annotated,
                    "Pods are {what} by these rules"
                );
            }
        }
        let moved = Arc::<Notify>::default();
        Ok(Self {
            books: Books::new(rules, tree.unseen()),
            tree,
            map: ExcludedMap::open(maps)?,
            figures,
            watcher: watcher(Arc::clone(&moved)),
            watched: BTreeSet::new(),
            moved,
            without_room: 0,
            kubepods: Kubepods::default(),
            failing: Once::new(),
        })
    }

    /// Follows `pods` in a task of its own until they end.
    #[must_use]
    pub(super) fn start(self, pods: impl Stream<Item = PodReport> + Send + 'static) -> Ready {
        let (ready, told) = oneshot::channel();
        tokio::spawn(self.keep(pods, ready));
        told
    }

    async fn keep(
        mut self,
        pods: impl Stream<Item = PodReport> + Send,
        ready: oneshot::Sender<()>,
    ) {
        let mut pods = std::pin::pin!(pods);
        let mut ready = Some(ready);
        let pause = if self.watcher.is_ok() { LOOK_AGAIN } else { LOOK_AGAIN_UNTOLD };
        let mut again = tokio::time::interval(pause);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let moved = Arc::clone(&self.moved);
            tokio::select! {
                said = pods.next() => {
                    let Some(said) = said else { return };
                    let sentences = self.books.take(said);
                    sentences.iter().for_each(|sentence| warn!("{sentence}"));
                    self.look();
                    // After the source's first report, even an error: startup does not wait longer.
                    if let Some(ready) = ready.take() {
                        let _ = ready.send(());
                    }
                }
                () = moved.notified() => self.look(),
                _ = again.tick() => self.look(),
            }
        }
    }

    /// Searches the cgroups and updates the maps.
    fn look(&mut self) {
        let mut found = self.tree.look();
        if self.watch(&found) {
            // Searches again for what changed before the watch began.
            found = self.tree.look();
        }
        match self.kubepods.observe(!found.parents.is_empty(), self.books.has_any()) {
            Some(Change::Missing) => warn!(
                "there is no cgroup `kubepods` below {}: no Pod can be excluded or steered before the \
                 kubelet makes it. It must use cgroup v2",
                self.tree.root().display()
            ),
            Some(Change::Found) => info!(
                "the cgroup `kubepods` is there now, below {}: Pods can be excluded and steered",
                self.tree.root().display()
            ),
            None => {}
        }
        self.books.see(found.folders);
        let wanted = self.books.wanted(self.map.has(), self.map.room());
        match self.map.write(&wanted.cgroups, wanted.levels) {
            Ok(()) => self.failing.clear(),
            Err(error) if self.failing.begins(()) => warn!(
                "{error}: some Pods that are to be excluded or steered are not; the agent retries every {} s",
                LOOK_AGAIN.as_secs()
            ),
            Err(error) => debug!("{error}"),
        }
        for (figure, treatment) in [
            (&self.figures.excluded_pods, Treatment::Excluded),
            (&self.figures.steered_pods, Treatment::Steered),
        ] {
            figure.store(self.map.of(treatment).count() as u64, Relaxed);
        }
        self.figures.unexcluded_pods.store(wanted.without_room as u64, Relaxed);
        if std::mem::replace(&mut self.without_room, wanted.without_room) != wanted.without_room {
            match wanted.without_room {
                0 => info!("every Pod that is to be excluded or steered is so again"),
                more => warn!(
                    "the map of excluded and steered Pods is full ({} of them): {more} more are handled \
                     like all others; exclude or steer fewer",
                    self.map.room()
                ),
            }
        }
    }

    /// Watches the cgroups in which those of Pods are created. Returns whether a watch is new.
    fn watch(&mut self, found: &Found) -> bool {
        let Ok(watcher) = &mut self.watcher else { return false };
        let parents: BTreeSet<PathBuf> = found.parents.iter().cloned().collect();
        for gone in self.watched.difference(&parents) {
            // The kernel has already removed its watch.
            let _ = watcher.unwatch(gone);
        }
        self.watched.retain(|path| parents.contains(path));
        let mut is_new = false;
        for path in parents {
            if self.watched.contains(&path) {
                continue;
            }
            match watcher.watch(&path, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.watched.insert(path);
                    is_new = true;
                }
                Err(error) => debug!("{} cannot be watched: {error}", path.display()),
            }
        }
        is_new
    }
}

/// What to log about the kubelet's cgroups.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    /// Pods should be excluded or steered, but the cgroups do not exist.
    Missing,
    /// They exist again.
    Found,
}

/// Whether missing cgroups of the kubelet were logged. Pure.
#[derive(Debug, Default)]
struct Kubepods {
    is_missed: bool,
}

impl Kubepods {
    /// Takes in whether they exist, and whether any Pod needs them. Returns what to log.
    fn observe(&mut self, are_there: bool, are_needed: bool) -> Option<Change> {
        match (self.is_missed, are_there) {
            (true, true) => {
                self.is_missed = false;
                Some(Change::Found)
            }
            (false, false) if are_needed => {
                self.is_missed = true;
                Some(Change::Missing)
            }
            _ => None,
        }
    }
}

fn watcher(moved: Arc<Notify>) -> notify::Result<RecommendedWatcher> {
    let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // The agent's own reading causes such events.
        if !event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_))) {
            moved.notify_one();
        }
    });
    if let Err(error) = &watcher {
        warn!(
            "the system cannot say when Pods come ({error}), so the agent looks every {} ms: raising \
             fs.inotify.max_user_instances may help",
            LOOK_AGAIN_UNTOLD.as_millis()
        );
    }
    watcher
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_kubepods_is_missing_is_said_once_and_so_is_that_it_came() {
        let mut kubepods = Kubepods::default();
        assert_eq!(kubepods.observe(false, false), None, "nobody needs it");
        assert_eq!(kubepods.observe(false, true), Some(Change::Missing));
        assert_eq!(kubepods.observe(false, true), None);
        assert_eq!(kubepods.observe(true, true), Some(Change::Found));
        assert_eq!(kubepods.observe(true, true), None);
        assert_eq!(kubepods.observe(false, true), Some(Change::Missing));
        assert_eq!(Kubepods::default().observe(true, true), None, "it was never missed");
    }
}
