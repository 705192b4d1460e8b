//! The folder for a cluster's state: loads what is saved, or sets it aside.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use topo_lb_core::cluster::{Change, KnownNodes, SliceId, State, Update};

use super::error::StateError;
use super::format::Whole;
use super::{file, format};
use crate::source::kube::Identity;

const FILE: &str = "cluster.state";

/// The folder for one cluster's state.
#[derive(Clone, Debug)]
pub struct Folder {
    file: PathBuf,
    cluster: Identity,
}

/// An intact saved state of this cluster.
#[derive(Debug)]
pub struct Saved {
    whole: Whole,
    known_nodes: KnownNodes,
    /// Of slices that have any.
    ready_since: HashMap<SliceId, Vec<(IpAddr, i64)>>,
}

impl Saved {
    /// When the state was current.
    #[must_use]
    pub fn as_of(&self) -> SystemTime {
        self.whole.header.as_of()
    }

    /// Whether it has all Nodes, or only this node's.
    #[must_use]
    pub const fn known_nodes(&self) -> KnownNodes {
        self.known_nodes
    }

    /// Adds to slices of a listing since when their endpoints are Ready: the API does not say it.
    pub(super) fn remind(&self, update: &mut Update) {
        let slices = match update {
            Update::Slice(Change::Applied(slice)) => std::slice::from_mut(slice),
            Update::Slice(Change::Listed(slices, _)) => slices,
            _ => return,
        };
        for slice in slices {
            slice.ready_since = self.ready_since.get(&slice.id).cloned().unwrap_or_default();
        }
    }

    /// Its objects.
    pub fn into_updates(self) -> impl Iterator<Item = Update> + Send {
        self.whole.into_objects()
    }
}

impl Folder {
    /// The file for the objects of `cluster` in `folder`. The first save creates the folder.
    #[must_use]
    pub fn new(folder: &Path, cluster: Identity) -> Self {
        Self { file: folder.join(FILE), cluster }
    }

    /// Loads the saved state; `None` if there is none. Sets aside a damaged file, or one of another
    /// cluster. Calls `each` with every object.
    ///
    /// # Errors
    /// There is a saved state, but `node` cannot start from it.
    pub fn load(
        &self,
        node: &str,
        mut each: impl FnMut(&Update),
    ) -> Result<Option<Saved>, StateError> {
        let path = || self.file.clone();
        let text = match file::read(&self.file) {
            Ok(Some(text)) => text,
            Ok(None) => return Ok(None),
            Err(reason) => return Err(StateError::Unreadable { path: path(), reason }),
        };
        let whole = Whole::read(text).map_err(|error| self.set_aside(&error.to_string()))?;
        if !whole.header.cluster.is_same(&self.cluster) {
            let reason = format!(
                "it is of another cluster, that of {}, and this agent's API server is {}",
                whole.header.cluster.server, self.cluster.server
            );
            return Err(self.set_aside(&reason));
        }
        let (mut known, mut known_nodes) = (false, KnownNodes::Own);
        let mut ready_since = HashMap::new();
        for update in whole.objects() {
            let update = update.map_err(|error| self.set_aside(&error.to_string()))?;
            match &update {
                Update::Node(Change::Applied(one)) if &*one.name == node => known = true,
                Update::Node(Change::Applied(_)) => known_nodes = KnownNodes::All,
                Update::Slice(Change::Applied(one)) if !one.ready_since.is_empty() => {
                    ready_since.insert(one.id.clone(), one.ready_since.clone());
                }
                _ => {}
            }
            each(&update);
        }
        if !known {
            return Err(StateError::OtherNode { path: path(), node: node.to_owned() });
        }
        Ok(Some(Saved { whole, known_nodes, ready_since }))
    }

    fn set_aside(&self, reason: &str) -> StateError {
        let (path, reason) = (self.file.clone(), reason.to_owned());
        match file::set_aside(&self.file) {
            Ok(aside) => StateError::SetAside { path, reason, aside },
            Err(error) => StateError::InTheWay { path, reason, error },
        }
    }

    /// Saves `state`, and returns the size in bytes. Drops `state` before the wait for the disk.
    pub(super) fn save(&self, state: Arc<State>, as_of: SystemTime) -> Result<u64, StateError> {
        let save = || {
            if let Some(folder) = self.file.parent() {
                file::make_folder(folder)?;
            }
            let cluster = self.cluster.clone();
            file::replace(&self.file, move |out| format::write(&state, cluster, as_of, out))
        };
        save().map_err(|reason| StateError::NotSaved { path: self.file.clone(), reason })
    }
}
