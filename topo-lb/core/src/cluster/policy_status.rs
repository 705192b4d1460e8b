//! What agents say about a policy in its status.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What agents made of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyStatus {
    /// The `metadata.generation` that this is about.
    pub observed_generation: i64,
    /// How many Services it selects.
    #[schemars(with = "i32", range(min = 0))]
    pub services: u32,
    /// For how many of these its keys are in force.
    #[schemars(with = "i32", range(min = 0))]
    pub in_force: u32,
    /// The rules that it breaks. What breaks a rule is ignored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<String>,
    /// Selected Services for which something stronger says keys: the first ten, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<Lost>,
}

/// A selected Service for which something else is in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Lost {
    /// The Service, as `namespace/name`.
    pub service: String,
    /// What is in force there.
    pub to: String,
}
