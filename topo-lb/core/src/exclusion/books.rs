//! Computes the cgroups of Pods that are excluded or steered. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use topo_lb_common::exclusion::{Excluded, Levels, MOST_LEVELS, Treatment};

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
    /// Cgroups of excluded and of steered Pods.
    pub cgroups: BTreeMap<u64, Excluded>,
    /// The levels on which they are.
    pub levels: Levels,
    /// Number of such Pods for which there is no room.
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

    /// Stores a Pod. Returns what is wrong with its annotations, and was not before.
    fn put(&mut self, pod: Pod) -> Vec<String> {
        let uid = Arc::clone(&pod.uid);
        let mut faults = self.rules.faults(&pod);
        let before = self.pods.insert(uid, PodRecord { pod, is_gone: false });
        let known = before.map_or_else(Vec::new, |old| self.rules.faults(&old.pod));
        faults.retain(|fault| !known.contains(fault));
        faults
    }

    /// Takes in the existing cgroups.
    pub fn see(&mut self, folders: BTreeMap<Arc<str>, PodCgroup>) {
        self.folders = folders;
        self.forget();
    }

    /// A deleted Pod is treated as before while its cgroup exists.
    fn forget(&mut self) {
        self.pods.retain(|uid, known| !known.is_gone || self.folders.contains_key(uid));
    }

    /// Whether any Pod is excluded or steered.
    #[must_use]
    pub fn has_any(&self) -> bool {
        self.pods.values().any(|known| self.rules.treatment(&known.pod).is_some())
    }

    /// What the maps should hold, of at most `room` Pods; those in `has`, which the maps hold now,
    /// come first. Before all Pods are known, a cgroup in `has` is taken for that of a Pod that the
    /// last agent treated so.
    #[must_use]
    pub fn wanted(&self, has: &BTreeMap<u64, Treatment>, room: usize) -> Wanted {
        let treatment = |uid: &Arc<str>, folder: &PodCgroup| match self.pods.get(uid) {
            Some(known) => self.rules.treatment(&known.pod),
            None => has.get(&folder.cgroup).filter(|_| !self.is_listed).copied(),
        };
        let folders = self.folders.iter();
        let folders = folders.filter_map(|(uid, folder)| Some((folder, treatment(uid, folder)?)));
        let (old, new): (Vec<_>, Vec<_>) =
            folders.partition(|(folder, _)| has.contains_key(&folder.cgroup));
        let used: Vec<_> = old.iter().chain(&new).take(room).collect();
        let value = |(folder, treatment): &(&PodCgroup, Treatment)| {
            (folder.cgroup, Excluded::new(folder.level, *treatment))
        };
        let cgroups = used.iter().map(|one| value(one)).collect();
        let first = used.iter().map(|(folder, _)| folder.level).min();
        let last = used.iter().map(|(folder, _)| folder.level).max();
        let levels = match (first, last) {
            (Some(first), Some(last)) => Levels {
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
    use super::super::Selection;
    use super::*;

    fn pod(uid: &str, namespace: &str) -> Pod {
        let (exclude, steer) = (None, None);
        Pod { uid: uid.into(), namespace: namespace.into(), name: uid.into(), exclude, steer }
    }

    fn books() -> Books {
        let excluded = Selection::new(vec!["meshed".parse().unwrap()], true);
        Books::new(Rules { excluded, steered: Selection::new(Vec::new(), true) }, 0)
    }

    const NOTHING: &BTreeMap<u64, Treatment> = &BTreeMap::new();

    fn folders(all: &[(&str, u64, u32)]) -> BTreeMap<Arc<str>, PodCgroup> {
        let folder =
            |&(uid, cgroup, level): &(&str, u64, u32)| (uid.into(), PodCgroup { cgroup, level });
        all.iter().map(folder).collect()
    }

    fn cgroups(books: &Books) -> Vec<u64> {
        books.wanted(NOTHING, 99).cgroups.into_keys().collect()
    }

    fn excluded<const N: usize>(cgroups: [u64; N]) -> BTreeMap<u64, Treatment> {
        cgroups.map(|cgroup| (cgroup, Treatment::Excluded)).into()
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
        let has = excluded([7, 8, 99]);
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
    fn a_pod_is_steered_until_it_is_excluded_and_an_agent_that_starts_keeps_both() {
        let mut books = books();
        books.see(folders(&[("a", 7, 2), ("b", 8, 2)]));
        let steered = Pod { steer: Some("true".into()), ..pod("a", "shop") };
        let both = Pod { exclude: Some("true".into()), ..steered.clone() };
        let all = |books: &Books, has: &BTreeMap<u64, Treatment>| -> Vec<_> {
            let wanted = books.wanted(has, 99).cgroups.into_iter();
            wanted.map(|(cgroup, value)| (cgroup, value.treatment())).collect()
        };
        let has = [(7, Treatment::Steered), (8, Treatment::Excluded)].into();
        assert_eq!(all(&books, &has), [(7, Treatment::Steered), (8, Treatment::Excluded)]);
        for (pod, wanted) in [(steered, Treatment::Steered), (both, Treatment::Excluded)] {
            books.take(PodReport::All(vec![pod]));
            assert_eq!(all(&books, &has), [(7, wanted)]);
        }
        books.take(PodReport::All(vec![pod("a", "shop")]));
        assert_eq!(all(&books, &has), []);
    }

    #[test]
    fn levels_span_what_is_excluded_and_no_more() {
        let mut books = books();
        books.see(folders(&[("a", 7, 2), ("b", 8, 3), ("c", 9, 9)]));
        let none = books.wanted(NOTHING, 99);
        assert_eq!(none.levels, Levels { first: 0, count: 0 });
        books.take(PodReport::All(vec![pod("a", "meshed"), pod("b", "meshed"), pod("c", "other")]));
        let both = books.wanted(NOTHING, 99);
        assert_eq!(both.levels, Levels { first: 2, count: 2 });
        books.unseen = 99;
        let unseen = books.wanted(NOTHING, 99);
        assert_eq!(unseen.levels, Levels { first: 2, count: MOST_LEVELS });
    }

    #[test]
    fn whoever_is_excluded_stays_so_when_there_is_no_room_for_others() {
        let mut books = books();
        let all: Vec<_> = (0..6).map(|at| format!("{at}")).collect();
        let seen: Vec<_> = all.iter().zip(0..).map(|(uid, at)| (uid.as_str(), at, 2)).collect();
        books.see(folders(&seen));
        books.take(PodReport::All(all.iter().map(|uid| pod(uid, "meshed")).collect()));
        let wanted = books.wanted(&excluded([4, 5]), 3);
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
