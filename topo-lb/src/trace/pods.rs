//! The Pod of a process, by its cgroup. The kubelet names the folders of a Pod's logs
//! `NAMESPACE_NAME_UID`, so that nobody has to be asked for its name.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use crate::exclusion::Tree;

/// Most cgroups that are remembered; a host has fewer.
const MOST: usize = 65_536;

/// A Pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodName {
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// `namespace/name`, if known.
    pub name: Option<Arc<str>>,
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name.as_ref().unwrap_or(&self.uid))
    }
}

impl PodName {
    /// Whether `text` is its UID, or its `namespace/name`.
    #[must_use]
    pub fn is(&self, text: &str) -> bool {
        *self.uid == *text || self.name.as_deref() == Some(text)
    }
}

/// The Pods of this node.
#[derive(Debug)]
pub struct Pods {
    tree: Tree,
    logs: PathBuf,
    /// By cgroup. `None`: it is no Pod's.
    known: BTreeMap<u64, Option<PodName>>,
}

impl Pods {
    /// The Pods with cgroups below `cgroup_root`, and logs in `logs`.
    ///
    /// # Errors
    /// The cgroup root cannot be read.
    pub fn new(cgroup_root: &Path, logs: &Path) -> io::Result<Self> {
        Ok(Self { tree: Tree::new(cgroup_root)?, logs: logs.to_owned(), known: BTreeMap::new() })
    }

    /// The Pod of a cgroup. Searches all cgroups of Pods if it is a new one.
    pub fn of(&mut self, cgroup: u64) -> Option<PodName> {
        if !self.known.contains_key(&cgroup) {
            if self.known.len() > MOST {
                self.known.clear();
            }
            let names = names(&self.logs);
            for (cgroup, uid) in self.tree.pods() {
                let name = names.get(&uid).cloned();
                self.known.insert(cgroup, Some(PodName { uid, name }));
            }
            self.known.entry(cgroup).or_default();
        }
        self.known.get(&cgroup).cloned().flatten()
    }
}

/// `namespace/name` of Pods by UID; none if there are no logs.
fn names(logs: &Path) -> BTreeMap<Arc<str>, Arc<str>> {
    let entries = fs::read_dir(logs).into_iter().flatten().flatten();
    entries.filter_map(|entry| name(entry.file_name().to_str()?)).collect()
}

/// UID and name in the name of a folder. Names of namespaces and Pods have no `_`.
fn name(folder: &str) -> Option<(Arc<str>, Arc<str>)> {
    let mut parts = folder.split('_');
    let (namespace, name, uid) = (parts.next()?, parts.next()?, parts.next()?);
    let is_whole = parts.next().is_none() && ![namespace, name, uid].contains(&"");
    is_whole.then(|| (uid.into(), format!("{namespace}/{name}").into()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn a_folder_of_logs_names_a_pod() {
        let wanted = Some(("ab-12".into(), "default/web-0".into()));
        assert_eq!(name("default_web-0_ab-12"), wanted);
        for other in ["", "default", "default_web", "a_b_c_d", "__", "a__b"] {
            assert_eq!(name(other), None, "{other}");
        }
    }

    #[test]
    fn a_process_in_a_container_is_its_pods() {
        let root = tempfile::tempdir().unwrap();
        let (cgroups, logs) = (root.path().join("cgroups"), root.path().join("logs"));
        let container = cgroups.join("kubepods/burstable/podab-12/container/deep");
        fs::create_dir_all(&container).unwrap();
        let mut pods = Pods::new(&cgroups, &logs).unwrap();
        let id = |path: &Path| fs::metadata(path).unwrap().ino();
        let unnamed = pods.of(id(&container)).expect("a Pod");
        assert_eq!(unnamed.to_string(), "ab-12");
        assert!(unnamed.is("ab-12") && !unnamed.is("default/web-0"));
        assert_eq!(pods.of(id(&cgroups)), None);
        assert_eq!(pods.of(0), None);

        // A container that is new: its Pod has a name meanwhile.
        fs::create_dir_all(logs.join("default_web-0_ab-12")).unwrap();
        let other = cgroups.join("kubepods/burstable/podab-12/other");
        fs::create_dir(&other).unwrap();
        let named = pods.of(id(&other)).expect("a Pod");
        assert_eq!(named.to_string(), "default/web-0");
        assert!(named.is("ab-12") && named.is("default/web-0") && !named.is("web-0"));
    }
}
