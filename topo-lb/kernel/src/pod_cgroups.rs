//! Finds the cgroup of each Pod. The kubelet names a Pod's cgroup by its UID, below `kubepods`:
//!
//! | cgroup driver | Guaranteed | Burstable, BestEffort |
//! |---|---|---|
//! | cgroupfs | `kubepods/podUID` | `kubepods/burstable/podUID` |
//! | systemd | `kubepods.slice/kubepods-podUID.slice` | `kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice` |
//!
//! systemd's names have `_` for each `-` of the UID.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::{DirEntryExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use topo_lb_core::exclusion::PodCgroup;

/// Deepest level below the cgroup root to search for `kubepods`; kind has it at the third.
const DEEPEST: u32 = 5;
/// The inode number of the hierarchy's root (`kernfs_create_root`, fs/kernfs/dir.c: the first).
const ROOT: u64 = 1;
/// Levels assumed above a cgroup root of unknown level.
const UNKNOWN: u32 = 8;

/// Searches the cgroups of Pods.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
    /// The level of `root`, and how many levels may be above it, invisible.
    level: u32,
    unseen: u32,
    /// The paths of `kubepods`, and their levels.
    tops: Vec<(PathBuf, u32)>,
}

/// The result of a search.
#[derive(Debug, Default)]
pub struct Found {
    /// The cgroups by UID of the Pod.
    pub folders: BTreeMap<Arc<str>, PodCgroup>,
    /// The cgroups in which those of Pods are created and removed.
    pub parents: Vec<PathBuf>,
}

impl Tree {
    /// Below a cgroup root.
    ///
    /// # Errors
    /// The cgroup root cannot be read.
    pub fn new(root: &Path) -> io::Result<Self> {
        let root = root.canonicalize()?;
        let (level, unseen) = match level(&root)? {
            Some(level) => (level, 0),
            // The mount shows only a part of the hierarchy, as in a cgroup namespace.
            None => (0, UNKNOWN),
        };
        Ok(Self { root, level, unseen, tops: Vec::new() })
    }

    /// The cgroup root.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// How many levels may be above the visible ones.
    #[must_use]
    pub const fn unseen(&self) -> u32 {
        self.unseen
    }

    /// Searches the existing cgroups of Pods.
    #[must_use]
    pub fn look(&mut self) -> Found {
        let mut found = Found::default();
        for (top, level) in self.tops() {
            look_into(top, *level, &mut found);
        }
        found
    }

    /// The UID of the Pod of each cgroup that is a Pod's, or below one.
    #[must_use]
    pub fn pods(&mut self) -> BTreeMap<u64, Arc<str>> {
        let mut pods = BTreeMap::new();
        for (top, _) in self.tops() {
            walk(top, None, &mut pods);
        }
        pods
    }

    /// Whether this is a cgroup at or below the cgroup root.
    #[must_use]
    pub fn has(&self, cgroup: u64) -> bool {
        fn is_below(path: &Path, cgroup: u64) -> bool {
            below(path).any(|(_, own, path)| own == cgroup || is_below(&path, cgroup))
        }
        fs::metadata(&self.root).is_ok_and(|root| root.ino() == cgroup)
            || is_below(&self.root, cgroup)
    }

    /// The paths of `kubepods`, and their levels.
    fn tops(&mut self) -> &[(PathBuf, u32)] {
        self.tops.retain(|(path, _)| path.is_dir());
        if self.tops.is_empty() {
            if self.root.file_name().and_then(OsStr::to_str).is_some_and(is_top) {
                self.tops.push((self.root.clone(), self.level));
            } else {
                find_tops(&self.root, self.level, self.level + DEEPEST, &mut self.tops);
            }
        }
        &self.tops
    }
}

/// The level of a cgroup; `None` if its mount does not show the whole hierarchy.
fn level(cgroup: &Path) -> io::Result<Option<u32>> {
    let device = fs::metadata(cgroup)?.dev();
    for (level, path) in (0..).zip(cgroup.ancestors()) {
        let metadata = fs::metadata(path)?;
        if metadata.dev() != device {
            break;
        }
        if metadata.ino() == ROOT {
            return Ok(Some(level));
        }
    }
    Ok(None)
}

/// Names, ids and paths of the cgroups in another one; none if that is gone.
fn below(path: &Path) -> impl Iterator<Item = (String, u64, PathBuf)> {
    fs::read_dir(path).into_iter().flatten().flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        entry.file_type().ok()?.is_dir().then(|| (name, entry.ino(), entry.path()))
    })
}

/// Finds the kubelet's `kubepods`: in the root, or in slices that the kubelet's `--cgroup-root`
/// names. One inside a Pod, a container or a service is not the kubelet's, but for example that of
/// a kubelet in a container.
fn find_tops(path: &Path, level: u32, deepest: u32, tops: &mut Vec<(PathBuf, u32)>) {
    for (name, _, path) in below(path) {
        if is_top(&name) {
            tops.push((path, level + 1));
        } else if level + 1 < deepest && !is_delegated(&name) {
            find_tops(&path, level + 1, deepest, tops);
        }
    }
}

fn look_into(parent: &Path, level: u32, found: &mut Found) {
    found.parents.push(parent.to_owned());
    for (name, cgroup, path) in below(parent) {
        match pod_uid(&name) {
            Some(uid) => {
                found.folders.insert(uid.into(), PodCgroup { cgroup, level: level + 1 });
            }
            None if is_class(&name) => look_into(&path, level + 1, found),
            None => {}
        }
    }
}

/// Collects the cgroups below one, which is a Pod's or below one if `pod` is there.
fn walk(parent: &Path, pod: Option<&Arc<str>>, pods: &mut BTreeMap<u64, Arc<str>>) {
    for (name, cgroup, path) in below(parent) {
        let own = pod.is_none().then(|| pod_uid(&name).map(Arc::from)).flatten();
        let pod = pod.or(own.as_ref());
        if let Some(pod) = pod {
            pods.insert(cgroup, Arc::clone(pod));
        }
        if pod.is_some() || is_class(&name) {
            walk(&path, pod, pods);
        }
    }
}

/// Whether this is `kubepods` of either driver, with any `--cgroup-root` of the kubelet.
fn is_top(name: &str) -> bool {
    let name = name.strip_suffix(".slice").unwrap_or(name);
    name == "kubepods" || name.ends_with("-kubepods")
}

/// Whether this is a Pod's cgroup, or a scope or service, which systemd delegates.
fn is_delegated(name: &str) -> bool {
    pod_uid(name).is_some() || name.ends_with(".scope") || name.ends_with(".service")
}

/// Whether this is the cgroup of a QoS class.
fn is_class(name: &str) -> bool {
    let name = name.strip_suffix(".slice").unwrap_or(name);
    ["burstable", "besteffort"].iter().any(|class| {
        name.strip_suffix(class).is_some_and(|before| before.is_empty() || before.ends_with('-'))
    })
}

/// The Pod's UID in the name of its cgroup.
fn pod_uid(name: &str) -> Option<String> {
    let uid = match name.strip_suffix(".slice") {
        None => name.strip_prefix("pod")?.to_owned(),
        Some(unit) => {
            let (before, uid) = unit.rsplit_once("-pod")?;
            before.contains("kubepods").then(|| uid.replace('_', "-"))?
        }
    };
    let is_uid =
        !uid.is_empty() && uid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    is_uid.then_some(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0a1b2c3d-0000-4000-8000-0123456789ab";

    #[test]
    fn a_pods_cgroup_is_known_by_its_name_with_either_driver() {
        let systemd = UID.replace('-', "_");
        for name in [
            format!("pod{UID}"),
            format!("kubepods-pod{systemd}.slice"),
            format!("kubepods-burstable-pod{systemd}.slice"),
            format!("kubelet-kubepods-besteffort-pod{systemd}.slice"),
        ] {
            assert_eq!(pod_uid(&name).as_deref(), Some(UID), "{name}");
        }
        for name in ["pod", "podium", "kubepods", "kubepods.slice", "burstable", "a-pod1.slice"] {
            assert_eq!(pod_uid(name), None, "{name}");
        }
    }

    #[test]
    fn kubepods_and_its_classes_are_known_by_their_names() {
        for name in ["kubepods", "kubepods.slice", "kubelet-kubepods.slice"] {
            assert!(is_top(name) && !is_class(name), "{name}");
        }
        for name in ["burstable", "besteffort", "kubepods-burstable.slice"] {
            assert!(is_class(name) && !is_top(name), "{name}");
        }
        assert!(!is_top("system.slice") && !is_class("notburstable"));
    }

    /// The Pods that have a cgroup, and its level.
    fn look(tree: &mut Tree) -> Vec<(String, u32)> {
        let found = tree.look().folders.into_iter();
        found.map(|(uid, folder)| (uid.to_string(), folder.level)).collect()
    }

    fn tree(root: &Path) -> Tree {
        Tree { root: root.to_owned(), level: 0, unseen: 0, tops: Vec::new() }
    }

    #[test]
    fn a_kubepods_that_a_pod_or_a_service_made_is_not_the_nodes_own() {
        let root = tempfile::tempdir().unwrap();
        let inside = format!("kubepods/pod{UID}");
        for path in [
            "kubepods.slice/kubepods-pod12345678.slice/cri-containerd-1.scope".to_owned(),
            format!("kubepods.slice/kubepods-pod12345678.slice/{inside}"),
            format!(
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podabcdef.slice/{inside}"
            ),
            format!("system.slice/docker-1.scope/{inside}"),
            format!("system.slice/k3s.service/{inside}"),
        ] {
            fs::create_dir_all(root.path().join(path)).unwrap();
        }
        // The agent's --cgroup-root is the whole hierarchy or the Pods' part of it.
        let (all, part) = (root.path().to_owned(), root.path().join("kubepods.slice"));
        for (root, levels) in [(all, [2, 3]), (part, [1, 2])] {
            let wanted = [("12345678".to_owned(), levels[0]), ("abcdef".to_owned(), levels[1])];
            assert_eq!(look(&mut tree(&root)), wanted);
        }
    }

    #[test]
    fn pods_are_found_in_folders_as_both_drivers_make_them() {
        let root = tempfile::tempdir().unwrap();
        let systemd = format!(
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice",
            "1".repeat(8)
        );
        for path in [&format!("x/kubepods/pod{UID}/container"), &systemd] {
            fs::create_dir_all(root.path().join(path)).unwrap();
        }
        let mut tree = tree(root.path());
        assert_eq!(look(&mut tree), [(UID.to_owned(), 3), ("11111111".to_owned(), 3)]);
        let mut pods: Vec<_> = tree.pods().into_values().map(|uid| uid.to_string()).collect();
        pods.sort();
        assert_eq!(pods, [UID, UID, "11111111"], "a Pod's own cgroup, and its container's");
        assert_eq!(tree.look().parents.len(), 3);
        drop(root);
        assert_eq!(look(&mut tree), [], "what is gone is not found");
    }
}
