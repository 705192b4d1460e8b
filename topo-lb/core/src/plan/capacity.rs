//! The sizes of the maps, and what happens to Services that do not fit.

use std::fmt;

use topo_lb_common::maps;
use topo_lb_common::record::SPARE;

use super::desired::Desired;
use crate::cluster::ServiceId;
use crate::flag;
use crate::topology::size::{Excess, Most};

/// A Service with so many endpoints of all its ports is planned, however small the maps are.
const PLANNED_ANYHOW: u64 = 65_536;

/// How many entries the maps hold, as set by the agent's flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Frontends per family, and Service ports in all.
    pub services: u32,
    /// Endpoints per family, of Services that do not fit inline: slots.
    pub slots: u32,
    /// Endpoints per family, of UDP Services and Services with session affinity: members.
    pub members: u32,
    /// Affinity entries per family; full maps forget the oldest.
    pub flows: u32,
    /// tc connections per family. Zero without tc; its maps are then not pinned.
    pub connections: u32,
    /// Sources that may dial frontends with source ranges, per family. Zero without
    /// `--frontends all`; its maps are then not pinned.
    pub sources: u32,
    /// Flows per family whose packets are sent on to other nodes as they are; full maps forget the oldest. Zero
    /// without direct return.
    pub hops: u32,
    /// Records per family beyond one for each frontend: replaced ones wait for a grace period.
    pub spare: u32,
}

/// Which kind of entry a Service lacks room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Shortage {
    /// Frontends of a family, or Service ports.
    Services,
    /// Slots, or members.
    Endpoints,
    /// It asks for more frontends of a family, or Service ports, than the maps hold. It is not planned.
    TooManyFrontends,
    /// Its ports have too many endpoints together (more than the maps could ever hold). It is not planned.
    TooManyEndpoints,
}

impl Shortage {
    /// All values.
    pub const ALL: [Self; 4] =
        [Self::Services, Self::Endpoints, Self::TooManyFrontends, Self::TooManyEndpoints];

    /// The agent's flag that makes these maps larger.
    #[must_use]
    pub const fn flag(self) -> &'static str {
        match self {
            Self::Services | Self::TooManyFrontends => flag::MAX_SERVICES,
            Self::Endpoints | Self::TooManyEndpoints => flag::MAX_ENDPOINTS,
        }
    }

    /// Whether the Service alone is too large, whatever room there is.
    #[must_use]
    pub const fn is_too_large(self) -> bool {
        matches!(self, Self::TooManyFrontends | Self::TooManyEndpoints)
    }
}

impl From<Excess> for Shortage {
    fn from(excess: Excess) -> Self {
        match excess {
            Excess::Frontends => Self::TooManyFrontends,
            Excess::Endpoints => Self::TooManyEndpoints,
        }
    }
}

/// What to do with Services without room in the maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum WhenFull {
    /// Leaves them to kube-proxy. With --kube-proxy-replacement, those that lack room for their endpoints get
    /// a few of them.
    #[default]
    Leave,
    /// Refuses connections to those with a strict policy, which kube-proxy does not know, and leaves the
    /// others to kube-proxy. Strict Services get frontends before others of their namespace. If they alone
    /// want more than its share of --max-services, some can still be left to kube-proxy.
    RefuseStrict,
}

impl WhenFull {
    /// Whether connections to this Service are refused while it has no room.
    pub(super) fn refuses(self, desired: &Desired, id: &ServiceId) -> bool {
        self == Self::RefuseStrict && desired.is_strict(id)
    }
}

/// A Service that lacks room in the maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lack {
    /// Which kind of entry is missing.
    pub of: Shortage,
    /// What its connections do.
    pub meanwhile: Meanwhile,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (meanwhile, flag) = (self.meanwhile.sentence(), self.of.flag());
        match self.of {
            Shortage::Services | Shortage::Endpoints => {
                write!(f, "the maps are full, the Service {meanwhile}: ")?;
            }
            Shortage::TooManyFrontends => write!(
                f,
                "too large, the Service {meanwhile}: its ports have too many addresses; divide it, or "
            )?,
            Shortage::TooManyEndpoints => write!(
                f,
                "too large, the Service {meanwhile}: its ports have too many endpoints; divide it, or "
            )?,
        }
        write!(f, "start the agent with a larger {flag}")
    }
}

/// What connections to a Service do while it lacks room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Meanwhile {
    /// kube-proxy handles them: the maps have nothing of the Service.
    KubeProxy,
    /// They go to as many of its endpoints as fit inline. A new Service only where no kube-proxy is beside.
    Narrowed,
    /// They go to the endpoints that it had while there was room.
    LastGood,
    /// They are refused: the policy is strict.
    Refused,
    /// They go where the policy says, but clients that dial its endpoints directly reach them.
    DirectDials,
    /// As with `KubeProxy`, but no kube-proxy is beside (`--kube-proxy-replacement`).
    Nobody,
}

impl Meanwhile {
    /// All values.
    pub const ALL: [Self; 6] = [
        Self::KubeProxy,
        Self::Narrowed,
        Self::LastGood,
        Self::Refused,
        Self::DirectDials,
        Self::Nobody,
    ];

    /// Whether the maps have nothing of the Service.
    #[must_use]
    pub const fn is_left_out(self) -> bool {
        matches!(self, Self::KubeProxy | Self::Nobody)
    }

    /// As a sentence for people, to follow the Service's name or `the Service`.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::KubeProxy => "is left to kube-proxy, whole",
            Self::Narrowed => {
                "uses at most 6 of its endpoints (4 over IPv6) at random, other ones on each node"
            }
            Self::LastGood => "keeps its last endpoints, which may be out of date",
            Self::Refused => "is refused, as its policy is strict",
            Self::DirectDials => {
                "is served, but direct dials of its endpoints are neither refused nor steered"
            }
            Self::Nobody => "is served by nobody on this node",
        }
    }
}

impl Capacity {
    /// Records per family.
    #[must_use]
    pub const fn records(&self) -> u32 {
        self.services.saturating_add(self.spare)
    }

    /// What a Service may ask for, to be planned at all: as many frontends as the maps hold, and twice as many
    /// endpoints of all its ports, as a policy may choose few of them.
    pub(crate) fn most_of_a_service(&self) -> Most {
        let endpoints = (2 * u64::from(self.slots)).max(PLANNED_ANYHOW);
        Most { frontends: self.services.into(), endpoints }
    }
}

impl Default for Capacity {
    fn default() -> Self {
        Self {
            services: maps::DEFAULT_SERVICES,
            slots: maps::DEFAULT_SLOTS,
            members: maps::DEFAULT_MEMBERS,
            flows: maps::DEFAULT_FLOWS,
            connections: 0,
            sources: 0,
            hops: 0,
            spare: SPARE,
        }
    }
}
