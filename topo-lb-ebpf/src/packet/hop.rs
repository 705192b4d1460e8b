//! Direct return: a packet of a client outside, whose endpoint is on another node, is sent on to that node unchanged but
//! for its Ethernet addresses and its hop limit, if that node is proved ([`topo_lb_common::hop`]). That node translates
//! it to an endpoint of its own, and answers the client.
//!
//! Which node that is depends on the client and on the table of the Service: every node of the same vantage sends a
//! flow on to the same one. An entry of `hops4/6` keeps it there, whatever the table says later.

use aya_ebpf::bindings::{
    __sk_buff, BPF_ANY, BPF_FIB_LKUP_RET_NO_NEIGH, BPF_FIB_LKUP_RET_SUCCESS,
    bpf_fib_lookup as FibLookup, bpf_redir_neigh as NextHop,
};
use aya_ebpf::helpers::{bpf_fib_lookup, bpf_redirect_neigh};
use topo_lb_common::address::{Frontend, PEERS, TCP};
use topo_lb_common::backend::Locality;
use topo_lb_common::connection::{ANSWERED, HOP, TICK, lifetime};
use topo_lb_common::hop::{Hop, PROVED, Peer};
use topo_lb_common::members::Member;
use topo_lb_common::packets::Outcome;
use topo_lb_common::trace::Outcome as Told;

use crate::base::access::{ETHERNET, device, load};
use crate::base::clock::now;
use crate::base::family::{Family, FrontendOf, TupleOf};
use crate::base::header::PacketKind;
use crate::base::maps::{self, RETURNS_DIRECTLY, SNAT};
use crate::base::transport::{ports_of, transport};
use crate::decide::resolve::{Asks, Resolution, count as count_connection, has_own};
use crate::packet::connection;
use crate::packet::four_tuple::FourTuple;
use crate::packet::fragment;
use crate::packet::note;
use crate::packet::opening::decide_for;
use crate::packet::outcomes::{Hook, count};
use crate::packet::outside::{Clients, enter, is_denied, is_outside};
use crate::packet::rewrite::Write;
use crate::packet::snat::{Route, vlan};
use crate::packet::tc::{Translate, client_key};
use crate::packet::verdict::Verdict;

/// Offset of the sender's address in a frame.
const SENDER: u32 = 6;

/// Whether packets of this client may be sent on at all.
#[inline(always)]
pub(crate) fn may_be(skb: *mut __sk_buff) -> bool {
    RETURNS_DIRECTLY.load() != 0 && is_outside(skb)
}

/// The entry of `peers` of an Ethernet address; zero without one.
#[inline(always)]
fn peer<F: Family>(ethernet: [u8; 6]) -> u32 {
    let key = Peer { ethernet, version: if F::IS_V6 { 6 } else { 4 }, reserved: 0 };
    // SAFETY: one aligned word.
    maps::PEERS.get_ptr(&key).map_or(0, |value| unsafe { value.read_volatile() })
}

/// Whether another node has sent a packet on: it has made its one hop.
#[inline(always)]
pub(crate) fn is_hopped<F: Family>(skb: *mut __sk_buff) -> bool {
    may_be(skb) && load(skb, SENDER).is_some_and(|sender| peer::<F>(sender) != 0)
}

/// Sends a packet of a known flow on. Otherwise [`Verdict::ChooseHop`] if the flow may begin, or the step of
/// a packet that is not sent on: [`Verdict::ChooseEndpoint`] or [`Verdict::Stray`]. `is_chosen`: [`choose`] has just
/// written the flow's entry, which goes if the node is not proved.
#[inline(always)]
pub(crate) fn send_known<F: Translate>(skb: *mut __sk_buff, is_chosen: bool) -> Verdict {
    let header = F::header(skb, ETHERNET, false);
    let transport = transport(skb, &header);
    let opens = connection::opens(header.protocol, &transport);
    let without = if opens { Verdict::ChooseEndpoint } else { Verdict::Stray };
    let says = FourTuple::<F>::of_packet(&header, transport.ports);
    if is_hopped::<F>(skb) {
        let frontend = F::frontend(says.destination, says.destination_port, header.protocol);
        if has_own::<F>(&frontend) {
            enter(skb, Clients::Hopped);
        }
        return without;
    }
    let key = client_key(skb, &says, header.protocol);
    // Each SYN begins a flow.
    if opens && header.protocol == TCP && !is_chosen {
        return Verdict::ChooseHop;
    }
    let Some(address) = known::<F>(&key) else {
        return if is_chosen { without } else { Verdict::ChooseHop };
    };
    let way = way::<F>(skb, header.protocol, address);
    let is_proved = || way.as_ref().is_some_and(|way| prove::<F>(&key, address, way.dmac, opens));
    if is_chosen && !is_proved() {
        let _ = F::hops().remove(&key);
        return without;
    }
    let Some(way) = way else { return without };
    if header.kind == PacketKind::First {
        remember_fragments::<F>(skb, address);
    }
    send_by::<F>(skb, &way).unwrap_or(without)
}

/// Chooses the node for a packet, and writes the entry of its flow: [`Verdict::SendHop`]. Otherwise as [`send_known`].
#[inline(always)]
pub(crate) fn choose<F: Translate>(skb: *mut __sk_buff) -> Verdict {
    let header = F::header(skb, ETHERNET, false);
    let transport = transport(skb, &header);
    let opens = connection::opens(header.protocol, &transport);
    let without = if opens { Verdict::ChooseEndpoint } else { Verdict::Stray };
    let says = FourTuple::<F>::of_packet(&header, transport.ports);
    let frontend = F::frontend(says.destination, says.destination_port, header.protocol);
    let is_denied = opens && is_denied::<F>(&frontend, says.source);
    if is_denied || !F::is_unicast(says.source) || !is_of_service::<F>(&frontend) {
        return without;
    }
    let client = (says.source, says.source_port);
    let resolved = decide_for::<F>(&frontend, Asks::Outside, client);
    let locality = F::locality(&resolved.endpoint);
    if resolved.verdict != Resolution::Redirect || locality == Locality::Node {
        return without;
    }
    let (address, port) = F::endpoint_parts(&resolved.endpoint);
    let hop = Hop {
        address: F::bytes(address),
        port,
        locality: locality as u8,
        reserved: 0,
        service: resolved.service,
        last_used: (now() >> TICK) as u32,
    };
    let key = client_key(skb, &says, header.protocol);
    // A full map forgets an entry.
    if F::hops().insert(&key, &hop, BPF_ANY.into()).is_err() {
        return without;
    }
    if opens {
        note::note::<F>(skb, &resolved, Told::Routed);
    }
    Verdict::SendHop
}

/// Whether the node of a flow's endpoint is proved, and is the next hop: `neighbour`, zeros if that has to be asked for
/// its address first. Then a new flow is counted.
#[inline(always)]
fn prove<F: Family>(
    key: &TupleOf<F>,
    address: F::Address,
    neighbour: [u8; 6],
    opens: bool,
) -> bool {
    let Some(hop) = F::hops().get_ptr(key) else { return false };
    // SAFETY: a look-up's value, as in `known`.
    let (port, service, locality) = unsafe { ((*hop).port, (*hop).service, (*hop).locality) };
    let Some(member) = F::members().get_ptr(&F::member_key(service, (address, port))) else {
        return false;
    };
    // SAFETY: one aligned word.
    let node = Member::node(unsafe { (&raw const (*member).state).read_volatile() });
    let is_proved = node != 0 && peer::<F>(neighbour) == u32::from(node) | PROVED;
    if is_proved && opens {
        count_connection(service, Some(Locality::from_byte(locality)));
    }
    is_proved
}

/// Remembers the fragments of a datagram whose first one is sent on.
#[inline(always)]
fn remember_fragments<F: Translate>(skb: *mut __sk_buff, endpoint: F::Address) {
    let header = F::header(skb, ETHERNET, false);
    let ports = ports_of(skb, &header).unwrap_or_default();
    let to = FourTuple::<F> { destination: endpoint, ..FourTuple::of_packet(&header, ports) };
    fragment::remember(skb, &header, &to, HOP, now(), Hook::Ingress);
}

/// Whether a frontend is of a Service with direct return.
#[inline(always)]
pub(crate) fn is_of_service<F: Family>(frontend: &FrontendOf<F>) -> bool {
    let peers = Frontend { protocol: frontend.protocol | PEERS, ..*frontend };
    F::services().get_ptr(&peers).is_some()
}

/// The endpoint of a flow that is sent on; that of datagrams has to serve, and is chosen anew after a pause.
#[inline(always)]
pub(crate) fn known<F: Family>(key: &TupleOf<F>) -> Option<F::Address> {
    let hop = F::hops().get_ptr_mut(key)?;
    // SAFETY: a look-up's value, of which the endpoint and the Service do not change: a new flow replaces all of it. If
    // the kernel gives the entry to another flow meanwhile, this packet goes where that one's do.
    let (address, port, service, last_used) = unsafe {
        let last_used = (&raw const (*hop).last_used).read_volatile();
        ((*hop).address, (*hop).port, (*hop).service, last_used)
    };
    let ticks = (now() >> TICK) as u32;
    let address = F::words(address);
    if key.protocol != TCP {
        let member = F::member_key(service, (address, port));
        let age = ticks.wrapping_sub(last_used);
        let is_over = u64::from(age) << TICK > lifetime(key.protocol, ANSWERED);
        if is_over || F::members().get_ptr(&member).is_none() {
            return None;
        }
    }
    if last_used != ticks {
        // SAFETY: as above; another CPU writes the same or a value close to it.
        unsafe { (&raw mut (*hop).last_used).write_volatile(ticks) };
    }
    Some(address)
}

/// The kernel's answer about the way to an endpoint, if that leads by the uplink by which a packet has come. Without an
/// address of the next hop's if the neighbour is not known.
#[inline(always)]
fn way<F: Route>(skb: *mut __sk_buff, protocol: u8, endpoint: F::Address) -> Option<FibLookup> {
    let snat = SNAT.get_ptr(0)?;
    let (own, uplink) = F::own_fields(snat);
    // SAFETY: fields of an array's element. Only the agent writes them.
    let (own, uplink) = unsafe { (F::words(own.read_volatile()), uplink.read_volatile()) };
    // Zero while the kernel gives connections their source: it may have rules for what it forwards.
    if uplink != device(skb) || vlan(skb) != 0 {
        return None;
    }
    // SAFETY: all zeros are a valid question.
    let mut question: FibLookup = unsafe { core::mem::zeroed() };
    question.family = F::NUMBER;
    question.l4_protocol = protocol;
    question.ifindex = uplink;
    F::question(&mut question, own, endpoint);
    // SAFETY: a context of this hook, and a whole question.
    let answer =
        unsafe { bpf_fib_lookup(skb.cast(), &raw mut question, size_of::<FibLookup>() as i32, 0) };
    let is_way = matches!(answer as u32, BPF_FIB_LKUP_RET_SUCCESS | BPF_FIB_LKUP_RET_NO_NEIGH);
    (is_way && question.ifindex == uplink).then_some(question)
}

/// Sends a packet on towards an endpoint, if the route leads by the uplink. `None`: it may not, and is unchanged; or it
/// cannot be written.
#[inline(always)]
pub(crate) fn send_to<F: Route + Write>(
    skb: *mut __sk_buff,
    protocol: u8,
    endpoint: F::Address,
) -> Option<Verdict> {
    if is_hopped::<F>(skb) {
        return None;
    }
    let way = way::<F>(skb, protocol, endpoint)?;
    send_by::<F>(skb, &way)
}

/// Sends a packet on by a way. `None`: it has made its last hop, or cannot be written.
#[inline(always)]
fn send_by<F: Write>(skb: *mut __sk_buff, way: &FibLookup) -> Option<Verdict> {
    if !F::hop(skb) {
        return None;
    }
    // SAFETY: fields of unions of plain words, and all zeros are a valid value.
    let mut next = unsafe {
        let mut next: NextHop = core::mem::zeroed();
        next.nh_family = way.family.into();
        next.__bindgen_anon_1.ipv6_nh = way.__bindgen_anon_4.ipv6_dst;
        next
    };
    // SAFETY: a context of this hook, and whole parameters; without flags the helper always succeeds.
    unsafe { bpf_redirect_neigh(device(skb), &raw mut next, size_of::<NextHop>() as i32, 0) };
    count(Hook::Ingress, Outcome::SentOn);
    Some(Verdict::Redirect)
}
