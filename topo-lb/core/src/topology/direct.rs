//! `topo-lb.io/direct`: a policy also holds for clients that dial an endpoint by its address.
//!
//! Such an endpoint becomes a frontend, which refuses, or leads steered Pods to where the Service leads. So excluded
//! Pods are free, as at every frontend.

use std::net::SocketAddr;

use super::evaluation::{CandidateStatus, Evaluation};
use super::exposed::FrontendOfKind;
use super::label::Here;
use super::rules::Rules;
use super::shared;
use super::validation::{Rule, quoted};
use crate::cluster::service::STEER;
use crate::cluster::{Clients, Frontend, FrontendKind, Port, Service, State};

/// What becomes of clients that dial an endpoint which the policy passes over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// They reach it.
    #[default]
    Allow,
    /// They are refused.
    Refuse,
    /// Steered Pods get an endpoint that the policy chooses; all others reach it.
    Steer,
}

/// The values of the annotation.
const ALLOW: &str = "allow";
const REFUSE: &str = "refuse";

impl Direct {
    /// As the annotation says it.
    #[must_use]
    pub const fn value(self) -> &'static str {
        match self {
            Self::Allow => ALLOW,
            Self::Refuse => REFUSE,
            Self::Steer => STEER,
        }
    }
}

/// The most endpoints of a Service port and family for which it holds: each takes an entry of `services4/6`.
pub const MOST: usize = 1_000;

/// What the annotation says. `asks_hints`: the Service asks for hints, which are a policy, too.
///
/// # Errors
/// The rule that `text` breaks.
pub(super) fn from_annotation(
    text: &str,
    rules: &Rules<'_>,
    asks_hints: bool,
) -> Result<Direct, Rule> {
    match text.trim() {
        ALLOW => Ok(Direct::Allow),
        REFUSE if rules.are_strict() => Ok(Direct::Refuse),
        REFUSE => Err(Rule::DirectWithoutStrict),
        STEER if *rules != Rules::None || asks_hints => Ok(Direct::Steer),
        STEER => Err(Rule::DirectWithoutPolicy),
        _ => Err(Rule::DirectUnknown { text: quoted(text) }),
    }
}

/// Which endpoints clients of this node may not dial, or are steered away from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectDials {
    /// What becomes of these clients: not `Allow`.
    pub direct: Direct,
    /// Usable endpoints on other nodes that the policy passes over, sorted. Not among them:
    /// * what is not ready, or ejected by this node: it is passed over for another reason;
    /// * what has no node, as the API server's endpoints: it may be near;
    /// * what is copied from an Endpoints object: before Kubernetes 1.22, tenants could write any address there
    ///   (CVE-2021-25740);
    /// * for steered Pods, what others have, too, or what has a name of its own (file `shared`), and all of a Service
    ///   with session affinity.
    pub endpoints: Vec<SocketAddr>,
    /// How many are not among them for the last reason.
    pub left: usize,
    /// Why nobody is steered at all.
    pub nobody: Option<Nobody>,
}

/// Why no Pod is steered away from the endpoints of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
pub enum Nobody {
    /// A client with an endpoint of its own keeps it.
    #[strum(serialize = "nobody is steered, as the Service has session affinity")]
    Affinity,
    /// No flag names Pods to steer.
    #[strum(serialize = "nobody is steered, as this agent has no flag that names Pods to steer")]
    NoPods,
}

impl DirectDials {
    /// `None`: the Service says nothing of that.
    pub(super) fn of(
        direct: Direct,
        state: &State,
        (service, port): (&Service, &Port),
        done: &Evaluation<'_>,
        here: Here<'_>,
    ) -> Option<Self> {
        if direct == Direct::Allow {
            return None;
        }
        let mut endpoints: Vec<_> = passed_over(done, here).collect();
        let all = endpoints.len();
        let nobody = match direct {
            Direct::Steer if service.affinity_seconds.is_some() => Some(Nobody::Affinity),
            Direct::Steer if !state.steers_pods() => Some(Nobody::NoPods),
            _ => None,
        };
        if nobody.is_some() {
            endpoints.clear();
        } else if direct == Direct::Steer {
            shared::leave_out(state, service, port, &mut endpoints);
        }
        let left = all - endpoints.len();
        Some(Self { direct, endpoints, left, nobody })
    }

    /// Whether it holds for them: for at most [`MOST`].
    #[must_use]
    pub const fn holds(&self) -> bool {
        self.endpoints.len() <= MOST
    }

    /// The frontends of a Service port that they become.
    pub(super) fn frontends(&self, port: &Port) -> Vec<FrontendOfKind> {
        let clients = match self.direct {
            Direct::Steer => Clients::Steered,
            Direct::Allow | Direct::Refuse => Clients::Anywhere,
        };
        let frontend = |at: &SocketAddr| {
            let frontend = Frontend::new(at.ip(), at.port(), port.protocol).of(clients);
            (FrontendKind::Endpoint, frontend)
        };
        self.endpoints.iter().filter(|_| self.holds()).map(frontend).collect()
    }
}

/// What the frontends of a route do with clients that dial endpoints; `Allow`: they are no endpoints. Those of one
/// route are alike.
#[must_use]
pub fn of_frontends(frontends: &[FrontendOfKind]) -> Direct {
    match frontends.first() {
        Some((FrontendKind::Endpoint, it)) if it.clients == Clients::Steered => Direct::Steer,
        Some((FrontendKind::Endpoint, _)) => Direct::Refuse,
        _ => Direct::Allow,
    }
}

fn passed_over(done: &Evaluation<'_>, here: Here<'_>) -> impl Iterator<Item = SocketAddr> {
    let all = done.candidates.iter().zip(&done.statuses);
    let far = all.filter(move |(one, status)| {
        let is_elsewhere = one.site.node().is_some_and(|node| node != here.name);
        **status == CandidateStatus::Passed && is_elsewhere && !one.mirrored
    });
    far.map(|(one, _)| one.address)
}
