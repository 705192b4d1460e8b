//! Whether a connection may have a source port at its endpoint that another one has, or had.

use aya_ebpf::bindings::__sk_buff;
use topo_lb_common::address::TCP;
use topo_lb_common::connection::{
    ANSWERED, LONGEST_TIME_WAIT, RESET, SHORTEST_LIFETIME, TIME_WAIT, is_closed,
};

use crate::base::family::{Family, TupleOf};
use crate::packet::connection::{find_established, find_half_open, forget, is_alive, remove};
use crate::packet::four_tuple::{EntryFields, FourTuple};
use crate::packet::snat::has_socket;

/// Source ports to try, if the client's own or another one is taken at the endpoint.
pub(crate) const PORT_ATTEMPTS: u32 = 16;
/// How many of them leave alone the ports of other clients' closed connections: their endpoint may still know
/// them (TIME-WAIT). Linux likewise takes these last (`nf_nat_used_tuple_harder`,
/// net/netfilter/nf_nat_core.c).
const FREE_ATTEMPTS: u32 = 12;

/// Which connections of other clients give up their reply's key. Each also has those of the former one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Takes {
    /// Those that are over, also for their endpoint.
    Over,
    /// Those closed by FINs for [`TIME_WAIT`] and those closed by a RST, which have no TIME-WAIT. Of source
    /// NAT also those without a packet for [`SHORTEST_LIFETIME`] but for established ones of TCP: so packets
    /// with false sources do not use up all ports.
    Rested,
    /// Closed ones.
    Closed,
}

impl Takes {
    /// Those of an attempt, less than [`PORT_ATTEMPTS`].
    #[inline(always)]
    pub(crate) const fn of(attempt: u32) -> Self {
        if attempt < FREE_ATTEMPTS {
            Self::Over
        } else if attempt < PORT_ATTEMPTS - 1 {
            Self::Rested
        } else {
            Self::Closed
        }
    }
}

/// Whether a connection with the key `key` may use a reply's key. Removes the connection that had it. A process of
/// this node may have the port of source NAT, too: that is asked last, as the kernel has many sockets to look at.
#[inline(always)]
pub(crate) fn may_take<F: Family>(
    skb: *mut __sk_buff,
    reply: &mut TupleOf<F>,
    key: &TupleOf<F>,
    takes: Takes,
    is_snat: bool,
    now: u64,
) -> bool {
    let established = find_established::<F>(reply);
    let found = established.or_else(|| find_half_open::<F>(reply));
    let is_own = found.is_some_and(|found| FourTuple::<F>::of_entry(found).is_reply_to(key));
    if let Some(found) = found
        && !is_own
        && !gives_up(
            (EntryFields::of(found), established.is_some()),
            key.protocol,
            takes,
            is_snat,
            now,
        )
    {
        return false;
    }
    if is_snat && has_socket::<F>(skb, reply) {
        return false;
    }
    match found {
        Some(_) if is_own => remove::<F>(reply),
        Some(found) => forget::<F>(reply, found),
        None => {}
    }
    true
}

/// Whether another client's connection, which is established or not, gives up its reply's key.
#[inline(always)]
fn gives_up(
    (fields, is_established): (EntryFields, bool),
    protocol: u8,
    takes: Takes,
    is_snat: bool,
    now: u64,
) -> bool {
    // SAFETY: fields of a look-up's value, each read separately.
    let (state, last_used) =
        unsafe { (fields.state.read_volatile(), fields.last_used.read_volatile()) };
    let age = now.wrapping_sub(last_used).cast_signed();
    let is_tcp = protocol == TCP;
    if is_tcp && is_closed(state) {
        let (waits, least) = if state & RESET != 0 {
            (SHORTEST_LIFETIME, 0)
        } else {
            (LONGEST_TIME_WAIT, TIME_WAIT)
        };
        match takes {
            Takes::Over => age > waits.cast_signed(),
            Takes::Rested => age >= least.cast_signed(),
            Takes::Closed => true,
        }
    } else {
        let is_open = is_tcp && is_established && state & ANSWERED != 0;
        let is_idle = age > SHORTEST_LIFETIME.cast_signed() && !is_open;
        !is_alive(fields, protocol, now) || takes != Takes::Over && is_snat && is_idle
    }
}
