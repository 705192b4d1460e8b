//! Which rule selected or excluded an endpoint.

use std::net::SocketAddr;
use std::time::Instant;

use super::wider;
use crate::cluster::{Ejection, Family, Service, State};
use crate::topology::cause::Cause;
use crate::topology::evaluation::{CandidateStatus, Evaluation};
use crate::topology::label::{Absent, Site};
use crate::topology::rules::Rules;

/// Which rule selected or excluded an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status<'a> {
    /// Selected, with the cause.
    Chosen(Cause<'a>),
    /// Selected for spilled connections, or for its share by weight, by this key.
    Wider(&'a str),
    /// The policy allows it, but its value has no weight, while others have.
    Weightless {
        /// The label whose values have weights.
        label: &'a str,
        /// Its value, or why it has none.
        own: Result<&'a str, Absent<'a>>,
    },
    /// Ejected, because connects of this node to it failed.
    Ejected(&'a Ejection),
    /// It leaves every choice, as it is at this value of a label.
    Evacuated {
        /// The label.
        key: &'a str,
        /// Its value.
        value: &'a str,
    },
    /// It does not answer this node, which has not heard of the API server since then.
    Dead(Instant),
    /// Bypass: topo-lb does not translate the Service.
    LeftAlone,
    /// The Service has no ClusterIP of this family.
    OtherFamily(Family),
    /// In a slice labelled `service.kubernetes.io/headless`: not for proxies.
    HeadlessSlice,
    /// Neither ready nor terminating.
    NotReady,
    /// Terminating and still serving, but others are ready.
    Draining,
    /// Terminating, and no longer serving.
    Stopped,
    /// With [`Decision::only_local`](super::Decision::only_local): its node is another or unknown.
    Remote,
    /// Its value for the deciding key differs from this node's.
    Differs {
        /// The key.
        key: &'a str,
        /// Its value, or why it has none.
        own: Result<&'a str, Absent<'a>>,
    },
    /// No key matched anything. Its value for every key, or why it has none.
    NoKey(Vec<(&'a str, Result<&'a str, Absent<'a>>)>),
    /// OpenYurt: on another node, or without a node.
    OtherNode,
    /// OpenYurt: its pool, or why it has none.
    OtherPool(Result<&'a str, Absent<'a>>),
    /// Hinted for these nodes.
    HintedNodes(Vec<&'a str>),
    /// Hinted for these zones.
    HintedZones(Vec<&'a str>),
}

/// That connects of this node to `endpoint` failed, with what the agent knows of it.
pub(super) fn ejected<'a>(state: &'a State, service: &Service, endpoint: SocketAddr) -> Status<'a> {
    let all = state.ejections().services.get(&service.id);
    let found = all.and_then(|all| all.endpoints.iter().find(|it| it.endpoint == endpoint));
    found.map_or(Status::OtherNode, Status::Ejected)
}

/// That `endpoint` does not answer this node, which is an island.
pub(super) fn dead<'a>(state: &State) -> Status<'a> {
    state.ejections().island.as_ref().map_or(Status::OtherNode, |island| Status::Dead(island.since))
}

/// The rule behind the status of a candidate at `site`.
pub(super) fn endpoint_status<'a>(
    site: Site<'a>,
    status: CandidateStatus,
    done: &Evaluation<'a>,
    rules: &Rules<'a>,
) -> Status<'a> {
    let strings = |names: &'a [std::sync::Arc<str>]| names.iter().map(|name| &**name).collect();
    match (status, done.cause) {
        // The weightless are the caller's.
        (CandidateStatus::Chosen | CandidateStatus::Weightless, cause) => Status::Chosen(cause),
        (CandidateStatus::Wider, _) => {
            Status::Wider(wider(done, rules).map_or("", |wider| wider.key))
        }
        (CandidateStatus::Remote, _) => Status::Remote,
        (CandidateStatus::Unusable, _) if !site.endpoint.terminating => Status::NotReady,
        (CandidateStatus::Unusable, _) if site.endpoint.serving => Status::Draining,
        (CandidateStatus::Unusable, _) => Status::Stopped,
        (CandidateStatus::Passed, Cause::Key { key, .. }) => {
            Status::Differs { key, own: site.label(key) }
        }
        (CandidateStatus::Passed, Cause::Pool { .. }) => Status::OtherPool(site.pool()),
        (CandidateStatus::Passed, Cause::HintedNode) => {
            Status::HintedNodes(strings(site.endpoint.for_nodes()))
        }
        (CandidateStatus::Passed, Cause::HintedZone(_)) => {
            Status::HintedZones(strings(site.endpoint.for_zones()))
        }
        (CandidateStatus::Passed, Cause::NoKey) => Status::NoKey(match rules {
            Rules::Keys(keys) => keys.keys.iter().map(|&key| (key, site.label(key))).collect(),
            Rules::OpenYurt { .. } | Rules::None => Vec::new(),
        }),
        (CandidateStatus::Passed, Cause::Node | Cause::NodeForLackOfPool)
        // The caller has told.
        | (CandidateStatus::Ejected | CandidateStatus::Evacuated | CandidateStatus::Dead, _)
        // These causes choose every usable endpoint, or there is none.
        | (
            CandidateStatus::Passed,
            Cause::Unconstrained
            | Cause::Any { .. }
            | Cause::HintsOff(_)
            | Cause::NoEndpoint(_)
            | Cause::NoneHere
            | Cause::NoneUsable,
        ) => Status::OtherNode,
    }
}
