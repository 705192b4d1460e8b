//! What the kernel knows of a Service's endpoint beside its address.

use topo_lb_common::members::{CHOSEN, NODE_SHIFT};

/// The lower half of a member's state: `members::Member`, without failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member(u16);

impl Member {
    /// `chosen`: this node's new connections may use it. `node`: the tag of the node to which packets may be sent on as
    /// they are, 1–32,767; zero for none.
    #[must_use]
    pub const fn new(chosen: bool, node: u16) -> Self {
        Self(if chosen { CHOSEN as u16 } else { 0 } | node << NODE_SHIFT)
    }

    /// As the maps have it.
    #[must_use]
    pub const fn of_state(state: u32) -> Self {
        Self(state as u16)
    }

    /// For the maps, without failures.
    #[must_use]
    pub const fn state(self) -> u32 {
        self.0 as u32
    }

    /// Whether this node's new connections may use it.
    #[must_use]
    pub const fn is_chosen(self) -> bool {
        self.0 & CHOSEN as u16 != 0
    }

    /// Of two targets of a Service port, either may choose it; both name its node, or none does.
    pub(super) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
