//! Which Pods are excluded.

use std::collections::BTreeSet;
use std::str::FromStr;

use super::Pod;
use crate::cluster::Annotation;
use crate::cluster::annotation::excludes;

/// The name of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Namespace(String);

/// The text cannot be the name of a namespace.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "a namespace's name has 1 to 63 lower-case letters, digits and `-`, with a letter or digit at \
     both ends"
)]
pub struct NamespaceError;

impl FromStr for Namespace {
    type Err = NamespaceError;

    fn from_str(text: &str) -> Result<Self, NamespaceError> {
        let outer = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let bytes = text.as_bytes();
        let is_name = bytes.len() <= 63
            && bytes.first().is_some_and(outer)
            && bytes.last().is_some_and(outer)
            && bytes.iter().all(|byte| outer(byte) || *byte == b'-');
        if is_name { Ok(Self(text.to_owned())) } else { Err(NamespaceError) }
    }
}

/// Which Pods are excluded.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// All Pods of these namespaces; one that does not exist has none.
    pub namespaces: BTreeSet<String>,
    /// Whether Pods with the annotation are excluded.
    pub annotated: bool,
}

impl Rules {
    /// From the flags.
    #[must_use]
    pub fn new(namespaces: Vec<Namespace>, annotated: bool) -> Self {
        Self { namespaces: namespaces.into_iter().map(|Namespace(name)| name).collect(), annotated }
    }

    /// Whether no Pod can be excluded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.namespaces.is_empty() && !self.annotated
    }

    /// Whether a Pod is excluded.
    #[must_use]
    pub fn exclude(&self, pod: &Pod) -> bool {
        self.namespaces.contains(&*pod.namespace)
            || self.annotated && pod.exclude.as_deref().and_then(excludes) == Some(true)
    }

    /// What is wrong with a Pod's annotation, if anything.
    #[must_use]
    pub fn fault(&self, pod: &Pod) -> Option<String> {
        let text = pod.exclude.as_deref().filter(|_| self.annotated)?;
        if excludes(text).is_some() {
            return None;
        }
        let shown: String = text.chars().take(80).flat_map(char::escape_debug).collect();
        Some(format!(
            "annotation {} of Pod {}/{} is ignored: `{shown}` is neither `true` nor `false`",
            Annotation::Exclude.name(),
            pod.namespace,
            pod.name
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(namespace: &str, exclude: Option<&str>) -> Pod {
        Pod {
            uid: "u".into(),
            namespace: namespace.into(),
            name: "p".into(),
            exclude: exclude.map(Into::into),
        }
    }

    #[test]
    fn a_pod_is_excluded_by_its_namespace_or_by_its_annotation() {
        let rules = Rules::new(vec!["meshed".parse().unwrap()], true);
        assert!(rules.exclude(&pod("meshed", None)));
        assert!(rules.exclude(&pod("other", Some("true"))));
        for other in [None, Some("false"), Some("yes"), Some(""), Some("TRUE")] {
            assert!(!rules.exclude(&pod("other", other)), "{other:?}");
        }
    }

    #[test]
    fn annotations_count_only_where_the_flag_says_so() {
        let rules = Rules::new(vec!["meshed".parse().unwrap()], false);
        assert!(!rules.exclude(&pod("other", Some("true"))));
        assert_eq!(rules.fault(&pod("other", Some("yes"))), None);
    }

    #[test]
    fn an_annotation_that_says_neither_is_told_in_one_short_line() {
        let rules = Rules::new(Vec::new(), true);
        for text in ["yes", "", "\n\u{1b}[2J", &"x".repeat(1 << 20)] {
            let fault = rules.fault(&pod("a", Some(text))).expect("a sentence");
            assert!(fault.len() < 1_000 && !fault.contains(char::is_control), "{fault}");
        }
        assert_eq!(rules.fault(&pod("a", Some("true"))), None);
    }

    #[test]
    fn ten_thousand_namespaces_that_nobody_has_cost_a_look_up_each() {
        let names = (0..10_000).map(|at| format!("no-{at}").parse().unwrap()).collect();
        let rules = Rules::new(names, false);
        assert!(!rules.exclude(&pod("no-10000", None)));
        assert!(rules.exclude(&pod("no-9999", None)));
    }

    #[test]
    fn what_no_namespace_can_be_called_is_refused() {
        for text in ["", " a", "A", "a_b", "-a", "a-", "a,b", "a/b", "ä", &"a".repeat(64)] {
            assert_eq!(text.parse::<Namespace>(), Err(NamespaceError), "{text:?}");
        }
        assert!("kube-system".parse::<Namespace>().is_ok());
    }
}
