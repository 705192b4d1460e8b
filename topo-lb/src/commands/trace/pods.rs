//! The Pod of a process, by its cgroup. The kubelet names the folders of a Pod's logs
//! `NAMESPACE_NAME_UID`, so that nobody has to be asked for its name.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use topo_lb_core::topology::label_name::is_dns_name;
use topo_lb_kernel::pod_cgroups::Tree;

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
        match &self.name {
            Some(name) => f.write_str(name),
            // The beginning tells Pods of a node apart; JSON has it all.
            None => write!(f, "uid-{}", self.uid.chars().take(8).collect::<String>()),
        }
    }
}

impl PodName {
    /// Whether `text` is its UID, or its `namespace/name`.
    #[must_use]
    pub fn is(&self, text: &str) -> bool {
        *self.uid == *text || self.name.as_deref() == Some(text)
    }
}

/// Whose a process is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Owner {
    /// The host's.
    #[default]
    Host,
    /// A Pod's.
    Pod(PodName),
    /// Its cgroup is gone already, or not below the cgroup root: perhaps a Pod's.
    Unknown,
}

/// The Pods of this node.
#[derive(Debug)]
pub struct Pods {
    tree: Tree,
    logs: PathBuf,
    /// What others say of their names.
    told: Told,
    /// By cgroup.
    known: BTreeMap<u64, Owner>,
}

impl Pods {
    /// The Pods with cgroups below `cgroup_root`, and logs in `logs`.
    ///
    /// # Errors
    /// The cgroup root cannot be read.
    pub fn new(cgroup_root: &Path, logs: &Path, told: Told) -> io::Result<Self> {
        let (tree, logs) = (Tree::new(cgroup_root)?, logs.to_owned());
        Ok(Self { tree, logs, told, known: BTreeMap::new() })
    }

    /// Characters of the longest name of a Pod of this node, as far as they are known.
    pub fn longest(&self) -> usize {
        let lengths =
            |names: &BTreeMap<Arc<str>, Arc<str>>| names.values().map(|it| it.len()).max();
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        lengths(&told).max(lengths(&names(&self.logs))).unwrap_or_default()
    }

    /// Whose processes in a cgroup are. Searches all cgroups if it is a new one.
    pub fn of(&mut self, cgroup: u64) -> Owner {
        if !self.known.contains_key(&cgroup) {
            if self.known.len() > MOST {
                self.known.clear();
            }
            let names = names(&self.logs);
            for (cgroup, uid) in self.tree.pods() {
                let name = names.get(&uid).cloned();
                self.known.insert(cgroup, Owner::Pod(PodName { uid, name }));
            }
            let tree = &self.tree;
            let other = || if tree.has(cgroup) { Owner::Host } else { Owner::Unknown };
            self.known.entry(cgroup).or_insert_with(other);
        }
        let owner = self.known.get(&cgroup).cloned().unwrap_or_default();
        match owner {
            Owner::Pod(PodName { uid, name: None }) => {
                let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
                let name = told.get(&uid).cloned();
                Owner::Pod(PodName { uid, name })
            }
            owner => owner,
        }
    }
}

/// `namespace/name` of Pods by UID, as somebody tells who may ask the API server.
pub type Told = Arc<Mutex<BTreeMap<Arc<str>, Arc<str>>>>;

/// `namespace/name` of Pods by UID; none if there are no logs.
fn names(logs: &Path) -> BTreeMap<Arc<str>, Arc<str>> {
    let entries = fs::read_dir(logs).into_iter().flatten().flatten();
    entries.filter_map(|entry| name(entry.file_name().to_str()?)).collect()
}

/// UID and name in the name of a folder. Names of namespaces and Pods have no `_`.
fn name(folder: &str) -> Option<(Arc<str>, Arc<str>)> {
    let mut parts = folder.split('_');
    let (namespace, name, uid) = (parts.next()?, parts.next()?, parts.next()?);
    let is_whole = parts.next().is_none() && [namespace, name, uid].into_iter().all(is_dns_name);
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
        for other in [
            "",
            "default",
            "default_web",
            "a_b_c_d",
            "__",
            "a__b",
            "a_\u{1b}[2J_b",
            "a_B_c",
            "a_b c_d",
        ] {
            assert_eq!(name(other), None, "{other}");
        }
    }

    #[test]
    fn a_process_in_a_container_is_its_pods() {
        let root = tempfile::tempdir().unwrap();
        let (cgroups, logs) = (root.path().join("cgroups"), root.path().join("logs"));
        let container = cgroups.join("kubepods/burstable/podab-12/container/deep");
        fs::create_dir_all(&container).unwrap();
        let told = Told::default();
        let mut pods = Pods::new(&cgroups, &logs, Arc::clone(&told)).unwrap();
        let id = |path: &Path| fs::metadata(path).unwrap().ino();
        let mut pod = |path: &Path| match pods.of(id(path)) {
            Owner::Pod(pod) => pod,
            other => panic!("{other:?}"),
        };
        let unnamed = pod(&container);
        assert_eq!(unnamed.to_string(), "uid-ab-12");
        assert!(unnamed.is("ab-12") && !unnamed.is("default/web-0"));

        // Somebody knows it.
        told.lock().unwrap().insert("ab-12".into(), "shop/told".into());
        assert_eq!(pod(&container).to_string(), "shop/told");
        told.lock().unwrap().clear();

        // A container that is new: its Pod has a name meanwhile.
        fs::create_dir_all(logs.join("default_web-0_ab-12")).unwrap();
        let other = cgroups.join("kubepods/burstable/podab-12/other");
        fs::create_dir(&other).unwrap();
        let named = pod(&other);
        assert_eq!(named.to_string(), "default/web-0");
        assert!(named.is("ab-12") && named.is("default/web-0") && !named.is("web-0"));

        let service = cgroups.join("system.slice/sshd.service");
        fs::create_dir_all(&service).unwrap();
        for host in [&cgroups, &service] {
            assert_eq!(pods.of(id(host)), Owner::Host, "{host:?}");
        }
        // Its container has ended.
        let gone = cgroups.join("kubepods/gone");
        fs::create_dir(&gone).unwrap();
        let inode = id(&gone);
        fs::remove_dir(&gone).unwrap();
        assert_eq!(pods.of(inode), Owner::Unknown);
    }
}
