//! How much the maps hold.

use topo_lb_common::maps;

/// Sizes of the maps, as the agent was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Frontends per family, and Service ports in all.
    pub services: u32,
    /// Slots per family.
    pub slots: u32,
    /// Members per family.
    pub members: u32,
    /// Unconnected UDP flows and affinity entries per family; full maps forget the oldest.
    pub flows: u32,
}

impl Default for Capacity {
    fn default() -> Self {
        Self {
            services: maps::DEFAULT_SERVICES,
            slots: maps::DEFAULT_SLOTS,
            members: maps::DEFAULT_MEMBERS,
            flows: maps::DEFAULT_FLOWS,
        }
    }
}
