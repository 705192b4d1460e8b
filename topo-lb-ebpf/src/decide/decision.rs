//! A decision as words, and who dialled what.

use topo_lb_common::trace::{Hook, Outcome};

use crate::base::family::Family;
use crate::decide::resolve::Resolved;

/// A decision as words, in the order of the arguments of a global function.
pub(crate) struct Words {
    /// The endpoint's address.
    pub(crate) head: u64,
    pub(crate) tail: u64,
    /// The Service index, and the endpoint's port from bit 32 on.
    pub(crate) service: u64,
    /// Hook, outcome, tier and locality, one byte each.
    pub(crate) bytes: u32,
}

impl Words {
    #[inline(always)]
    pub(crate) fn of<F: Family>(resolved: &Resolved<F>, hook: Hook, outcome: Outcome) -> Self {
        let (address, port) = F::endpoint_parts(&resolved.endpoint);
        let locality = F::locality(&resolved.endpoint) as u8;
        let [head, tail] = F::halves(address);
        Self {
            head,
            tail,
            service: u64::from(resolved.service) | u64::from(port) << 32,
            bytes: u32::from_ne_bytes([hook as u8, outcome as u8, resolved.tier, locality]),
        }
    }
}

/// Who dialled what.
pub(crate) struct Dialled<F: Family> {
    pub(crate) frontend: (F::Address, u16),
    pub(crate) client: (F::Address, u16),
    pub(crate) protocol: u8,
    pub(crate) is_v6: bool,
    pub(crate) device: u32,
}
