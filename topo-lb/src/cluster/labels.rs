//! Labels as they are kept: one sorted row, a third of a tree's memory.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Labels of a Node, or those that an endpoint brings with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Labels(Box<[(Arc<str>, Arc<str>)]>);

impl Labels {
    /// The value of `key`; a label without a value is `Some("")`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Arc<str>> {
        let at = self.0.binary_search_by(|(own, _)| (**own).cmp(key)).ok()?;
        Some(&self.0[at].1)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keys and values, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    /// `labels`, with every string passed through `share`.
    pub(super) fn shared(
        labels: BTreeMap<Arc<str>, Arc<str>>,
        mut share: impl FnMut(Arc<str>) -> Arc<str>,
    ) -> Self {
        Self(labels.into_iter().map(|(key, value)| (share(key), share(value))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_label_is_found_and_no_other() {
        let tree: BTreeMap<Arc<str>, Arc<str>> =
            [("b", "2"), ("a", "1"), ("c", "")].map(|(k, v)| (k.into(), v.into())).into();
        let labels = Labels::shared(tree, |text| text);
        assert_eq!(labels.get("a").map(|v| &**v), Some("1"));
        assert_eq!(labels.get("b").map(|v| &**v), Some("2"));
        assert_eq!(labels.get("c").map(|v| &**v), Some(""));
        assert_eq!(labels.get("d"), None);
        assert_eq!(labels.get(""), None);
        assert_eq!(labels.iter().collect::<Vec<_>>(), [("a", "1"), ("b", "2"), ("c", "")]);
        assert!(Labels::default().is_empty() && Labels::default().get("a").is_none());
    }
}
