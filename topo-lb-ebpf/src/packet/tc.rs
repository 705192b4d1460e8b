//! The steps of tc: each handles one case of a packet of a client that has no socket on this node.
//!
//! One step handles most packets. Each rare case has its own step, which reads the packet again: a
//! program and all functions that it calls share a stack of 512 bytes. `steps` makes each a global
//! function, and `hooks` calls them.

use aya_ebpf::bindings::__sk_buff;
use core::ptr::NonNull;
use topo_lb_common::address::{SCTP, TCP, UDP};
use topo_lb_common::connection::{FROM_CLIENT, MET, REPLY, SNAT, TO_CLIENT};
use topo_lb_common::packets::Outcome;
use topo_lb_common::trace::Outcome as Told;

use crate::base::access::ETHERNET;
use crate::base::clock::now;
use crate::base::family::{ConnectionOf, TupleOf, V4, V6};
use crate::base::header::{Header, PacketKind};
use crate::base::transport::{FIN, RST, SYN, Transport, ports_of, split_ports, transport};
use crate::decide::affinity::Client;
use crate::decide::resolve::{Resolution, Resolved, look_up};
use crate::packet::budget;
use crate::packet::connection::{self, EndpointCheck, Reply};
use crate::packet::fast_path::FastPath;
use crate::packet::forward::forward;
use crate::packet::four_tuple::{EntryFields, FourTuple};
use crate::packet::fragment;
use crate::packet::note;
use crate::packet::opening::{self, Chosen, Expected};
use crate::packet::outcomes::{Hook, count, denied, dropped, limited, next, no_port, table_full};
use crate::packet::outside::{client_device, is_denied, is_outside, is_translated, set_stray};
use crate::packet::own;
use crate::packet::rewrite::{Write, rewrite};
use crate::packet::snat::{self, Route, may_end_another};
use crate::packet::state;
use crate::packet::unreachable::Unreachable;
use crate::packet::verdict::Verdict;

/// An address family that tc translates.
pub(crate) trait Translate: FastPath + Write + Client + Unreachable + Route {}

impl Translate for V4 {}
impl Translate for V6 {}

/// What was done for a packet of a client.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Done {
    /// Nothing yet.
    Nothing = 0,
    /// Its connection was moved to the established ones, or has no room there.
    Establish = 1,
    /// What it changes in its connection's state is recorded.
    Note = 2,
    /// Its connection was just opened, or its endpoint checked, and its state is recorded.
    All = 3,
}

/// Translates a packet from a client of a known connection.
#[inline(always)]
pub(crate) fn from_client<F: Translate>(skb: *mut __sk_buff, done: Done) -> Verdict {
    let hook = Hook::Ingress;
    let header = F::header(skb, ETHERNET, false);
    if let Some(verdict) = without_ports(skb, &header, hook) {
        return verdict;
    }
    let transport = transport(skb, &header);
    if !transport.is_sound {
        return next(hook, Outcome::Malformed);
    }
    let key = client_key(skb, &FourTuple::of_packet(&header, transport.ports), header.protocol);
    let opens = connection::opens(header.protocol, &transport);
    let without = if opens { Verdict::ChooseEndpoint } else { Verdict::Stray };
    // These change the state, as a rule: that takes the entry first, and then there is one look-up here.
    if done == Done::Nothing && transport.flags & (FIN | RST) != 0 {
        return Verdict::NoteFirst;
    }
    // With a SYN, the connection is half-open, as a rule.
    let is_syn = transport.flags & SYN != 0;
    let established = || connection::find_established::<F>(&key);
    let found = match if is_syn { None } else { established() } {
        Some(found) => found,
        None => match connection::find_half_open::<F>(&key) {
            None => match if is_syn { established() } else { None } {
                Some(found) => found,
                None => return without,
            },
            Some(found)
                if matches!(done, Done::Nothing | Done::Note)
                    && state::establishes::<F>(found, header.protocol, &transport) =>
            {
                return Verdict::Establish;
            }
            Some(found) => found,
        },
    };
    let now = now();
    match connection::check_endpoint::<F>(found, header.protocol, &transport, now) {
        EndpointCheck::Other => Verdict::Forget,
        EndpointCheck::Doubtful if done != Done::All => Verdict::CheckEndpoint,
        _ if done < Done::Note && must_note::<F>(found, &header, &transport, now) => Verdict::Note,
        _ => match translate(skb, &header, &transport, found, &key, now, hook) {
            Some(kind) => forward::<F>(skb, kind, hook),
            None => dropped(hook),
        },
    }
}

/// Whether [`note`] is due before a packet is translated.
#[inline(always)]
fn must_note<F: Translate>(
    found: NonNull<ConnectionOf<F>>,
    header: &Header<F>,
    transport: &Transport,
    now: u64,
) -> bool {
    header.kind == PacketKind::First
        || state::changes_state::<F>(found, header.protocol, transport, now)
}

/// Records what a packet changes in the state of its connection, and a first fragment. Then
/// [`Verdict::Leave`], [`Verdict::Forget`] or [`Verdict::Translate`].
#[inline(always)]
pub(crate) fn note<F: Translate>(skb: *mut __sk_buff, hook: Hook) -> Verdict {
    let header = F::header(skb, ETHERNET, false);
    let transport = transport(skb, &header);
    let says = FourTuple::of_packet(&header, transport.ports);
    let key = says.key(header.protocol, hook as u8, client_device(skb));
    let mut verdict = Verdict::Translate;
    if let Some(found) = connection::find_of::<F>(&key, &transport) {
        let now = now();
        verdict = state::note_state::<F>(found, &key, &transport, now);
        if header.kind == PacketKind::First {
            let to = FourTuple::<F>::of_entry(found);
            // SAFETY: a field of a look-up's value.
            let kind = unsafe { EntryFields::of(found).kind.read_volatile() };
            if connection::holds::<F>(found, &key) {
                fragment::remember(skb, &header, &to, kind, now, hook);
            }
        }
    }
    verdict
}

/// Forgets a packet's connection, which is over.
#[inline(always)]
pub(crate) fn forget<F: Translate>(skb: *mut __sk_buff, hook: Hook) -> Verdict {
    let header = F::header(skb, ETHERNET, false);
    let transport = transport(skb, &header);
    let says = FourTuple::of_packet(&header, transport.ports);
    let key = says.key(header.protocol, hook as u8, client_device(skb));
    let mut has_met = false;
    if let Some(found) = connection::find::<F>(&key) {
        // SAFETY: a field of a look-up's value.
        has_met = unsafe { EntryFields::of(found).state.read_volatile() } & MET != 0;
        connection::forget_client::<F>(&key, found);
    }
    if hook == Hook::Egress {
        fragment::leave(&header, hook)
    } else if has_met {
        Verdict::ChooseAnother
    } else if connection::opens(header.protocol, &transport) {
        Verdict::ChooseEndpoint
    } else {
        Verdict::Stray
    }
}

/// Handles a datagram that leaves this node. A process may have sent it from the address and the port that a
/// connection of source NAT has as its source: that connection is forgotten, or the answers would go to its
/// client. TCP has a handshake: see [`connection::reply`]. With a frontend as its source, its
/// answers are remembered as [`own`].
#[inline(always)]
pub(crate) fn leave_from_own<F: Translate>(skb: *mut __sk_buff) -> Verdict {
    const SOURCE: u8 = REPLY | SNAT;
    let header = F::header(skb, ETHERNET, false);
    if let Some(ports) = ports_of(skb, &header)
        && !is_translated(skb)
    {
        let says = FourTuple::of_packet(&header, ports);
        let key = client_key(skb, &says.reversed(), header.protocol);
        if own::may_be::<F>(header.protocol, says.source, says.source_port) {
            if snat::has_sent::<F>(skb, says.source) {
                own::remember::<F>(&key, now());
            }
        } else if let Some(found) = connection::find::<F>(&key)
            // SAFETY: a field of a look-up's value.
            && unsafe { EntryFields::of(found).kind.read_volatile() } & SOURCE == SOURCE
        {
            connection::forget::<F>(&key, found);
        }
    }
    fragment::leave(&header, Hook::Egress)
}

/// Handles a packet of a connection that may need another endpoint, or has lost its own.
#[inline(always)]
pub(crate) fn reconsider<F: Translate>(skb: *mut __sk_buff) -> Verdict {
    let header = F::header(skb, ETHERNET, false);
    let transport = transport(skb, &header);
    let says = FourTuple::of_packet(&header, transport.ports);
    let key = client_key(skb, &says, header.protocol);
    let opens = connection::opens(header.protocol, &transport);
    let without = if opens { Verdict::ChooseEndpoint } else { Verdict::Stray };
    let Some(found) = connection::find::<F>(&key) else {
        return without;
    };
    let frontend = F::frontend(says.destination, says.destination_port, header.protocol);
    // A pure acknowledgement is not answered.
    let asks = transport.payload != 0 || transport.flags & (SYN | FIN) != 0;
    match connection::reconsider::<F>(found, &key, &frontend, opens, asks, now()) {
        EndpointCheck::Other => {
            connection::forget::<F>(&key, found);
            without
        }
        EndpointCheck::GivenUp => {
            connection::forget::<F>(&key, found);
            Verdict::Reset
        }
        _ => Verdict::Note,
    }
}

/// Handles a packet that neither opens a connection nor belongs to a known one.
#[inline(always)]
pub(crate) fn stray<F: Translate>(skb: *mut __sk_buff) -> Verdict {
    let hook = Hook::Ingress;
    let header = F::header(skb, ETHERNET, false);
    let transport = transport(skb, &header);
    let (_, port) = split_ports(transport.ports);
    let frontend = F::frontend(header.destination, port, header.protocol);
    let service = look_up::<F>(&frontend, is_outside(skb));
    if !service.is_ours {
        fragment::leave(&header, hook)
    } else if is_outside(skb) || service.routes || transport.flags & RST != 0 {
        // Perhaps of a connection that another program translates. From outside, perhaps an answer to a
        // connection of this node: masquerading may have given it a node port as its source. If it is
        // neither, [`leave_stray`] gets it.
        if is_outside(skb) {
            set_stray(skb);
        }
        next(hook, Outcome::Unknown)
    } else {
        Verdict::Unreachable
    }
}

/// Refuses a packet to a frontend that came from outside and leaves this node as it came. The frontend's
/// address is not this node's, and no other program has translated the packet: the router would send it
/// here again, until its time to live ends.
#[inline(always)]
pub(crate) fn leave_stray<F: Translate>(skb: *mut __sk_buff) -> Verdict {
    let hook = Hook::Egress;
    let header = F::header(skb, ETHERNET, false);
    let transport = transport(skb, &header);
    let (_, port) = split_ports(transport.ports);
    let frontend = F::frontend(header.destination, port, header.protocol);
    let service = look_up::<F>(&frontend, true);
    if !service.is_ours {
        next(hook, Outcome::Untouched)
    } else if header.protocol != TCP || service.drops || is_denied::<F>(&frontend, header.source) {
        denied(hook)
    } else {
        Verdict::Reset
    }
}

/// Chooses an endpoint for a packet that opens a connection.
#[inline(always)]
pub(crate) fn open<F: Translate>(skb: *mut __sk_buff) -> Verdict {
    let hook = Hook::Ingress;
    let header = F::header(skb, ETHERNET, false);
    let transport = transport(skb, &header);
    let says = FourTuple::of_packet(&header, transport.ports);
    // The kernel drops it. An answer would go to all hosts of a network.
    if !F::is_unicast(says.source) {
        return fragment::leave(&header, hook);
    }
    let frontend = F::frontend(says.destination, says.destination_port, header.protocol);
    let key = client_key(skb, &says, header.protocol);
    if is_outside(skb) && header.protocol == UDP && own::is_own::<F>(&key, now()) {
        return fragment::leave(&header, hook);
    }
    if is_outside(skb) && is_denied::<F>(&frontend, says.source) {
        note::note::<F>(skb, &Resolved::unknown(Resolution::Drop), Told::Dropped);
        return denied(hook);
    }
    match opening::choose::<F>(skb, &says, &key, &frontend, transport.sequence, now()) {
        Chosen::Endpoint => Verdict::ExpectReplies,
        Chosen::Elsewhere => Verdict::ChooseSource,
        // Perhaps it is to an endpoint.
        Chosen::Untouched => Verdict::OpenDirect,
        Chosen::Limited => limited(hook),
        Chosen::Full => table_full(hook),
        Chosen::Denied => denied(hook),
        Chosen::Failed => dropped(hook),
        Chosen::Refused if header.protocol == TCP => Verdict::Reset,
        Chosen::Refused => Verdict::Unreachable,
    }
}

/// Chooses the source of a packet from outside whose endpoint is on another node.
#[inline(always)]
pub(crate) fn choose_source<F: Translate>(skb: *mut __sk_buff) -> Verdict {
    let header = F::header(skb, ETHERNET, false);
    if let Some(ports) = ports_of(skb, &header) {
        let key = client_key(skb, &FourTuple::of_packet(&header, ports), header.protocol);
        if let Some(found) = connection::find_half_open::<F>(&key) {
            if !snat::choose::<F>(skb, found, header.protocol) {
                opening::give_up::<F>(&key);
                return dropped(Hook::Ingress);
            }
            // SAFETY: a field of a look-up's value.
            let kind = unsafe { EntryFields::of(found).kind.read_volatile() };
            if kind & SNAT != 0 && budget::has_many::<F>(&key, now()) {
                opening::give_up::<F>(&key);
                return limited(Hook::Ingress);
            }
        }
    }
    Verdict::ExpectReplies
}

/// Writes the entry for the replies to a packet after choosing its endpoint.
/// [`Verdict::ExpectReplies`]: the next `attempt` may do it.
#[inline(always)]
pub(crate) fn expect_replies<F: Translate>(skb: *mut __sk_buff, attempt: u32) -> Verdict {
    let hook = Hook::Ingress;
    let header = F::header(skb, ETHERNET, false);
    if let Some(ports) = ports_of(skb, &header) {
        let key = client_key(skb, &FourTuple::of_packet(&header, ports), header.protocol);
        match opening::expect_replies::<F>(skb, &key, attempt) {
            Expected::Yes => {
                count(hook, Outcome::Opened);
                let is_first = header.kind == PacketKind::First;
                return if is_first { Verdict::Note } else { Verdict::Translate };
            }
            Expected::Taken => return Verdict::ExpectReplies,
            Expected::NoPort => return no_port(hook),
            Expected::Failed => {}
        }
    }
    dropped(hook)
}

/// Moves the connection of a packet to the established ones.
#[inline(always)]
pub(crate) fn establish<F: Translate>(skb: *mut __sk_buff) -> Verdict {
    let header = F::header(skb, ETHERNET, false);
    if let Some(ports) = ports_of(skb, &header) {
        let says = FourTuple::of_packet(&header, ports);
        opening::establish::<F>(&client_key(skb, &says, header.protocol));
    }
    Verdict::Next
}

/// The key of a client's packet.
#[inline(always)]
pub(crate) fn client_key<F: Translate>(
    skb: *mut __sk_buff,
    says: &FourTuple<F>,
    protocol: u8,
) -> TupleOf<F> {
    says.key(protocol, FROM_CLIENT, client_device(skb))
}

/// Translates a packet to a client if it is a reply of a known connection. `is_settled`: its state
/// is recorded.
#[inline(always)]
pub(crate) fn to_client<F: Translate>(skb: *mut __sk_buff, is_settled: bool) -> Verdict {
    let hook = Hook::Egress;
    let header = F::header(skb, ETHERNET, false);
    if let Some(verdict) = without_ports(skb, &header, hook) {
        return verdict;
    }
    let transport = transport(skb, &header);
    // As in `from_client`.
    if !is_settled && transport.is_sound && transport.flags & (SYN | FIN | RST) != 0 {
        return Verdict::Note;
    }
    let says = FourTuple::of_packet(&header, transport.ports);
    let key = says.key(header.protocol, TO_CLIENT, client_device(skb));
    let Some(found) = connection::find_of::<F>(&key, &transport) else {
        let (source, port) = (says.source, says.source_port);
        return if is_outside(skb) && may_be_own::<F>(skb, header.protocol, source, port) {
            Verdict::LeaveFromOwn
        } else {
            fragment::leave(&header, hook)
        };
    };
    if !transport.is_sound {
        return next(hook, Outcome::Malformed);
    }
    let now = now();
    match connection::reply::<F>(found, header.protocol, transport.flags, now) {
        Reply::Its => {}
        Reply::Over => return Verdict::Forget,
        Reply::Foreign => return Verdict::Meet,
    }
    if !is_settled && must_note::<F>(found, &header, &transport, now) {
        return Verdict::Note;
    }
    match translate(skb, &header, &transport, found, &key, now, hook) {
        Some(_) => Verdict::Next,
        None => dropped(hook),
    }
}

/// Whether a packet that leaves may be a datagram for [`leave_from_own`]. `port` in host order.
#[inline(always)]
pub(crate) fn may_be_own<F: Translate>(
    skb: *mut __sk_buff,
    protocol: u8,
    source: F::Address,
    port: u16,
) -> bool {
    own::may_be::<F>(protocol, source, port) || may_end_another(skb, protocol, port)
}

/// The verdict on a packet without ports of a Service's protocol; `None` if it has such ports.
#[inline(always)]
fn without_ports<F: Translate>(
    skb: *mut __sk_buff,
    header: &Header<F>,
    hook: Hook,
) -> Option<Verdict> {
    match header.kind {
        PacketKind::Malformed => return Some(next(hook, Outcome::Malformed)),
        PacketKind::Other => return Some(next(hook, Outcome::Untouched)),
        PacketKind::Later => return Some(fragment::translate(skb, header, hook)),
        PacketKind::Whole | PacketKind::First => {}
    }
    if header.protocol == F::ICMP {
        return Some(Verdict::IcmpError);
    }
    if !matches!(header.protocol, TCP | UDP | SCTP) {
        return Some(next(hook, Outcome::Untouched));
    }
    None
}

/// Records a packet of a known connection and translates it. Returns the connection's kind; `None`
/// if the packet cannot be written, or the entry was removed meanwhile.
#[inline(always)]
fn translate<F: Translate>(
    skb: *mut __sk_buff,
    header: &Header<F>,
    transport: &Transport,
    found: NonNull<ConnectionOf<F>>,
    key: &TupleOf<F>,
    now: u64,
    hook: Hook,
) -> Option<u8> {
    let to = FourTuple::<F>::of_entry(found);
    // SAFETY: a field of a look-up's value.
    let kind = unsafe { EntryFields::of(found).kind.read_volatile() };
    if !connection::holds::<F>(found, key) {
        return None;
    }
    state::note::<F>(found, header.protocol, transport, now);
    if !rewrite(skb, header, transport, &to) {
        return None;
    }
    count(hook, Outcome::Translated);
    Some(kind)
}
