//! The index of each Service port: its key in `counters` and `names`, kept across restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use crate::cluster::ServiceId;

/// Maps each Service port's name, `namespace/name:port`, to its index.
#[derive(Clone, Debug)]
pub struct Indexes {
    by_name: BTreeMap<Arc<str>, u32>,
    /// Of all indexes that were ever in use.
    by_index: Vec<Option<Arc<str>>>,
    freed: BTreeSet<u32>,
    capacity: u32,
}

impl Indexes {
    /// No index in use, of `capacity`.
    pub fn new(capacity: u32) -> Self {
        Self { by_name: BTreeMap::new(), by_index: Vec::new(), freed: BTreeSet::new(), capacity }
    }

    /// The index of this Service port, if any.
    pub fn get(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// The Service port with this index, if any.
    pub fn name(&self, index: u32) -> Option<&Arc<str>> {
        self.by_index.get(index as usize)?.as_ref()
    }

    /// Number of indexes in use.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether no index is in use.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Every index in use, with its Service port.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Arc<str>)> {
        (0..).zip(&self.by_index).filter_map(|(index, name)| Some((index, name.as_ref()?)))
    }

    /// The Service ports of one Service and their indexes.
    pub fn of_service<'a>(
        &'a self,
        id: &ServiceId,
    ) -> impl Iterator<Item = (&'a Arc<str>, u32)> + use<'a> {
        let prefix = format!("{id}:");
        self.by_name
            .range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded))
            .map(|(name, &index)| (name, index))
            .take_while(move |(name, _)| name.starts_with(&prefix))
            .collect::<Vec<_>>()
            .into_iter()
    }

    /// The indexes for new Service ports, in order: unused ones first, to delay the reuse of an
    /// index.
    pub fn free(&self) -> impl Iterator<Item = u32> + use<'_> {
        (self.by_index.len() as u32..self.capacity).chain(self.freed.iter().copied())
    }

    /// Records the index of a Service port.
    pub fn set(&mut self, index: u32, name: Arc<str>) {
        let place = index as usize;
        self.freed.extend(self.by_index.len() as u32..index);
        if place >= self.by_index.len() {
            self.by_index.resize(place + 1, None);
        }
        self.freed.remove(&index);
        self.by_name.insert(name.clone(), index);
        self.by_index[place] = Some(name);
    }

    /// Records that this index is free.
    pub fn clear(&mut self, index: u32) {
        if let Some(name) = self.by_index.get_mut(index as usize).and_then(Option::take) {
            self.by_name.remove(&name);
            self.freed.insert(index);
        }
    }
}

/// The Service in a Service port's name, `namespace/name:port`.
pub(super) fn service_of(name: &str) -> Option<ServiceId> {
    let (namespace, rest) = name.split_once('/')?;
    let (name, _) = rest.split_once(':')?;
    Some(ServiceId { namespace: namespace.into(), name: name.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str) -> ServiceId {
        ServiceId { namespace: "default".into(), name: name.into() }
    }

    #[test]
    fn a_freed_index_waits_until_all_others_were_used() {
        let mut indexes = Indexes::new(3);
        indexes.set(0, "default/a:80".into());
        indexes.clear(0);
        assert_eq!(indexes.free().collect::<Vec<_>>(), [1, 2, 0]);
        indexes.set(1, "default/b:80".into());
        indexes.set(2, "default/c:80".into());
        assert_eq!(indexes.free().collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn indexes_skipped_at_start_are_free() {
        let mut indexes = Indexes::new(4);
        indexes.set(2, "default/a:80".into());
        assert_eq!(indexes.free().collect::<Vec<_>>(), [3, 0, 1]);
    }

    #[test]
    fn a_service_whose_name_begins_like_another_is_another() {
        let mut indexes = Indexes::new(8);
        for (index, name) in
            ["default/a:x", "default/a:y", "default/a-b:x", "default/ab:x"].into_iter().enumerate()
        {
            indexes.set(index as u32, name.into());
        }
        let of_a: Vec<u32> = indexes.of_service(&service("a")).map(|(_, index)| index).collect();
        assert_eq!(of_a, [0, 1]);
    }
}
