//! Findings on what a cluster's Services ask for but cannot get, on any node.

mod mesh;
mod pod;
mod policy;
mod pools;
mod service;
mod severity;
mod table;
mod unmatched;
mod unread;
mod weights;

use std::collections::{BTreeSet, HashMap};

use clap::ValueEnum;
use serde::Serialize;

use crate::cluster::{Frontend, ServiceId, State};
use crate::explain::shown_id;
use crate::topology::claim::{self, Claim};
use crate::topology::{NodesByLabel, Scope};

pub use mesh::meshed;
pub use pod::unclear;
pub use severity::Severity;
pub use table::table;
pub use unread::unread;

/// The rule of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// An object cannot be used as it is, as a whole or in part.
    Unreadable,
    /// An annotation or field breaks a rule and is ignored.
    Ignored,
    /// No Node carries a key.
    UnknownKey,
    /// Nodes where connections are refused though the Service has usable endpoints.
    Refused,
    /// An evacuation leaves the Service alone, as no ready endpoint would be left.
    NotEvacuated,
    /// Nodes where a tier is passed over for having too few endpoints.
    TooFew,
    /// Values with a weight and without endpoints, or the reverse.
    Weights,
    /// Hints that an endpoint or a node switches off.
    HintsOff,
    /// Hints that were asked for and are not there.
    HintsMissing,
    /// An endpoint's Node is not there, so it has no labels.
    UnknownNode,
    /// A strict Service that clients can enter past its policy.
    Exposed,
    /// Two Service ports have the same frontend.
    SharedFrontend,
    /// No EndpointSlice of a Service has a port, or a family, of the Service.
    Unmatched,
    /// Endpoints without an EndpointSlice, or an EndpointSlice without a Service.
    NoSlice,
    /// Clients that a service mesh takes over.
    Meshed,
    /// A TopologyPolicy or ClusterTopologyPolicy selects no Service.
    SelectsNone,
    /// The zones are OpenYurt's node pools.
    ZonesArePools,
}

impl Rule {
    /// The severity of a rule. Refusals are informative: the policy works as written.
    const fn severity(self) -> Severity {
        match self {
            Self::Unreadable | Self::Ignored | Self::SharedFrontend | Self::Unmatched => {
                Severity::Error
            }
            Self::UnknownKey
            | Self::Weights
            | Self::HintsOff
            | Self::HintsMissing
            | Self::UnknownNode
            | Self::Exposed
            | Self::NoSlice
            | Self::Meshed
            | Self::NotEvacuated
            | Self::SelectsNone => Severity::Warning,
            Self::Refused | Self::TooFew | Self::ZonesArePools => Severity::Info,
        }
    }
}

/// The name of a rule or a severity, on the command line and in JSON.
#[must_use]
pub fn name(one: &impl ValueEnum) -> String {
    one.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// A problem, or one to expect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// `metadata.namespace` of the Service, or of the object that cannot be used; empty for Nodes.
    pub namespace: String,
    /// `metadata.name` of the same; `Nodes` for what is about all of them.
    pub name: String,
    /// The Service port by name, else by number; `None` if it concerns all ports.
    pub port: Option<String>,
    /// The rule: the code that `--ignore` takes.
    pub rule: Rule,
    /// How bad it is.
    pub severity: Severity,
    /// The problem, and how to fix it.
    pub message: String,
    /// The affected nodes by name; empty if the problem does not depend on the node.
    pub nodes: Vec<String>,
}

impl Finding {
    /// A finding about an object as a whole, on every node.
    fn of(namespace: &str, name: &str, rule: Rule, message: String) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            port: None,
            rule,
            severity: rule.severity(),
            message,
            nodes: Vec::new(),
        }
    }
}

/// Findings for objects that cannot be used and are therefore in no [`State`]: namespace, name, and a
/// sentence.
#[must_use]
pub fn unreadable<'a>(
    faults: impl IntoIterator<Item = (&'a str, &'a str, &'a str)>,
) -> Vec<Finding> {
    let finding = |(namespace, name, sentence): (_, _, &str)| {
        Finding::of(namespace, name, Rule::Unreadable, sentence.to_owned())
    };
    faults.into_iter().map(finding).collect()
}

/// All findings on what agents of this scope handle, sorted by namespace, name, port and rule.
#[must_use]
pub fn findings(state: &State, scope: Scope) -> Vec<Finding> {
    let keys = keys(state);
    let mut findings = of_services(state, scope, &keys, state.services());
    policy::look(state, &keys, &mut findings);
    pools::look(state, &mut findings);
    shared_frontends(state, scope, &mut findings);
    findings.sort();
    findings.dedup();
    findings
}

/// Findings on what these Services themselves ask for, sorted by namespace, name, port and rule.
#[must_use]
pub fn findings_on<'a>(
    state: &State,
    scope: Scope,
    services: impl IntoIterator<Item = &'a ServiceId>,
) -> Vec<Finding> {
    let mut findings = of_services(state, scope, &keys(state), services);
    findings.sort();
    findings
}

/// The label keys that some Node carries.
fn keys(state: &State) -> BTreeSet<&str> {
    state.nodes().flat_map(|(_, labels)| labels.iter().map(|(key, _)| key)).collect()
}

fn of_services<'a>(
    state: &State,
    scope: Scope,
    keys: &BTreeSet<&str>,
    services: impl IntoIterator<Item = &'a ServiceId>,
) -> Vec<Finding> {
    let nodes = NodesByLabel::of(state);
    let mut findings = Vec::new();
    for id in services {
        service::look(state, scope, &nodes, id, keys, &mut findings);
    }
    findings
}

fn shared_frontends(state: &State, scope: Scope, findings: &mut Vec<Finding>) {
    let contested: HashMap<Frontend, Vec<Claim>> = claim::contested(state, scope, |_| false);
    for (frontend, claimants) in contested {
        let Some(winner) = claimants.first() else { continue };
        for Claim { service: id, place, kind, .. } in &claimants[1..] {
            let message = format!(
                "{} is {}'s already, which comes first by {}: connections never reach this one; give it \
                 another address or port",
                frontend.in_words(*kind),
                shown_id(&winner.service),
                if winner.kind == *kind { "age or name" } else { "the kind of its address" },
            );
            findings.push(Finding {
                port: state
                    .service(id)
                    .and_then(|own| own.ports.get(*place as usize))
                    .map(service::port),
                ..Finding::of(&id.namespace, &id.name, Rule::SharedFrontend, message)
            });
        }
    }
}
