//! What packets change in a connection's entries: times, sequence numbers, state.

use core::hint::cold_path;
use core::ptr::NonNull;

use topo_lb_common::address::TCP;
use topo_lb_common::connection::{
    ANSWERED, CLIENT_FIN, ENDPOINT_FIN, FIN_AGAIN, LAG, LONGEST_ACK, REOPENS, REPLY, RESET, TICK,
    is_closed, is_in_window, is_near, must_record,
};

use crate::base::family::{ConnectionOf, Family, TupleOf};
use crate::base::transport::{ACK, FIN, RST, SYN, Transport};
use crate::packet::connection::{find_of, holds, other_key};
use crate::packet::four_tuple::{EntryFields, FourTuple};
use crate::packet::verdict::Verdict;

/// How often a datagram also refreshes the entry of the other direction, and a packet of each direction is tc's:
/// every 2^33 ns (8.6 s), which is less than any lifetime.
pub(crate) const REFRESH: u32 = 33;

/// Whether a packet at `now` is the first one of its direction in a period of [`REFRESH`]. Periods of different
/// connections begin at different ticks, by their ports, and those of a connection's two directions half a period
/// apart: so not all are due at once, and a direction that refreshes the other one does not always come before it.
#[inline(always)]
pub(crate) fn is_due<F: Family>(connection: NonNull<ConnectionOf<F>>, now: u64) -> bool {
    const HALF: u64 = 1 << (REFRESH - TICK - 1);
    let entry = connection.as_ptr();
    // SAFETY: fields of a look-up's value, each read separately.
    let (last_used, kind, ports) = unsafe {
        let (from, to) = ((*entry).key.source_port, (*entry).key.destination_port);
        let ports = [from, to, (*entry).source_port, (*entry).destination_port];
        let fields = EntryFields::of(connection);
        (fields.last_used.read_volatile(), fields.kind.read_volatile(), ports)
    };
    // Both entries have these four ports.
    let ports: u64 = ports.map(u64::from).into_iter().sum();
    // Whole ticks: the first packet in a period is the first one in a tick, whose time is noted.
    let phase = (ports + if kind & REPLY == 0 { 0 } else { HALF }) << TICK;
    (last_used.wrapping_add(phase) ^ now.wrapping_add(phase)) >> REFRESH != 0
}

/// Whether a client's packet shows that its half-open connection is established: it completes TCP's
/// handshake, or it is a datagram after an answer.
#[inline(always)]
pub(crate) fn establishes<F: Family>(
    connection: NonNull<ConnectionOf<F>>,
    protocol: u8,
    transport: &Transport,
) -> bool {
    let fields = EntryFields::of(connection);
    // SAFETY: fields of a look-up's value, each read separately.
    let (state, kind, expected) = unsafe {
        let acknowledged = fields.acknowledged.read_volatile();
        (fields.state.read_volatile(), fields.kind.read_volatile(), acknowledged)
    };
    let is_last =
        || transport.flags & (SYN | RST | ACK) == ACK && is_near(transport.acknowledged, expected);
    state & ANSWERED != 0
        && kind & REPLY == 0
        && (protocol != TCP || !is_closed(state) && is_last())
}

/// Records a packet of the connection: its time and its sequence numbers.
#[inline(always)]
pub(crate) fn note<F: Family>(
    connection: NonNull<ConnectionOf<F>>,
    protocol: u8,
    transport: &Transport,
    now: u64,
) {
    let fields = EntryFields::of(connection);
    // Several CPUs may have packets of one direction, and each write takes the entry's cache line
    // from the others: so there is one write per tick, and one per `LAG` bytes.
    // SAFETY: fields of a look-up's value. Another CPU writes numbers that are close to these.
    unsafe {
        let is_due = (fields.last_used.read_volatile() ^ now) >> TICK != 0;
        if is_due {
            fields.last_used.write_volatile(now);
        }
        if protocol != TCP || transport.flags & (SYN | RST) != 0 {
            return;
        }
        let sent = fields.sent.read_volatile();
        let end = transport.sequence.wrapping_add(transport.payload);
        let before = fields.acknowledged.read_volatile();
        let is_new = |number: u32, recorded| number.wrapping_sub(recorded) >= LAG;
        if !(is_due || is_new(end, sent) || is_new(transport.acknowledged, before)) {
            return;
        }
        cold_path();
        // A segment that does not follow what was sent before is not believed.
        let ahead = transport.sequence.wrapping_sub(sent).wrapping_add(1 << 31);
        if ahead > (1 << 31) + LAG {
            return;
        }
        if must_record(end, sent, u32::MAX >> 1, is_due) {
            fields.sent.write_volatile(end);
        }
        // An old number is half of all numbers, and proves nothing about the sender. Who acknowledges something
        // new sends it with its newest number.
        if is_near(transport.sequence, sent)
            && must_record(transport.acknowledged, before, LONGEST_ACK, is_due)
        {
            fields.acknowledged.write_volatile(transport.acknowledged);
        }
    }
}

/// Whether a packet may change the connection's state, or must refresh its other entry: then
/// [`note_state`] is due before the packet is translated.
#[inline(always)]
pub(crate) fn changes_state<F: Family>(
    connection: NonNull<ConnectionOf<F>>,
    protocol: u8,
    transport: &Transport,
    now: u64,
) -> bool {
    if protocol == TCP {
        return transport.flags & (SYN | FIN | RST) != 0;
    }
    let fields = EntryFields::of(connection);
    // SAFETY: fields of a look-up's value, each read separately.
    let (state, kind) = unsafe { (fields.state.read_volatile(), fields.kind.read_volatile()) };
    // TCP has acknowledgements, and the time of its replies shows whether the endpoint is silent.
    is_due::<F>(connection, now) || kind & REPLY != 0 && state & ANSWERED == 0
}

/// Records what a packet changes in both entries of the connection, if anything. `key` is that of
/// `connection`. [`Verdict::Leave`]: it ends the connection, or is the first answer to a datagram.
/// [`Verdict::Forget`]: the client has no answer yet, and would get none, because the entry for replies is missing.
/// Otherwise [`Verdict::Translate`].
#[inline(always)]
pub(crate) fn note_state<F: Family>(
    connection: NonNull<ConnectionOf<F>>,
    key: &TupleOf<F>,
    transport: &Transport,
    now: u64,
) -> Verdict {
    let other_key = other_key::<F>(connection, key);
    if !holds::<F>(connection, key) {
        return Verdict::Translate;
    }
    let own = EntryFields::of(connection);
    // The key may be that of another connection's entry by now.
    let Some(other) = find_of::<F>(&other_key, transport)
        .filter(|other| FourTuple::<F>::of_entry(*other).is_reply_to(key))
    else {
        // SAFETY: fields of a look-up's value, each read separately.
        let (state, kind) = unsafe { (own.state.read_volatile(), own.kind.read_volatile()) };
        return if state & ANSWERED == 0 && kind & REPLY == 0 {
            Verdict::Forget
        } else {
            Verdict::Translate
        };
    };
    let other = EntryFields::of(other);
    let leave_if = |is_over| if is_over { Verdict::Leave } else { Verdict::Translate };
    if key.protocol == TCP {
        return leave_if(note_flags(own, other, transport, now));
    }
    // SAFETY: fields of look-ups' values, each read and written separately.
    unsafe {
        other.last_used.write_volatile(now);
        let state = own.state.read_volatile();
        let is_first = own.kind.read_volatile() & REPLY != 0 && state & ANSWERED == 0;
        if is_first {
            own.state.write_volatile(state | ANSWERED);
            other.state.write_volatile(state | ANSWERED);
        }
        leave_if(is_first)
    }
}

/// Records a TCP segment with SYN, FIN or RST, if it belongs to the connection. `own` is the entry
/// of its direction. Returns whether the segment ends the connection.
#[inline(always)]
fn note_flags(own: EntryFields, other: EntryFields, transport: &Transport, now: u64) -> bool {
    // SAFETY: a field of a look-up's value.
    let is_reply = unsafe { own.kind.read_volatile() } & REPLY != 0;
    let (client, reply) = if is_reply { (other, own) } else { (own, other) };
    let Transport { flags, sequence, acknowledged, .. } = *transport;
    // SAFETY: fields of look-ups' values. If another CPU overwrites a state at the same moment, the
    // next packet with such a flag sets it again, or the entry expires.
    unsafe {
        let state = client.state.read_volatile();
        let is_answered = state & ANSWERED != 0;
        // What the SYN-ACK acknowledges.
        let first = client.sequence.read_volatile().wrapping_add(1);
        let mut next = state;
        if flags & SYN != 0 {
            if is_reply {
                let is_awaited = !is_closed(state) && (!is_answered || state & REOPENS != 0);
                if flags & ACK != 0 && is_awaited && is_near(acknowledged, first) {
                    next = ANSWERED;
                    let after = sequence.wrapping_add(1);
                    reply.sent.write_volatile(after);
                    client.acknowledged.write_volatile(after);
                    reply.acknowledged.write_volatile(acknowledged);
                    client.sent.write_volatile(acknowledged);
                }
            } else if flags & ACK == 0 {
                client.sequence.write_volatile(sequence);
                if is_answered {
                    next |= REOPENS;
                }
            }
        } else {
            let counts = if is_answered {
                let from = other.acknowledged.read_volatile();
                is_in_window(sequence, from, own.sent.read_volatile())
            } else if is_reply {
                flags & ACK != 0 && is_near(acknowledged, first)
            } else {
                is_near(sequence, first)
            };
            if counts && flags & RST != 0 {
                next |= RESET;
            } else if counts && flags & FIN != 0 {
                let fin = if is_reply { ENDPOINT_FIN } else { CLIENT_FIN };
                // One packet may be here twice, if its endpoint is checked.
                if state & fin != 0 && (own.last_used.read_volatile() ^ now) >> TICK != 0 {
                    next |= FIN_AGAIN;
                }
                next |= fin;
            }
        }
        if next != state {
            // A state with a shorter lifetime must not end the connection before this packet.
            client.last_used.write_volatile(now);
            reply.last_used.write_volatile(now);
            client.state.write_volatile(next);
            reply.state.write_volatile(next);
        }
        is_closed(next) && !is_closed(state)
    }
}
