//! TopologyPolicy and ClusterTopologyPolicy.
#![allow(
    clippy::duplicated_attributes,
    reason = "each column and each rule has the same attribute"
)]
#![allow(unreachable_pub, reason = "KubeSchema puts a public copy of each struct into a function")]

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::patterns::{
    EJECTION, EVACUATE, KEY, NUMBERS, RETURN, SHARE, SLOW_START, SPILL, WEIGHTS,
};
use super::rules::{
    each_key_has_a_weight, numbers_fit, prefixes_fit, prefixes_of_weights_fit, says_something,
    star_is_last, weights_count, weights_or_spill,
};
use super::selector::LabelSelector;
use topo_lb_core::cluster::policy_status::PolicyStatus;
use topo_lb_core::cluster::service::PolicySources;

/// A policy for the Services of its namespace that it selects. Weaker than annotations of the Service, and
/// stronger than those of the Namespace.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "topo-lb.io",
    version = "v1alpha1",
    kind = "TopologyPolicy",
    doc = "A topology policy for Services of its namespace.",
    plural = "topologypolicies",
    shortname = "tpol",
    namespaced,
    category = "topo-lb",
    status = "PolicyStatus",
    printcolumn(name = "Keys", type_ = "string", json_path = ".spec.topologyKeys"),
    printcolumn(name = "Evacuates", type_ = "string", json_path = ".spec.evacuate"),
    printcolumn(name = "Mode", type_ = "string", json_path = ".spec.mode"),
    printcolumn(name = "Ramp", type_ = "string", json_path = ".spec.ramp"),
    printcolumn(name = "Services", type_ = "integer", json_path = ".status.services"),
    printcolumn(name = "In force", type_ = "integer", json_path = ".status.inForce")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = says_something(),
    validation = star_is_last("topologyKeys"),
    validation = star_is_last("externalTopologyKeys"),
    validation = numbers_fit(),
    validation = prefixes_fit("topologyKeys"),
    validation = prefixes_fit("externalTopologyKeys"),
    validation = prefixes_of_weights_fit(),
    validation = weights_count(),
    validation = each_key_has_a_weight(),
    validation = weights_or_spill()
)]
pub struct TopologyPolicySpec {
    /// The Services of this namespace that it is for; all if absent.
    #[serde(default)]
    pub service_selector: LabelSelector,
    /// Of two policies that select a Service, the one with the greater number is stronger; of equal ones the
    /// older.
    #[serde(default)]
    pub precedence: i32,
    /// What it says.
    #[serde(flatten)]
    pub rules: Rules,
}

/// A policy for the Services of all namespaces that it selects. Weaker than everything that a namespace says
/// about its own Services.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "topo-lb.io",
    version = "v1alpha1",
    kind = "ClusterTopologyPolicy",
    doc = "A topology policy for Services of all namespaces.",
    plural = "clustertopologypolicies",
    shortname = "ctpol",
    category = "topo-lb",
    status = "PolicyStatus",
    printcolumn(name = "Keys", type_ = "string", json_path = ".spec.topologyKeys"),
    printcolumn(name = "Evacuates", type_ = "string", json_path = ".spec.evacuate"),
    printcolumn(name = "Mode", type_ = "string", json_path = ".spec.mode"),
    printcolumn(name = "Ramp", type_ = "string", json_path = ".spec.ramp"),
    printcolumn(name = "Services", type_ = "integer", json_path = ".status.services"),
    printcolumn(name = "In force", type_ = "integer", json_path = ".status.inForce")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = says_something(),
    validation = star_is_last("topologyKeys"),
    validation = star_is_last("externalTopologyKeys"),
    validation = numbers_fit(),
    validation = prefixes_fit("topologyKeys"),
    validation = prefixes_fit("externalTopologyKeys"),
    validation = prefixes_of_weights_fit(),
    validation = weights_count(),
    validation = each_key_has_a_weight(),
    validation = weights_or_spill()
)]
pub struct ClusterTopologyPolicySpec {
    /// The Namespaces that it is for, by their labels; all if absent. `kubernetes.io/metadata.name` is the
    /// name of each.
    #[serde(default)]
    pub namespace_selector: LabelSelector,
    /// The Services of these Namespaces that it is for; all if absent.
    #[serde(default)]
    pub service_selector: LabelSelector,
    /// Of two policies that select a Service, the one with the greater number is stronger; of equal ones the
    /// older.
    #[serde(default)]
    pub precedence: i32,
    /// What it says.
    #[serde(flatten)]
    pub rules: Rules,
}

/// What a policy says: the same as the annotations of these names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Rules {
    /// Node labels, the nearest first; `*`, which is always last, takes every endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<String>", length(min = 1, max = 16), inner(length(max = 317), regex(pattern = KEY)))]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub topology_keys: Option<Vec<String>>,
    /// The same for clients outside of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<String>", length(min = 1, max = 16), inner(length(max = 317), regex(pattern = KEY)))]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub external_topology_keys: Option<Vec<String>>,
    /// How many endpoints a tier needs to be chosen: one number for all, or one for each key; `20%` is of
    /// all usable endpoints of the Service port.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 128), regex(pattern = NUMBERS))]
    pub min_endpoints: Option<String>,
    /// The share of new connections that goes to the next wider tier, such as `5%`; `auto`: as much as the
    /// tier is too crowded.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 16), regex(pattern = SPILL))]
    pub spill: Option<String>,
    /// The share of new connections that each tier gets, or each value of a label.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 4096), regex(pattern = WEIGHTS))]
    pub weights: Option<String>,
    /// Ejects endpoints to which a node's connects fail: failures in a row, first time, most of a tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 64), regex(pattern = EJECTION))]
    pub ejection: Option<String>,
    /// Endpoints at this value of a label leave every choice: `topology.kubernetes.io/zone=b; until=2026-12-01T06:00:00Z`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 8192), regex(pattern = EVACUATE))]
    pub evacuate: Option<String>,
    /// Ends idle TCP connections to a wider tier when a nearer one has been in force for so long, such as
    /// `10m`; `off`: never.
    #[serde(rename = "return", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 16), regex(pattern = RETURN))]
    pub return_after: Option<String>,
    /// The share of an endpoint grows from 10 % to its own during this time after it became Ready, such as `60s`;
    /// `off`: it has its own at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 16), regex(pattern = SLOW_START))]
    pub slow_start: Option<String>,
    /// `intended`: nodes without an endpoint are no cause for a Warning.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 16), regex(pattern = "^intended$"))]
    pub refusal: Option<String>,
    /// `refuse`: the strict keys also hold for clients that dial an endpoint by its address; `steer`: the keys do for
    /// steered Pods; `allow`: they do for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 16), regex(pattern = "^(refuse|steer|allow)$"))]
    pub direct: Option<String>,
    /// `false`: topo-lb leaves the Services to kube-proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool")]
    pub handle: Option<bool>,
    /// `observe`: nothing of this holds; `topo-lb explain` says what would be. `enforce` is the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 16), regex(pattern = "^(observe|enforce)$"))]
    pub mode: Option<String>,
    /// The share of nodes on which this holds, such as `10%`; the same nodes for each policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 16), regex(pattern = SHARE))]
    pub ramp: Option<String>,
}

impl From<Rules> for PolicySources {
    fn from(rules: Rules) -> Self {
        let keys = rules.topology_keys.unwrap_or_default();
        Self {
            spec_topology_keys: keys.iter().map(|key| key.as_str().into()).collect(),
            external_topology_keys: rules.external_topology_keys.map(|keys| keys.join(",").into()),
            min_endpoints: rules.min_endpoints.map(Into::into),
            spill: rules.spill.map(Into::into),
            weights: rules.weights.map(Into::into),
            ejection: rules.ejection.map(Into::into),
            evacuate: rules.evacuate.map(Into::into),
            return_after: rules.return_after.map(Into::into),
            slow_start: rules.slow_start.map(Into::into),
            refusal: rules.refusal.map(Into::into),
            direct: rules.direct.map(Into::into),
            handle: rules.handle.map(|handle| handle.to_string().into()),
            mode: rules.mode.map(Into::into),
            ramp: rules.ramp.map(Into::into),
            ..Self::default()
        }
    }
}
