//! Labels as a sorted array: a third of a `BTreeMap`'s memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Label: the host name of the Node, usually its name.
pub const HOSTNAME: &str = "kubernetes.io/hostname";
/// Label: the zone.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// Label: the region.
pub const REGION: &str = "topology.kubernetes.io/region";

/// Labels of a Node, or those that a slice carries for an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Labels(Box<[(Arc<str>, Arc<str>)]>);

impl Labels {
    /// The value of `key`; a label without a value is `Some("")`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Arc<str>> {
        let at = self.0.binary_search_by(|(own, _)| (**own).cmp(key)).ok()?;
        Some(&self.0[at].1)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keys and values, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    /// The same, shared.
    pub(super) fn shared(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// The same, with every string passed through `share`.
    pub(super) fn map(&self, mut share: impl FnMut(&Arc<str>) -> Arc<str>) -> Self {
        Self(self.0.iter().map(|(key, value)| (share(key), share(value))).collect())
    }
}

impl FromIterator<(Arc<str>, Arc<str>)> for Labels {
    /// Of two labels with the same key, the later one counts.
    fn from_iter<I: IntoIterator<Item = (Arc<str>, Arc<str>)>>(labels: I) -> Self {
        let sorted: BTreeMap<_, _> = labels.into_iter().collect();
        Self(sorted.into_iter().collect())
    }
}

impl<const N: usize> From<[(Arc<str>, Arc<str>); N]> for Labels {
    fn from(labels: [(Arc<str>, Arc<str>); N]) -> Self {
        labels.into_iter().collect()
    }
}

impl Serialize for Labels {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(labels: D) -> Result<Self, D::Error> {
        Ok(BTreeMap::deserialize(labels)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_label_is_found_and_no_other() {
        let all = [("b", "0"), ("b", "2"), ("a", "1"), ("c", "")];
        let labels = Labels::from(all.map(|(key, value)| (key.into(), value.into())));
        assert_eq!(labels.get("a").map(|value| &**value), Some("1"));
        assert_eq!(labels.get("b").map(|v| &**v), Some("2"));
        assert_eq!(labels.get("c").map(|v| &**v), Some(""));
        assert_eq!(labels.get("d"), None);
        assert_eq!(labels.get(""), None);
        assert_eq!(labels.iter().collect::<Vec<_>>(), [("a", "1"), ("b", "2"), ("c", "")]);
        assert!(Labels::default().is_empty() && Labels::default().get("a").is_none());
    }
}
