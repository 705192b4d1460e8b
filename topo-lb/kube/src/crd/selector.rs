//! `metav1.LabelSelector` in the schema of a custom resource.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use topo_lb_core::cluster::selector::{Operator, Requirement, Selector};

/// A label selector; empty selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// Labels that an object must have, with these values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Requirements that an object must meet, all of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub match_expressions: Vec<Expression>,
}

/// A requirement for one label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Expression {
    /// The label's name.
    #[schemars(length(max = 317))]
    pub key: String,
    /// How it compares: `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: Compare,
    /// Values for `In` and `NotIn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub values: Vec<String>,
}

/// How a label compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "Kubernetes' own names")]
pub enum Compare {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl From<&LabelSelector> for Selector {
    fn from(selector: &LabelSelector) -> Self {
        let equal = selector.match_labels.iter().map(|(key, value)| Requirement {
            key: key.as_str().into(),
            operator: Operator::In,
            values: vec![value.as_str().into()],
        });
        let expressions = selector.match_expressions.iter().map(|one| Requirement {
            key: one.key.as_str().into(),
            operator: match one.operator {
                Compare::In => Operator::In,
                Compare::NotIn => Operator::NotIn,
                Compare::Exists => Operator::Exists,
                Compare::DoesNotExist => Operator::DoesNotExist,
            },
            values: one.values.iter().map(|value| value.as_str().into()).collect(),
        });
        Self(equal.chain(expressions).collect())
    }
}
