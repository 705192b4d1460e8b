//! Direct return and the consistent choice (`topo-lb.io/direct-return`, `topo-lb.io/choice`): for clients outside of all
//! nodes, at load balancer and external IPs.
//!
//! Those get frontends of their own for clients outside, and others for packets that another node has sent on. For the
//! latter, only endpoints of this node count, whatever the policy says, as that was the first node's to follow.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use topo_lb_common::members::node_tag;

use super::evaluation::Evaluation;
use super::exposed::Exposing;
use super::label::Here;
use super::validation::{Rule, quoted};
use crate::cluster::{Annotation, Service};
use crate::flag::DIRECT_RETURN;

/// Whether packets of clients outside are sent on to the nodes of their endpoints as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectReturn {
    /// They are, where the network is fit for it.
    Yes,
    /// They would be, if the agent is started so.
    IfAsked,
    /// The agent is not.
    Off,
    /// The Service says so.
    OptedOut,
    /// `externalTrafficPolicy: Local` leaves endpoints of other nodes out.
    Local,
}

impl DirectReturn {
    /// `takes_part`: as the annotation says; `exposing`: what the agent serves, `None`: not known.
    #[must_use]
    pub const fn of(takes_part: bool, service: &Service, exposing: Option<&Exposing>) -> Self {
        match exposing {
            _ if service.external_local => Self::Local,
            _ if !takes_part => Self::OptedOut,
            None => Self::IfAsked,
            Some(it) if it.outside && it.direct_return => Self::Yes,
            Some(_) => Self::Off,
        }
    }
}

impl fmt::Display for DirectReturn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yes => f.write_str("yes"),
            Self::IfAsked => write!(f, "yes, if {DIRECT_RETURN} is auto"),
            Self::Off => write!(f, "no: {DIRECT_RETURN} is off"),
            Self::OptedOut => write!(f, "no: {} says so", Annotation::DirectReturn),
            Self::Local => f.write_str("no: externalTrafficPolicy is Local"),
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
    /// `asked`: by the annotation.
    #[must_use]
    pub fn of(asked: Option<Self>, direct_return: DirectReturn) -> Self {
        let default = match direct_return {
            DirectReturn::Yes => Self::Consistent,
            _ => Self::Random,
        };
        asked.unwrap_or(default)
    }

    pub(super) fn from_annotation(text: &str) -> Result<Self, Rule> {
        text.trim().parse().map_err(|_| Rule::ChoiceUnknown { text: quoted(text) })
    }
}

/// The tags of the nodes of endpoints elsewhere that serve, by address.
pub(super) fn nodes(done: &Evaluation<'_>, here: Here<'_>) -> Arc<[(SocketAddr, u16)]> {
    let tag = |node: &str| node_tag(node.as_bytes());
    let far = done.candidates.iter().filter(|one| one.serves() && !one.site.is_on(here.name));
    far.filter_map(|one| Some((one.address, tag(one.site.node()?)))).collect()
}
