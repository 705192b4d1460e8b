//! `packets`: counts the packets of each hook by outcome.

use topo_lb_common::packets::{Outcome, XDP};

use crate::base::family::Family;
use crate::base::maps::{PACKETS, SERVES_ALL_FRONTENDS};
use crate::decide::frontend_filter::in_range;
use crate::packet::verdict::Verdict;

/// A tc hook: the index of its counts.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hook {
    Ingress = 0,
    Egress = 1,
}

/// Counts a packet with its outcome.
#[inline(always)]
pub(crate) fn count(hook: Hook, outcome: Outcome) {
    if let Some(packets) = PACKETS.get_ptr_mut(hook as u32) {
        // SAFETY: this CPU's element; at worst an increment is lost.
        unsafe { *(*packets).at(outcome) += 1 };
    }
}

/// Counts a packet that XDP has not left to tc, with its outcome.
#[inline(always)]
pub(crate) fn done_by_xdp(outcome: Outcome) {
    if let Some(packets) = PACKETS.get_ptr_mut(XDP) {
        // SAFETY: as in `count`.
        unsafe { *(*packets).at(outcome) += 1 };
    }
}

/// Counts a packet that goes on to the next program of the hook.
#[inline(always)]
pub(crate) fn next(hook: Hook, outcome: Outcome) -> Verdict {
    count(hook, outcome);
    Verdict::Next
}

/// Passes a packet on that has no ports, and is of no known connection. On ingress, the destination alone
/// says whether it is to a Service, unless frontends can have any address.
#[inline(always)]
pub(crate) fn unmatched<F: Family>(hook: Hook, destination: F::Address) -> Verdict {
    let is_to_service =
        hook == Hook::Ingress && SERVES_ALL_FRONTENDS.load() == 0 && in_range::<F>(destination);
    next(hook, if is_to_service { Outcome::Unknown } else { Outcome::Untouched })
}

/// Drops a packet whose client may not open a connection, and gets no answer.
#[inline(always)]
pub(crate) fn denied(hook: Hook) -> Verdict {
    count(hook, Outcome::Denied);
    Verdict::Drop
}

/// Drops a packet that would have opened a connection.
#[inline(always)]
pub(crate) fn limited(hook: Hook) -> Verdict {
    count(hook, Outcome::Limited);
    Verdict::Drop
}

/// Drops a packet that would have opened a connection, for which the table has no room.
#[inline(always)]
pub(crate) fn table_full(hook: Hook) -> Verdict {
    count(hook, Outcome::TableFull);
    Verdict::Drop
}

/// Drops a packet that would have opened a connection, for which no source port was free.
#[inline(always)]
pub(crate) fn no_port(hook: Hook) -> Verdict {
    count(hook, Outcome::NoPort);
    Verdict::Drop
}

/// Counts a packet that the kernel refused to change, or had no memory for.
#[inline(always)]
pub(crate) fn dropped(hook: Hook) -> Verdict {
    count(hook, Outcome::Dropped);
    Verdict::Drop
}
