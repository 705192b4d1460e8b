//! One Service port in one address family, decided.

use crate::cluster::{Service, ServicePort, State};

use super::candidate::{self, Candidate, Family, Stock};
use super::hints::{self, Hinted, Off};
use super::keys;
use super::label::Here;
use super::openyurt::{self, Within};
use super::policy::Rules;
use super::validation::ANY;

/// Why the chosen endpoints are the chosen ones, or why there are none.
///
/// OpenYurt's causes say how far a connection may go; when nothing is there, it is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause<'a> {
    /// No policy constrains: every usable endpoint.
    Unconstrained,
    /// The key at this index matched, by this node's value.
    Key {
        /// Its index.
        tier: u8,
        /// The key.
        key: &'a str,
        /// This node's value.
        value: &'a str,
    },
    /// No key before it matched; `*` matches every usable endpoint.
    Any {
        /// Its index.
        tier: u8,
    },
    /// No key matched: refused.
    NoKey,
    /// OpenYurt: on this node.
    Node,
    /// OpenYurt: in this node's pool.
    Pool(&'a str),
    /// OpenYurt: this node is in no pool, so on this node.
    NodeForLackOfPool,
    /// Hinted for this node.
    HintedNode,
    /// Hinted for this zone.
    HintedZone(&'a str),
    /// There are hints, but this node cannot follow them: every usable endpoint.
    HintsOff(Off<'a>),
    /// The Service port has no endpoint of this family: refused.
    NoEndpoint(Lack),
    /// `internalTrafficPolicy: Local`, and no endpoint is on this node: refused.
    NoneHere,
    /// No endpoint is ready, and none is draining: refused.
    NoneUsable,
}

/// What a Service port without endpoints lacks: the more there is, the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lack {
    /// No slice belongs to the Service.
    Slices,
    /// Its slices are empty.
    Endpoints,
    /// Its slices have endpoints, but not this port.
    Port,
    /// Its slices have endpoints with this port, but of the other family.
    Family,
}

impl Lack {
    fn of(state: &State, service: &Service, port: &ServicePort) -> Self {
        let found = state.slices(&service.id).map(|(_, slice)| {
            if slice.endpoints.is_empty() {
                Self::Endpoints
            } else if slice.ports.iter().any(|own| port.matches(own)) {
                Self::Family
            } else {
                Self::Port
            }
        });
        found.max().unwrap_or(Self::Slices)
    }
}

/// What became of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// New connections go there.
    Chosen,
    /// Could be used, but the policy does not choose it.
    Passed,
    /// Not ready, or not as good as ready.
    Unusable,
    /// On another node, which `internalTrafficPolicy: Local` excludes.
    Remote,
}

/// The decision for one Service port in one address family.
pub(super) struct Evaluation<'a> {
    /// Sorted by address and port.
    pub(super) candidates: Vec<Candidate<'a>>,
    /// What became of each of them.
    pub(super) standings: Vec<Standing>,
    /// The policy is hints: there are some, and nothing forbids to look at them.
    pub(super) hinted: bool,
    pub(super) stock: Stock,
    /// How many `internalTrafficPolicy` left: all, or those on this node.
    pub(super) near: usize,
    /// How many of these the policy had to choose from.
    pub(super) usable: usize,
    /// How many it chose; none: refused.
    pub(super) chosen: usize,
    pub(super) cause: Cause<'a>,
}

impl<'a> Evaluation<'a> {
    pub(super) fn of(
        state: &'a State,
        here: Here<'a>,
        service: &Service,
        port: &ServicePort,
        rules: &Rules<'a>,
        family: Family,
    ) -> Self {
        let candidates = candidate::of(state, service, port, family);
        let near: Vec<usize> = (0..candidates.len())
            .filter(|&index| !service.internal_local || candidates[index].site.is_on(here.name))
            .collect();
        let (stock, usable) = candidate::usable(&candidates, &near);
        let hinted = *rules == Rules::None
            && !service.internal_local
            && candidates.iter().any(Candidate::is_hinted);
        let (cause, chosen) = if candidates.is_empty() {
            (Cause::NoEndpoint(Lack::of(state, service, port)), Vec::new())
        } else if near.is_empty() {
            (Cause::NoneHere, Vec::new())
        } else if usable.is_empty() {
            (Cause::NoneUsable, Vec::new())
        } else {
            choose(rules, hinted, here, &candidates, &usable, stock)
        };

        let mut standings = vec![Standing::Remote; candidates.len()];
        let mut mark = |indices: &[usize], standing| {
            indices.iter().for_each(|&index| standings[index] = standing);
        };
        mark(&near, Standing::Unusable);
        mark(&usable, Standing::Passed);
        mark(&chosen, Standing::Chosen);
        Self {
            candidates,
            standings,
            hinted,
            stock,
            near: near.len(),
            usable: usable.len(),
            chosen: chosen.len(),
            cause,
        }
    }
}

impl Evaluation<'_> {
    /// Index of the key that decided.
    pub(super) const fn tier(&self) -> Option<u8> {
        self.cause.tier(self.chosen)
    }
}

impl Cause<'_> {
    /// Index of the key that decided; `None` where no key did, or none was `chosen`.
    #[must_use]
    pub const fn tier(&self, chosen: usize) -> Option<u8> {
        match self {
            Self::Key { tier, .. } | Self::Any { tier } => Some(*tier),
            Self::Node | Self::Pool(_) | Self::NodeForLackOfPool if chosen > 0 => Some(0),
            _ => None,
        }
    }
}

/// Applies the policy to `usable`, indices of `candidates`, of which there is at least one.
fn choose<'a>(
    rules: &Rules<'a>,
    hinted: bool,
    here: Here<'a>,
    candidates: &[Candidate<'a>],
    usable: &[usize],
    stock: Stock,
) -> (Cause<'a>, Vec<usize>) {
    match rules {
        Rules::Keys(keys) => match keys::choose(keys, here, candidates, usable) {
            Some((index, chosen)) => (key_cause(keys, index, here), chosen),
            None => (Cause::NoKey, Vec::new()),
        },
        Rules::OpenYurt { reach, .. } => {
            let (within, chosen) = openyurt::choose(*reach, here, candidates, usable);
            let cause = match within {
                Within::Node => Cause::Node,
                Within::Pool(pool) => Cause::Pool(pool),
                Within::NodeForLackOfPool => Cause::NodeForLackOfPool,
            };
            (cause, chosen)
        }
        Rules::None if !hinted => (Cause::Unconstrained, usable.to_vec()),
        Rules::None if stock == Stock::Draining => {
            (Cause::HintsOff(Off::NoneReady), usable.to_vec())
        }
        Rules::None => {
            let (hinted, chosen) = hints::choose(here, candidates, usable);
            let cause = match hinted {
                Hinted::Node => Cause::HintedNode,
                Hinted::Zone(zone) => Cause::HintedZone(zone),
                Hinted::Off(why) => Cause::HintsOff(why),
            };
            (cause, chosen)
        }
    }
}

/// The cause that the key at `index` is; there are at most [`MAX_KEYS`](super::validation::MAX_KEYS).
fn key_cause<'a>(keys: &[&'a str], index: usize, here: Here<'a>) -> Cause<'a> {
    let tier = u8::try_from(index).unwrap_or(u8::MAX);
    match here.label(keys[index]) {
        Some(value) if keys[index] != ANY => Cause::Key { tier, key: keys[index], value },
        _ => Cause::Any { tier },
    }
}
