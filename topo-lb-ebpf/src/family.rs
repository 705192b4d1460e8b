//! IPv4 and IPv6 are one shape: [`Family`] names the layouts and maps of each, and everything
//! else is written once.
//!
//! Addresses are handled as words in network order, as the kernel's contexts show them.

use core::ptr::NonNull;

use aya_ebpf::bindings::bpf_sock;
use aya_ebpf::btf_maps::SkStorage;
use topo_lb_common::address::{Frontend4, Frontend6};
use topo_lb_common::affinity::{Affinity4, Affinity6, AffinityKey};
use topo_lb_common::backend::{Backend4, Backend6, Locality};
use topo_lb_common::connected::{Connected4, Connected6};
use topo_lb_common::flow::{Flow4, Flow6, FlowKey4, FlowKey6, ReplyKey4, ReplyKey6};
use topo_lb_common::members::{MemberKey4, MemberKey6};
use topo_lb_common::range::Range;
use topo_lb_common::selection::Selection;
use topo_lb_common::service::{Service4, Service6};

use crate::maps::{self, Members, Recent, Services, Slots};

/// The fields of a service value, in place.
pub(crate) struct Fields<F: Family> {
    pub(crate) generation: *const u32,
    pub(crate) service: *const u32,
    pub(crate) frontend: *const F::Frontend,
    pub(crate) selection: *const Selection,
    pub(crate) affinity_seconds: *const u32,
    /// The first of `INLINE`.
    pub(crate) endpoints: *const F::Endpoint,
    pub(crate) generation_tail: *const u32,
}

/// A flow's value.
pub(crate) struct FlowParts<F: Family> {
    pub(crate) endpoint: F::Endpoint,
    pub(crate) service: u32,
    pub(crate) generation: u32,
}

/// An address family: its layouts, its maps.
pub(crate) trait Family: Sized + 'static {
    /// Words in network order.
    type Address: Copy + PartialEq;
    type Frontend: Copy;
    type Endpoint: Copy + Default;
    type Service: 'static;
    type FlowKey;
    type Flow: Copy;
    type ReplyKey;
    type Connected: Copy;
    type MemberKey;
    type Affinity: Copy;

    fn services() -> &'static Services<Self::Frontend, Self::Service>;
    fn slots() -> &'static Slots<Self::Endpoint>;
    fn members() -> &'static Members<Self::MemberKey>;
    fn flows() -> &'static Recent<Self::FlowKey, Self::Flow>;
    fn replies() -> &'static Recent<Self::ReplyKey, Self::Frontend>;
    fn connected() -> &'static SkStorage<Self::Connected>;
    fn affinity() -> &'static Recent<AffinityKey, Self::Affinity>;

    /// Whether a frontend can be at `address`.
    fn in_range(range: Range, address: Self::Address) -> bool;
    /// The peer that a socket is connected to.
    ///
    /// # Safety
    ///
    /// `sk` is a context's socket.
    unsafe fn peer(sk: *const bpf_sock) -> Self::Address;

    /// `port` in host order.
    fn frontend(address: Self::Address, port: u16, protocol: u8) -> Self::Frontend;
    /// Address, and port in host order.
    fn frontend_parts(frontend: &Self::Frontend) -> (Self::Address, u16);
    /// Address, and port in host order.
    fn endpoint_parts(endpoint: &Self::Endpoint) -> (Self::Address, u16);
    fn locality(endpoint: &Self::Endpoint) -> Locality;

    /// # Safety
    ///
    /// `service` is a value of [`services`](Self::services).
    unsafe fn fields(service: *const Self::Service) -> Fields<Self>;

    fn flow_key(cookie: u64, frontend: Self::Frontend) -> Self::FlowKey;
    fn flow(parts: FlowParts<Self>) -> Self::Flow;
    fn flow_parts(flow: Self::Flow) -> FlowParts<Self>;
    /// The generation, in place.
    fn flow_generation(flow: NonNull<Self::Flow>) -> *mut u32;
    /// `port` in host order.
    fn reply_key(cookie: u64, address: Self::Address, port: u16) -> Self::ReplyKey;
    fn connection(frontend: Self::Frontend, endpoint: Self::Endpoint) -> Self::Connected;
    /// What was dialled, and where it went, in place.
    fn connection_parts(
        connected: NonNull<Self::Connected>,
    ) -> (NonNull<Self::Frontend>, NonNull<Self::Endpoint>);
    fn member_key(service: u32, endpoint: &Self::Endpoint) -> Self::MemberKey;
    /// `port` in host order.
    fn member_of(service: u32, address: Self::Address, port: u16) -> Self::MemberKey;
    fn affinity_entry(last_used: u64, endpoint: Self::Endpoint) -> Self::Affinity;
    /// When it was last used, and the endpoint.
    fn affinity_parts(entry: Self::Affinity) -> (u64, Self::Endpoint);
}

/// What the two families write alike.
macro_rules! family {
    (
        address: $address:ty,
        bytes: $bytes:ident, words: $words:ident, padding: [$($padding:ident)?],
        layouts: $frontend:ident $endpoint:ident $service:ident $flow_key:ident $flow:ident
            $reply_key:ident $connected:ident $member_key:ident $affinity:ident,
        maps: $services:ident $slots:ident $members:ident $flows:ident $replies:ident
            $connections:ident $affinities:ident
    ) => {
        type Address = $address;
        type Frontend = $frontend;
        type Endpoint = $endpoint;
        type Service = $service;
        type FlowKey = $flow_key;
        type Flow = $flow;
        type ReplyKey = $reply_key;
        type Connected = $connected;
        type MemberKey = $member_key;
        type Affinity = $affinity;

        #[inline(always)]
        fn services() -> &'static Services<$frontend, $service> {
            &maps::$services
        }

        #[inline(always)]
        fn slots() -> &'static Slots<$endpoint> {
            &maps::$slots
        }

        #[inline(always)]
        fn members() -> &'static Members<$member_key> {
            &maps::$members
        }

        #[inline(always)]
        fn flows() -> &'static Recent<$flow_key, $flow> {
            &maps::$flows
        }

        #[inline(always)]
        fn replies() -> &'static Recent<$reply_key, $frontend> {
            &maps::$replies
        }

        #[inline(always)]
        fn connected() -> &'static SkStorage<$connected> {
            &maps::$connections
        }

        #[inline(always)]
        fn affinity() -> &'static Recent<AffinityKey, $affinity> {
            &maps::$affinities
        }

        #[inline(always)]
        fn frontend(address: $address, port: u16, protocol: u8) -> $frontend {
            $frontend { address: $bytes(address), port, protocol, reserved: 0 }
        }

        #[inline(always)]
        fn frontend_parts(frontend: &$frontend) -> ($address, u16) {
            ($words(&frontend.address), frontend.port)
        }

        #[inline(always)]
        fn endpoint_parts(endpoint: &$endpoint) -> ($address, u16) {
            ($words(&endpoint.address), endpoint.port)
        }

        #[inline(always)]
        fn locality(endpoint: &$endpoint) -> Locality {
            Locality::from_byte(endpoint.locality)
        }

        #[inline(always)]
        unsafe fn fields(service: *const $service) -> Fields<Self> {
            // SAFETY: the caller's pointer is to a whole value; no field is read here.
            unsafe {
                Fields {
                    generation: &raw const (*service).generation,
                    service: &raw const (*service).service,
                    frontend: &raw const (*service).frontend,
                    selection: &raw const (*service).selection,
                    affinity_seconds: &raw const (*service).affinity_seconds,
                    endpoints: (&raw const (*service).endpoints).cast(),
                    generation_tail: &raw const (*service).generation_tail,
                }
            }
        }

        #[inline(always)]
        fn flow_key(cookie: u64, frontend: $frontend) -> $flow_key {
            $flow_key { cookie, frontend, $($padding: 0)? }
        }

        #[inline(always)]
        fn flow(parts: FlowParts<Self>) -> $flow {
            $flow { endpoint: parts.endpoint, service: parts.service, generation: parts.generation }
        }

        #[inline(always)]
        fn flow_parts(flow: $flow) -> FlowParts<Self> {
            FlowParts {
                endpoint: flow.endpoint,
                service: flow.service,
                generation: flow.generation,
            }
        }

        #[inline(always)]
        fn flow_generation(flow: NonNull<$flow>) -> *mut u32 {
            // SAFETY: a pointer to a whole value; nothing is read.
            unsafe { &raw mut (*flow.as_ptr()).generation }
        }

        #[inline(always)]
        fn reply_key(cookie: u64, address: $address, port: u16) -> $reply_key {
            $reply_key {
                cookie,
                address: $bytes(address),
                port,
                reserved: Default::default(),
            }
        }

        #[inline(always)]
        fn connection(frontend: $frontend, endpoint: $endpoint) -> $connected {
            $connected { frontend, endpoint }
        }

        #[inline(always)]
        fn connection_parts(
            connected: NonNull<$connected>,
        ) -> (NonNull<$frontend>, NonNull<$endpoint>) {
            let connected = connected.as_ptr();
            // SAFETY: a pointer to a whole value has fields that are not null.
            unsafe {
                (
                    NonNull::new_unchecked(&raw mut (*connected).frontend),
                    NonNull::new_unchecked(&raw mut (*connected).endpoint),
                )
            }
        }

        #[inline(always)]
        fn member_key(service: u32, endpoint: &$endpoint) -> $member_key {
            $member_key { service, address: endpoint.address, port: endpoint.port, reserved: 0 }
        }

        #[inline(always)]
        fn member_of(service: u32, address: $address, port: u16) -> $member_key {
            $member_key { service, address: $bytes(address), port, reserved: 0 }
        }

        #[inline(always)]
        fn affinity_entry(last_used: u64, endpoint: $endpoint) -> $affinity {
            $affinity { last_used, endpoint, $($padding: 0)? }
        }

        #[inline(always)]
        fn affinity_parts(entry: $affinity) -> (u64, $endpoint) {
            (entry.last_used, entry.endpoint)
        }
    };
}

/// IPv4, and IPv4-mapped IPv6.
pub(crate) enum V4 {}

impl Family for V4 {
    family! {
        address: u32,
        bytes: bytes4, words: words4, padding: [],
        layouts: Frontend4 Backend4 Service4 FlowKey4 Flow4 ReplyKey4 Connected4 MemberKey4
            Affinity4,
        maps: SERVICES4 SLOTS4 MEMBERS4 FLOWS4 REPLIES4 CONNECTED4 AFFINITY4
    }

    #[inline(always)]
    fn in_range(range: Range, address: u32) -> bool {
        range.holds4(bytes4(address))
    }

    #[inline(always)]
    unsafe fn peer(sk: *const bpf_sock) -> u32 {
        // SAFETY: the caller's pointer is a context's socket.
        unsafe { (&raw const (*sk).dst_ip4).read_volatile() }
    }
}

/// IPv6.
pub(crate) enum V6 {}

impl Family for V6 {
    family! {
        address: [u32; 4],
        bytes: bytes6, words: words6, padding: [reserved],
        layouts: Frontend6 Backend6 Service6 FlowKey6 Flow6 ReplyKey6 Connected6 MemberKey6
            Affinity6,
        maps: SERVICES6 SLOTS6 MEMBERS6 FLOWS6 REPLIES6 CONNECTED6 AFFINITY6
    }

    #[inline(always)]
    fn in_range(range: Range, address: [u32; 4]) -> bool {
        let [a, b, c, d, e, f, g, h, ..] = bytes6(address);
        range.holds6([a, b, c, d, e, f, g, h])
    }

    #[inline(always)]
    unsafe fn peer(sk: *const bpf_sock) -> [u32; 4] {
        // SAFETY: the caller's pointer is a context's socket; word by word, as its type demands.
        unsafe {
            let word = |index: usize| (&raw const (*sk).dst_ip6[index]).read_volatile();
            [word(0), word(1), word(2), word(3)]
        }
    }
}

#[inline(always)]
pub(crate) const fn bytes4(word: u32) -> [u8; 4] {
    word.to_ne_bytes()
}

#[inline(always)]
pub(crate) const fn words4(bytes: &[u8; 4]) -> u32 {
    u32::from_ne_bytes(*bytes)
}

#[inline(always)]
pub(crate) const fn bytes6(words: [u32; 4]) -> [u8; 16] {
    // SAFETY: both are sixteen plain bytes.
    unsafe { core::mem::transmute(words) }
}

#[inline(always)]
pub(crate) const fn words6(bytes: &[u8; 16]) -> [u32; 4] {
    // SAFETY: both are sixteen plain bytes.
    unsafe { core::mem::transmute(*bytes) }
}
