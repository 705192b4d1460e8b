//! Computes the excluded cgroups from Pods and their cgroups. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use topo_lb_common::exclusion::{Levels, MOST_LEVELS};

use super::{Pod, PodReport, Rules};

/// The cgroup of a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodCgroup {
    /// Its cgroup id.
    pub cgroup: u64,
    /// Its level in the hierarchy, as far as it is visible.
    pub level: u32,
}

/// The known Pods and cgroups.
#[derive(Debug)]
pub struct Books {
    rules: Rules,
    pods: BTreeMap<Arc<str>, PodRecord>,
    folders: BTreeMap<Arc<str>, PodCgroup>,
    /// Levels that may be above those of `folders`, invisible.
    unseen: u32,
    /// Whether all Pods were listed once.
    is_listed: bool,
}

#[derive(Debug)]
struct PodRecord {
    pod: Pod,
    /// Whether the API server deleted it. Its processes may still run.
    is_gone: bool,
}

/// What the maps should hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Cgroups of excluded Pods.
    pub cgroups: BTreeMap<u64, u32>,
    /// The levels on which they are.
    pub levels: Levels,
    /// Number of excluded Pods for which there is no room.
    pub without_room: usize,
}

impl Books {
    /// Without any knowledge.
    #[must_use]
    pub fn new(rules: Rules, unseen: u32) -> Self {
        let (pods, folders) = Default::default();
        Self { rules, pods, folders, unseen, is_listed: false }
    }

    /// Takes in a report of a source. Returns warnings.
    pub fn take(&mut self, said: PodReport) -> Vec<String> {
        let mut faults = Vec::new();
        match said {
            PodReport::All(pods) => {
                self.is_listed = true;
                self.pods.values_mut().for_each(|known| known.is_gone = true);
                pods.into_iter().for_each(|pod| faults.extend(self.put(pod)));
            }
            PodReport::Pod(pod) => faults.extend(self.put(pod)),
            PodReport::Gone(uid) => {
                if let Some(known) = self.pods.get_mut(&uid) {
                    known.is_gone = true;
                }
            }
            PodReport::Listed => {}
            PodReport::Trouble(sentence) => faults.push(sentence),
        }
        self.forget();
        faults
    }

    /// Stores a Pod. Returns what is wrong with its annotation, unless it was wrong before.
    fn put(&mut self, pod: Pod) -> Option<String> {
        let uid = Arc::clone(&pod.uid);
        let fault = self.rules.fault(&pod);
        let before = self.pods.insert(uid, PodRecord { pod, is_gone: false });
        fault.filter(|fault| {
            before.and_then(|old| self.rules.fault(&old.pod)).as_ref() != Some(fault)
        })
    }

    /// Takes in the existing cgroups.
    pub fn see(&mut self, folders: BTreeMap<Arc<str>, PodCgroup>) {
        self.folders = folders;
        self.forget();
    }

    /// A deleted Pod stays excluded while its cgroup exists.
    fn forget(&mut self) {
        self.pods.retain(|uid, known| !known.is_gone || self.folders.contains_key(uid));
    }

    /// Whether any Pod is excluded.
    #[must_use]
    pub fn excludes_any(&self) -> bool {
        self.pods.values().any(|known| self.rules.exclude(&known.pod))
    }

    /// What the maps should hold, of at most `room` Pods; those in `has`, which the maps hold now,
    /// come first. Before all Pods are known, a cgroup in `has` is taken for that of a Pod that the
    /// last agent excluded.
    #[must_use]
    pub fn wanted(&self, has: &BTreeSet<u64>, room: usize) -> Wanted {
        let is_excluded = |uid: &Arc<str>, folder: &PodCgroup| match self.pods.get(uid) {
            Some(known) => self.rules.exclude(&known.pod),
            None => !self.is_listed && has.contains(&folder.cgroup),
        };
        let folders = self.folders.iter().filter(|(uid, folder)| is_excluded(uid, folder));
        let folders = folders.map(|(_, folder)| folder);
        let (old, new): (Vec<&PodCgroup>, Vec<&PodCgroup>) =
            folders.partition(|folder| has.contains(&folder.cgroup));
        let cgroups: BTreeMap<u64, u32> =
            old.iter().chain(&new).take(room).map(|folder| (folder.cgroup, folder.level)).collect();
        let first = cgroups.values().min();
        let last = cgroups.values().max();
        let levels = match (first, last) {
            (Some(&first), Some(&last)) => Levels {
                first,
                count: (last - first + 1).saturating_add(self.unseen).min(MOST_LEVELS),
            },
            _ => Levels::default(),
        };
        let without_room = (old.len() + new.len()).saturating_sub(room);
        Wanted { cgroups, levels, without_room }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, namespace: &str) -> Pod {
        Pod { uid: uid.into(), namespace: namespace.into(), name: uid.into(), exclude: None }
    }

    fn books() -> Books {
        Books::new(Rules::new(vec!["meshed".parse().unwrap()], true), 0)
    }

    fn folders(all: &[(&str, u64, u32)]) -> BTreeMap<Arc<str>, PodCgroup> {
        let folder =
            |&(uid, cgroup, level): &(&str, u64, u32)| (uid.into(), PodCgroup { cgroup, level });
        all.iter().map(folder).collect()
    }

    fn cgroups(books: &Books) -> Vec<u64> {
        books.wanted(&BTreeSet::new(), 99).cgroups.into_keys().collect()
    }

    #[test]
    fn a_pod_and_its_cgroup_come_in_either_order() {
        for pod_first in [true, false] {
            let mut books = books();
            if pod_first {
                books.take(PodReport::Pod(pod("a", "meshed")));
                assert!(cgroups(&books).is_empty());
            }
            books.see(folders(&[("a", 7, 2), ("b", 8, 3)]));
            if !pod_first {
                assert!(cgroups(&books).is_empty());
                books.take(PodReport::Pod(pod("a", "meshed")));
            }
            assert_eq!(cgroups(&books), [7]);
        }
    }

    #[test]
    fn a_pod_that_is_gone_is_excluded_until_its_cgroup_is_gone() {
        let mut books = books();
        books.see(folders(&[("a", 7, 2)]));
        books.take(PodReport::All(vec![pod("a", "meshed"), pod("b", "other")]));
        books.take(PodReport::All(Vec::new()));
        assert_eq!(cgroups(&books), [7]);
        books.see(folders(&[]));
        books.see(folders(&[("a", 7, 2)]));
        assert!(cgroups(&books).is_empty());
    }

    #[test]
    fn what_the_last_agent_excluded_stays_so_until_the_pods_are_listed() {
        let mut books = books();
        let has = BTreeSet::from([7, 8, 99]);
        books.see(folders(&[("a", 7, 2), ("b", 8, 3), ("c", 9, 3)]));
        let kept = |books: &Books| books.wanted(&has, 99).cgroups.into_keys().collect::<Vec<_>>();
        assert_eq!(kept(&books), [7, 8], "nobody has said which Pods there are");
        assert_eq!(books.wanted(&has, 99).levels, Levels { first: 2, count: 2 });
        books.take(PodReport::Trouble("the API server does not answer".into()));
        assert_eq!(kept(&books), [7, 8]);
        books.take(PodReport::All(vec![pod("a", "meshed"), pod("b", "other")]));
        assert_eq!(kept(&books), [7]);
    }

    #[test]
    fn an_annotation_that_is_taken_away_ends_the_exclusion() {
        let mut books = books();
        books.see(folders(&[("a", 7, 2)]));
        let annotated = Pod { exclude: Some("true".into()), ..pod("a", "other") };
        books.take(PodReport::Pod(annotated));
        assert_eq!(cgroups(&books), [7]);
        books.take(PodReport::Pod(pod("a", "other")));
        assert!(cgroups(&books).is_empty());
    }

    #[test]
    fn levels_span_what_is_excluded_and_no_more() {
        let mut books = books();
        books.see(folders(&[("a", 7, 2), ("b", 8, 3), ("c", 9, 9)]));
        let none = books.wanted(&BTreeSet::new(), 99);
        assert_eq!(none.levels, Levels { first: 0, count: 0 });
        books.take(PodReport::All(vec![pod("a", "meshed"), pod("b", "meshed"), pod("c", "other")]));
        let both = books.wanted(&BTreeSet::new(), 99);
        assert_eq!(both.levels, Levels { first: 2, count: 2 });
        books.unseen = 99;
        let unseen = books.wanted(&BTreeSet::new(), 99);
        assert_eq!(unseen.levels, Levels { first: 2, count: MOST_LEVELS });
    }

    #[test]
    fn whoever_is_excluded_stays_so_when_there_is_no_room_for_others() {
        let mut books = books();
        let all: Vec<_> = (0..6).map(|at| format!("{at}")).collect();
        let seen: Vec<_> = all.iter().zip(0..).map(|(uid, at)| (uid.as_str(), at, 2)).collect();
        books.see(folders(&seen));
        books.take(PodReport::All(all.iter().map(|uid| pod(uid, "meshed")).collect()));
        let wanted = books.wanted(&BTreeSet::from([4, 5]), 3);
        assert_eq!(wanted.cgroups.keys().copied().collect::<Vec<_>>(), [0, 4, 5]);
        assert_eq!(wanted.without_room, 3);
    }

    #[test]
    fn what_is_wrong_with_an_annotation_is_told_once() {
        let mut books = books();
        let wrong = Pod { exclude: Some("yes".into()), ..pod("a", "other") };
        assert_eq!(books.take(PodReport::Pod(wrong.clone())).len(), 1);
        assert_eq!(books.take(PodReport::All(vec![wrong.clone()])).len(), 0);
        let other = Pod { exclude: Some("no".into()), ..wrong };
        assert_eq!(books.take(PodReport::Pod(other)).len(), 1);
    }
}
