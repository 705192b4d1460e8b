//! Label selectors (`metav1.LabelSelector`), matched as Kubernetes matches them
//! (k8s.io/apimachinery/pkg/labels/selector.go).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::labels::Labels;

/// Requirements that all hold. Without any it matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Selector(pub Vec<Requirement>);

/// A requirement for one label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirement {
    /// The label's name.
    pub key: Arc<str>,
    /// How it compares.
    pub operator: Operator,
    /// Values for [`Operator::In`] and [`Operator::NotIn`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<Arc<str>>,
}

/// `matchExpressions[].operator`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operator {
    /// The label has one of the values.
    In,
    /// The label is absent, or has none of the values.
    NotIn,
    /// The label is there, with any value.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

impl Selector {
    /// Whether an object with these labels matches.
    #[must_use]
    pub fn matches(&self, labels: &Labels) -> bool {
        self.matches_by(|key| labels.get(key).map(|value| &**value))
    }

    /// The same with a way to look up a label.
    pub(super) fn matches_by<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|Requirement { key, operator, values }| {
            let value = label(key);
            let is_listed = || value.is_some_and(|own| values.iter().any(|one| **one == *own));
            match operator {
                Operator::In => is_listed(),
                Operator::NotIn => !is_listed(),
                Operator::Exists => value.is_some(),
                Operator::DoesNotExist => value.is_none(),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_match_as_in_kubernetes() {
        let labels =
            Labels::from([("app", "web"), ("tier", "")].map(|(k, v)| (k.into(), v.into())));
        let one = |key: &str, operator, values: &[&str]| {
            let values = values.iter().map(|&value| value.into()).collect();
            Selector(vec![Requirement { key: key.into(), operator, values }])
        };
        use Operator::{DoesNotExist, Exists, In, NotIn};
        for (selector, expected) in [
            (Selector::default(), true),
            (one("app", In, &["db", "web"]), true),
            (one("app", In, &["db"]), false),
            (one("app", In, &[]), false),
            (one("none", In, &["web"]), false),
            (one("tier", In, &[""]), true),
            (one("app", NotIn, &["db"]), true),
            (one("app", NotIn, &["web"]), false),
            // An absent label is in no list.
            (one("none", NotIn, &["web"]), true),
            (one("tier", Exists, &[]), true),
            (one("none", Exists, &[]), false),
            (one("none", DoesNotExist, &[]), true),
            (one("app", DoesNotExist, &[]), false),
        ] {
            assert_eq!(selector.matches(&labels), expected, "{selector:?}");
        }
        let both =
            Selector([one("app", In, &["web"]).0, one("tier", DoesNotExist, &[]).0].concat());
        assert!(!both.matches(&labels), "all requirements must hold");
    }
}
