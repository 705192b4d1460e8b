//! Direct return and the consistent choice (`topo-lb.io/direct-return`, `topo-lb.io/choice`): for clients outside of all
//! nodes, at load balancer and external IPs.
//!
//! Those get frontends of their own for clients outside, and others for packets that another node has sent on. For the
//! latter, only endpoints of this node count, whatever the policy says, as that was the first node's to follow.

use std::net::SocketAddr;

use topo_lb_common::members::node_tag;

use super::evaluation::Evaluation;
use super::exposed::Exposing;
use super::label::Here;
use super::policy::Policy;
use super::validation::{Rule, quoted};
use crate::cluster::Service;

/// Whether packets of clients outside are sent on to the nodes of their endpoints as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
pub enum DirectReturn {
    /// They are.
    #[strum(serialize = "yes")]
    Yes,
    /// They would be, if the agent has its flag.
    #[strum(serialize = "if agents have --direct-return auto")]
    IfAsked,
    /// The agent lacks its flag.
    #[strum(serialize = "no, as this agent has --direct-return off")]
    Off,
    /// The Service says so.
    #[strum(serialize = "no, as topo-lb.io/direct-return says")]
    OptedOut,
    /// Endpoints of other nodes do not count.
    #[strum(serialize = "no, as externalTrafficPolicy: Local leaves out endpoints of other nodes")]
    Local,
}

impl DirectReturn {
    /// `exposing`: what the agent serves; `None`: not known.
    pub(super) const fn of(
        policy: &Policy<'_>,
        service: &Service,
        exposing: Option<&Exposing>,
    ) -> Self {
        match exposing {
            _ if service.external_local => Self::Local,
            _ if !policy.direct_return => Self::OptedOut,
            None => Self::IfAsked,
            Some(it) if it.outside && it.direct_return => Self::Yes,
            Some(_) => Self::Off,
        }
    }
}

/// How clients outside choose an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Choice {
    /// By a hash of the client, the same on all nodes whose policy chooses the same endpoints.
    Consistent,
    /// At random.
    Random,
}

impl Choice {
    pub(super) fn from_annotation(text: &str) -> Result<Self, Rule> {
        text.trim().parse().map_err(|_| Rule::ChoiceUnknown { text: quoted(text) })
    }
}

/// The tags of the nodes of endpoints elsewhere that serve, by address.
pub(super) fn nodes(done: &Evaluation<'_>, here: Here<'_>) -> Vec<(SocketAddr, u16)> {
    let tag = |node: &str| node_tag(node.as_bytes());
    let far = done.candidates.iter().filter(|one| one.serves() && !one.site.is_on(here.name));
    far.filter_map(|one| Some((one.address, tag(one.site.node()?)))).collect()
}
