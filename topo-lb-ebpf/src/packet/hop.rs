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
use crate::decide::affinity::Client;
use crate::decide::resolve::{Asks, Resolution, Resolved, count_choice};
use crate::packet::connection;
use crate::packet::four_tuple::FourTuple;
use crate::packet::fragment;
use crate::packet::note;
use crate::packet::opening::decide_for;
use crate::packet::outcomes::{Hook, count};
use crate::packet::outside::{is_denied, is_outside};
use crate::packet::rewrite::Write;
use crate::packet::snat::{Route, vlan};
use crate::packet::tc::{Translate, client_key};
use crate::packet::verdict::Verdict;

/// Offset of the sender's address in a frame.
const SENDER: u32 = 6;
/// The node of an endpoint, where any will do: the flow is known.
pub(crate) const ANY: u16 = 0;

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
/// a packet that is not sent on: [`Verdict::ChooseEndpoint`] or [`Verdict::Stray`].
#[inline(always)]
pub(crate) fn send_known<F: Translate>(skb: *mut __sk_buff) -> Verdict {
    let header = F::header(skb, ETHERNET, false);
    let transport = transport(skb, &header);
    let opens = connection::opens(header.protocol, &transport);
    let without = if opens { Verdict::ChooseEndpoint } else { Verdict::Stray };
    if is_hopped::<F>(skb) {
        return without;
    }
    let says = FourTuple::<F>::of_packet(&header, transport.ports);
    let key = client_key(skb, &says, header.protocol);
    // Each SYN begins a flow.
    if opens && header.protocol == TCP {
        return Verdict::ChooseHop;
    }
    let Some(address) = known::<F>(&key) else { return Verdict::ChooseHop };
    if header.kind == PacketKind::First {
        remember_fragments::<F>(skb, address);
    }
    send_to::<F>(skb, header.protocol, address, ANY).unwrap_or(without)
}

/// Chooses the node for a packet, and sends it on there. Otherwise as [`send_known`].
#[inline(always)]
pub(crate) fn choose<F: Translate>(skb: *mut __sk_buff) -> Verdict {
    let header = F::header(skb, ETHERNET, false);
    let transport = transport(skb, &header);
    let opens = connection::opens(header.protocol, &transport);
    let without = if opens { Verdict::ChooseEndpoint } else { Verdict::Stray };
    let says = FourTuple::<F>::of_packet(&header, transport.ports);
    let frontend = F::frontend(says.destination, says.destination_port, header.protocol);
    if opens && is_denied::<F>(&frontend, says.source) || !F::is_unicast(says.source) {
        return without;
    }
    let Some((resolved, node)) = of_table::<F>(&frontend, (says.source, says.source_port)) else {
        return without;
    };
    let (address, port) = F::endpoint_parts(&resolved.endpoint);
    if header.kind == PacketKind::First {
        remember_fragments::<F>(skb, address);
    }
    let Some(verdict) = send_to::<F>(skb, header.protocol, address, node) else { return without };
    let key = client_key(skb, &says, header.protocol);
    let last_used = (now() >> TICK) as u32;
    let address = F::bytes(address);
    let hop = Hop { address, port, reserved: 0, service: resolved.service, last_used };
    // A full map forgets an entry. If memory is short, the table decides about the next packet, too.
    let _ = F::hops().insert(&key, &hop, BPF_ANY.into());
    if opens {
        count_choice::<F>(&resolved);
        note::begin(skb);
        note::note::<F>(skb, &resolved, Told::Routed);
    }
    verdict
}

/// Remembers the fragments of a datagram whose first one is sent on.
#[inline(always)]
fn remember_fragments<F: Translate>(skb: *mut __sk_buff, endpoint: F::Address) {
    let header = F::header(skb, ETHERNET, false);
    let ports = ports_of(skb, &header).unwrap_or_default();
    let to = FourTuple::<F> { destination: endpoint, ..FourTuple::of_packet(&header, ports) };
    fragment::remember(skb, &header, &to, HOP, now(), Hook::Ingress);
}

/// What the table of a Service with direct return says for a client, if that is an endpoint of another node: and that
/// node's tag.
#[inline(always)]
fn of_table<F: Client>(
    frontend: &FrontendOf<F>,
    client: (F::Address, u16),
) -> Option<(Resolved<F>, u16)> {
    if !is_of_service::<F>(frontend) {
        return None;
    }
    let resolved = decide_for::<F>(frontend, Asks::Outside, client);
    let is_far = resolved.verdict == Resolution::Redirect
        && F::locality(&resolved.endpoint) != Locality::Node;
    let member = F::member_key(resolved.service, F::endpoint_parts(&resolved.endpoint));
    let member = F::members().get_ptr(&member)?;
    // SAFETY: one aligned word.
    let node = Member::node(unsafe { (&raw const (*member).state).read_volatile() });
    (is_far && node != ANY).then_some((resolved, node))
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

/// Sends a packet on towards an endpoint, if the route leads by the uplink. `node`: the tag of a node that has to be
/// proved at the next hop, or [`ANY`]. `None`: it may not, and is unchanged; or it cannot be written.
#[inline(always)]
pub(crate) fn send_to<F: Route + Write>(
    skb: *mut __sk_buff,
    protocol: u8,
    endpoint: F::Address,
    node: u16,
) -> Option<Verdict> {
    let snat = SNAT.get_ptr(0)?;
    let (own, uplink) = F::own_fields(snat);
    // SAFETY: fields of an array's element. Only the agent writes them.
    let (own, uplink) = unsafe { (F::words(own.read_volatile()), uplink.read_volatile()) };
    if is_hopped::<F>(skb) {
        return None;
    }
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
    let (answer, is_known) = (answer as u32, answer as u32 == BPF_FIB_LKUP_RET_SUCCESS);
    if question.ifindex != uplink || !is_known && answer != BPF_FIB_LKUP_RET_NO_NEIGH {
        return None;
    }
    if node != ANY && !(is_known && peer::<F>(question.dmac) == u32::from(node) | PROVED) {
        return None;
    }
    let mut next: NextHop = unsafe { core::mem::zeroed() };
    next.nh_family = question.family.into();
    // SAFETY: fields of unions of plain words.
    unsafe { next.__bindgen_anon_1.ipv6_nh = question.__bindgen_anon_4.ipv6_dst };
    if !F::hop(skb) {
        return None;
    }
    // SAFETY: a context of this hook, and whole parameters; without flags the helper always succeeds.
    unsafe { bpf_redirect_neigh(uplink, &raw mut next, size_of::<NextHop>() as i32, 0) };
    count(Hook::Ingress, Outcome::SentOn);
    Some(Verdict::Redirect)
}
