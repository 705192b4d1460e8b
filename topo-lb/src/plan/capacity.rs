//! How much the maps hold: what they are made for, and what plans must keep to.

use topo_lb_common::maps;

/// How much the maps hold, as the agent was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Frontends per family, and Service ports in all.
    pub services: u32,
    /// Endpoints per family, of Services that do not fit inline: slots.
    pub slots: u32,
    /// Endpoints per family, of UDP Services and Services with session affinity: members.
    pub members: u32,
    /// Unconnected UDP flows and affinity entries per family; full maps forget the oldest.
    pub flows: u32,
    /// Connections of tc per family; zero where tc is not used, and then its maps are not pinned.
    pub connections: u32,
}

/// What there is too little of for a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Frontends of a family, or Service ports.
    Services,
    /// Slots, or members.
    Endpoints,
}

impl Shortage {
    /// In one word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::Endpoints => "endpoints",
        }
    }

    /// The agent's flag that gives more.
    #[must_use]
    pub const fn flag(self) -> &'static str {
        match self {
            Self::Services => "--max-services",
            Self::Endpoints => "--max-endpoints",
        }
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
        }
    }
}
