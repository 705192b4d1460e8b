//! The custom resources of group `topo-lb.io`, and their CustomResourceDefinitions, made from these types.

mod patterns;
mod policy;
mod rules;
mod selector;

use kube::CustomResourceExt as _;

pub use policy::{
    ClusterTopologyPolicy, ClusterTopologyPolicySpec, Rules, TopologyPolicy, TopologyPolicySpec,
};
pub use selector::LabelSelector;
pub use topo_lb_core::cluster::policy_status::{Lost, PolicyStatus};

/// The API group.
pub const GROUP: &str = "topo-lb.io";
/// Its version.
pub const VERSION: &str = "v1alpha1";

/// The CustomResourceDefinitions as one YAML text.
///
/// # Errors
/// A definition cannot be written as YAML, which is an error of the program.
pub fn manifest() -> Result<String, serde_saphyr::ser::Error> {
    let mut text = String::new();
    for definition in [TopologyPolicy::crd(), ClusterTopologyPolicy::crd()] {
        text += "---\n";
        text += &serde_saphyr::to_string(&definition)?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
