//! Which Pods are excluded, and which are steered.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Arc;

use topo_lb_common::exclusion::Treatment;

use super::Pod;
use crate::cluster::Annotation;
use crate::cluster::annotation::is_true;

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

/// Some Pods.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// All Pods of these namespaces; one that does not exist has none.
    pub namespaces: BTreeSet<String>,
    /// Whether Pods with the annotation are among them.
    pub annotated: bool,
}

impl Selection {
    /// From the flags.
    #[must_use]
    pub fn new(namespaces: Vec<Namespace>, annotated: bool) -> Self {
        Self { namespaces: namespaces.into_iter().map(|Namespace(name)| name).collect(), annotated }
    }

    /// Whether no Pod can be among them.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.namespaces.is_empty() && !self.annotated
    }

    /// `said`: the Pod's annotation.
    fn has(&self, pod: &Pod, said: Option<&str>) -> bool {
        self.namespaces.contains(&*pod.namespace)
            || self.annotated && said.and_then(is_true) == Some(true)
    }
}

/// How Pods are treated.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Those that are excluded.
    pub excluded: Selection,
    /// Those that are steered, unless they are excluded.
    pub steered: Selection,
}

impl Rules {
    /// Whether all Pods are treated alike.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.excluded.is_empty() && self.steered.is_empty()
    }

    /// How a Pod is treated; `None`: as all others.
    #[must_use]
    pub fn treatment(&self, pod: &Pod) -> Option<Treatment> {
        if self.excluded.has(pod, pod.exclude.as_deref()) {
            Some(Treatment::Excluded)
        } else {
            self.steered.has(pod, pod.steer.as_deref()).then_some(Treatment::Steered)
        }
    }

    /// What is wrong with a Pod's annotations.
    #[must_use]
    pub fn faults(&self, pod: &Pod) -> Vec<String> {
        let all = [
            (&self.excluded, Annotation::Exclude, &pod.exclude),
            (&self.steered, Annotation::Steer, &pod.steer),
        ];
        let fault = |(selection, annotation, said): (&Selection, Annotation, &Option<Arc<str>>)| {
            let text = said.as_deref().filter(|_| selection.annotated)?;
            if is_true(text).is_some() {
                return None;
            }
            let shown: String = text.chars().take(80).flat_map(char::escape_debug).collect();
            Some(format!(
                "annotation {annotation} of Pod {}/{} is ignored: `{shown}` is neither `true` nor `false`",
                pod.namespace, pod.name
            ))
        };
        all.into_iter().filter_map(fault).collect()
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
            steer: None,
        }
    }

    fn steering(namespace: &str, steer: Option<&str>) -> Pod {
        Pod { steer: steer.map(Into::into), ..pod(namespace, None) }
    }

    fn selection(namespaces: &[&str], annotated: bool) -> Selection {
        let namespaces = namespaces.iter().map(|name| name.parse().unwrap());
        Selection::new(namespaces.collect(), annotated)
    }

    fn rules(excluded: Selection) -> Rules {
        Rules { excluded, ..Rules::default() }
    }

    fn excludes(rules: &Rules, pod: &Pod) -> bool {
        rules.treatment(pod) == Some(Treatment::Excluded)
    }

    #[test]
    fn a_pod_is_excluded_by_its_namespace_or_by_its_annotation() {
        let rules = rules(selection(&["meshed"], true));
        assert!(excludes(&rules, &pod("meshed", None)));
        assert!(excludes(&rules, &pod("other", Some("true"))));
        for other in [None, Some("false"), Some("yes"), Some(""), Some("TRUE")] {
            assert_eq!(rules.treatment(&pod("other", other)), None, "{other:?}");
        }
    }

    #[test]
    fn a_pod_is_steered_in_the_same_way_unless_it_is_excluded() {
        let rules = Rules {
            excluded: selection(&["meshed"], true),
            steered: selection(&["meshed", "shop"], true),
        };
        for (pod, wanted) in [
            (pod("shop", None), Some(Treatment::Steered)),
            (pod("shop", Some("true")), Some(Treatment::Excluded)),
            (pod("meshed", None), Some(Treatment::Excluded)),
            (steering("other", Some(" true ")), Some(Treatment::Steered)),
            (steering("other", Some("false")), None),
            (steering("other", Some("yes")), None),
            (steering("other", None), None),
        ] {
            assert_eq!(rules.treatment(&pod), wanted, "{pod:?}");
        }
        let rules = Rules { steered: selection(&["shop"], false), ..Rules::default() };
        assert!(!rules.is_empty());
        assert_eq!(rules.treatment(&steering("other", Some("true"))), None, "without its flag");
        assert_eq!(rules.faults(&steering("other", Some("yes"))), Vec::<String>::new());
    }

    #[test]
    fn annotations_count_only_where_the_flag_says_so() {
        let rules = rules(selection(&["meshed"], false));
        assert_eq!(rules.treatment(&pod("other", Some("true"))), None);
        assert_eq!(rules.faults(&pod("other", Some("yes"))), Vec::<String>::new());
    }

    #[test]
    fn an_annotation_that_says_neither_is_told_in_one_short_line() {
        let rules = Rules { excluded: selection(&[], true), steered: selection(&[], true) };
        for text in ["yes", "", "\n\u{1b}[2J", &"x".repeat(1 << 20)] {
            for pod in [pod("a", Some(text)), steering("a", Some(text))] {
                let faults = rules.faults(&pod);
                assert_eq!(faults.len(), 1);
                let fault = &faults[0];
                assert!(fault.len() < 1_000 && !fault.contains(char::is_control), "{fault}");
            }
        }
        assert_eq!(rules.faults(&pod("a", Some("true"))), Vec::<String>::new());
        let both = Pod { steer: Some("no".into()), ..pod("a", Some("yes")) };
        assert_eq!(rules.faults(&both).len(), 2);
    }

    #[test]
    fn ten_thousand_namespaces_that_nobody_has_cost_a_look_up_each() {
        let names: Vec<_> = (0..10_000).map(|at| format!("no-{at}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let rules = rules(selection(&names, false));
        assert!(!excludes(&rules, &pod("no-10000", None)));
        assert!(excludes(&rules, &pod("no-9999", None)));
    }

    #[test]
    fn what_no_namespace_can_be_called_is_refused() {
        for text in ["", " a", "A", "a_b", "-a", "a-", "a,b", "a/b", "ä", &"a".repeat(64)] {
            assert_eq!(text.parse::<Namespace>(), Err(NamespaceError), "{text:?}");
        }
        assert!("kube-system".parse::<Namespace>().is_ok());
    }
}
