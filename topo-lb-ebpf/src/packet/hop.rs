//! Direct return: a packet of a client outside, whose endpoint is on another node, is sent on to that node unchanged but
//! for its Ethernet addresses and its hop limit, if that node is proved ([`topo_lb_common::hop`]). That node translates
//! it to an endpoint of its own, and answers the client.
//!
//! Which node that is depends on the client and on the table of the Service: every node of the same vantage sends a
//! flow on to the same one. An entry of `hops4/6` keeps it there, whatever the table says later.
#![expect(
    clippy::needless_borrows_for_generic_args,
    reason = "what is passed by value is copied, on a stack of 512 bytes"
)]

use aya_ebpf::bindings::{__sk_buff, BPF_ANY};
use topo_lb_common::address::{Frontend, PEERS, TCP, UDP};
use topo_lb_common::backend::Locality;
use topo_lb_common::connection::{ANSWERED, HOP, TICK, lifetime};
use topo_lb_common::hop::{Hop, PROVED};
use topo_lb_common::members::Member;
use topo_lb_common::trace::Outcome as Told;

use crate::base::access::ETHERNET;
use crate::base::clock::now;
use crate::base::family::{Family, FrontendOf, TupleOf};
use crate::base::header::PacketKind;
use crate::base::transport::{ports_of, transport};
use crate::decide::records::is_there;
use crate::decide::resolve::{Asks, Resolution, count as count_connection, has_own};
use crate::packet::connection;
use crate::packet::four_tuple::FourTuple;
use crate::packet::fragment;
use crate::packet::note;
use crate::packet::onward::{is_hopped, peer, send_by, sender, way};
use crate::packet::opening::decide_for;
use crate::packet::outcomes::Hook;
use crate::packet::outside::{Clients, enter, is_denied};
use crate::packet::own;
use crate::packet::state;
use crate::packet::tc::{Translate, client_key};
use crate::packet::verdict::Verdict;

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
    let sender = sender(skb);
    if !is_chosen && is_hopped::<F>(skb, sender) {
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
    let ticks = ticks();
    let Some(flow) = find::<F>(&key, ticks) else {
        return if is_chosen { without } else { Verdict::ChooseHop };
    };
    flow.note(ticks);
    let way = way::<F>(skb, header.protocol, flow.endpoint, sender);
    if is_chosen {
        let is_proved = way.as_ref().is_some_and(|way| flow.is_proved(way.dmac));
        if !is_proved {
            let _ = F::hops().remove(&key);
            return without;
        }
        if opens {
            flow.count();
        }
    }
    let Some(way) = way else { return without };
    if header.kind == PacketKind::First {
        remember_fragments::<F>(skb, flow.endpoint);
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
    let key = client_key(skb, &says, header.protocol);
    let is_denied = opens && is_denied::<F>(&frontend, says.source);
    if is_denied
        || !F::is_unicast(says.source)
        || !is_of_service::<F>(&frontend)
        || header.protocol == UDP && own::is_own::<F>(&key, now())
    {
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
        last_used: ticks(),
    };
    // A full map forgets an entry.
    if F::hops().insert(&key, &hop, BPF_ANY.into()).is_err() {
        return without;
    }
    if opens {
        note::note::<F>(skb, &resolved, Told::Routed);
    }
    Verdict::SendHop
}

/// Whether the node of an endpoint is proved, and is the next hop: `neighbour`, zeros if that has to be asked for its
/// address first.
#[inline(always)]
pub(crate) fn is_proved<F: Family>(
    service: u32,
    endpoint: (F::Address, u16),
    neighbour: [u8; 6],
) -> bool {
    let key = F::member_key(service, endpoint);
    // Twice: as `records::is_there`.
    let Some(member) = F::members().get_ptr(&key).or_else(|| F::members().get_ptr(&key)) else {
        return false;
    };
    // SAFETY: one aligned word.
    let node = Member::node(unsafe { (&raw const (*member).state).read_volatile() });
    node != 0 && peer::<F>(neighbour) == u32::from(node) | PROVED
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
    is_there::<F>(&peers)
}

/// A flow that is sent on.
pub(crate) struct Flow<F: Family> {
    /// The address of its endpoint.
    pub(crate) endpoint: F::Address,
    /// When its last packet came, in ticks.
    last_used: u32,
    entry: *mut Hop<F::Bytes>,
}

/// The flow of a packet that is sent on. The endpoint of datagrams has to serve, and is chosen anew after a pause.
/// `ticks`: the time.
#[inline(always)]
pub(crate) fn find<F: Family>(key: &TupleOf<F>, ticks: u32) -> Option<Flow<F>> {
    let entry = F::hops().get_ptr_mut(key)?;
    // SAFETY: a look-up's value, of which the endpoint and the Service do not change: a new flow replaces all of it. If
    // the kernel gives the entry to another flow meanwhile, this packet goes where that one's do.
    let (address, port, service, last_used) = unsafe {
        let last_used = (&raw const (*entry).last_used).read_volatile();
        ((*entry).address, (*entry).port, (*entry).service, last_used)
    };
    let endpoint = F::words(address);
    if key.protocol != TCP {
        let member = F::member_key(service, (endpoint, port));
        let age = ticks.wrapping_sub(last_used);
        let is_over = u64::from(age) << TICK > lifetime(key.protocol, ANSWERED);
        if is_over || F::members().get_ptr(&member).is_none() {
            return None;
        }
    }
    Some(Flow { endpoint, last_used, entry })
}

impl<F: Family> Flow<F> {
    /// Whether a packet at `ticks` is the first one of its period, and tc's: see [`state::is_due`]. `port`: the client's.
    #[inline(always)]
    pub(crate) fn is_due(&self, ticks: u32, port: u16) -> bool {
        let phase = u32::from(port);
        let periods = self.last_used.wrapping_add(phase) ^ ticks.wrapping_add(phase);
        periods >> (state::REFRESH - TICK) != 0
    }

    /// As [`is_proved`], of the flow's endpoint.
    #[inline(always)]
    fn is_proved(&self, neighbour: [u8; 6]) -> bool {
        // SAFETY: as in `find`.
        let (service, port) = unsafe { ((*self.entry).service, (*self.entry).port) };
        is_proved::<F>(service, (self.endpoint, port), neighbour)
    }

    /// Counts a new flow.
    #[inline(always)]
    fn count(&self) {
        // SAFETY: as in `find`.
        let (service, locality) = unsafe { ((*self.entry).service, (*self.entry).locality) };
        count_connection(service, Some(Locality::from_byte(locality)));
    }

    /// Notes the time of a packet.
    #[inline(always)]
    pub(crate) fn note(&self, ticks: u32) {
        if self.last_used != ticks {
            // SAFETY: a look-up's value; another CPU writes the same or a value close to it.
            unsafe { (&raw mut (*self.entry).last_used).write_volatile(ticks) };
        }
    }
}

/// The present time in ticks.
#[inline(always)]
pub(crate) fn ticks() -> u32 {
    (now() >> TICK) as u32
}

/// The endpoint of a known flow of which this is a packet.
#[inline(always)]
pub(crate) fn known<F: Family>(key: &TupleOf<F>) -> Option<F::Address> {
    let ticks = ticks();
    let flow = find::<F>(key, ticks)?;
    flow.note(ticks);
    Some(flow.endpoint)
}
