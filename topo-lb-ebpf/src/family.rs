//! IPv4 and IPv6: [`Family`] defines their differences; all other code is shared.
//!
//! Programs use an address as words in network order, as the kernel's contexts; maps have bytes.

use core::ptr::NonNull;

use aya_ebpf::bindings::bpf_sock;
use aya_ebpf::btf_maps::SkStorage;
use topo_lb_common::address::Frontend;
use topo_lb_common::affinity::{Affinity4, Affinity6, AffinityKey};
use topo_lb_common::backend::{Backend4, Backend6, Locality};
use topo_lb_common::connected::Connected;
use topo_lb_common::connection::{Connection, Fragment, Translation, Tuple};
use topo_lb_common::flow::{Flow, FlowKey4, FlowKey6, ReplyKey4, ReplyKey6};
use topo_lb_common::members::MemberKey;
use topo_lb_common::range::Range;
use topo_lb_common::selection::Selection;
use topo_lb_common::service::{Service4, Service6};

use crate::maps::{self, Connections, Fragments, HalfOpen, Members, Recent, Services, Slots};

/// A frontend of a family.
pub(crate) type FrontendOf<F> = Frontend<<F as Family>::Bytes>;
/// What a connected socket of a family dialled.
pub(crate) type ConnectedOf<F> = Connected<FrontendOf<F>, <F as Family>::Endpoint>;
/// The value of a flow of a family.
pub(crate) type FlowOf<F> = Flow<<F as Family>::Endpoint>;
/// An entry of a family's table of connections.
pub(crate) type ConnectionOf<F> = Connection<<F as Family>::Bytes, TupleOf<F>>;
/// The key of such an entry.
pub(crate) type TupleOf<F> = Tuple<<F as Family>::Bytes>;
/// A fragmented datagram of a family.
pub(crate) type FragmentOf<F> = Fragment<<F as Family>::Bytes>;
/// The translation of such a datagram.
pub(crate) type TranslationOf<F> = Translation<<F as Family>::Bytes, FragmentOf<F>>;

/// The fields of a service value, in place.
pub(crate) struct Fields<F: Family> {
    pub(crate) generation: *const u32,
    pub(crate) service: *const u32,
    pub(crate) frontend: *const FrontendOf<F>,
    pub(crate) selection: *const Selection,
    pub(crate) affinity_seconds: *const u32,
    /// The first of `INLINE`.
    pub(crate) endpoints: *const F::Endpoint,
    pub(crate) generation_tail: *const u32,
}

/// An address family: its layouts and its maps.
pub(crate) trait Family: Sized + 'static {
    /// Words in network order.
    type Address: Copy + PartialEq;
    /// An address as bytes, in network order.
    type Bytes: Copy + 'static;
    type Endpoint: Copy + Default + 'static;
    type Service: 'static;
    type FlowKey;
    type ReplyKey;
    type Affinity: Copy;

    fn services() -> &'static Services<FrontendOf<Self>, Self::Service>;
    fn slots() -> &'static Slots<Self::Endpoint>;
    fn members() -> &'static Members<MemberKey<Self::Bytes>>;
    fn flows() -> &'static Recent<Self::FlowKey, FlowOf<Self>>;
    fn replies() -> &'static Recent<Self::ReplyKey, FrontendOf<Self>>;
    fn connected() -> &'static SkStorage<ConnectedOf<Self>>;
    fn affinity() -> &'static Recent<AffinityKey, Self::Affinity>;
    fn connections() -> &'static Connections<TupleOf<Self>, ConnectionOf<Self>>;
    fn half_open() -> &'static HalfOpen<TupleOf<Self>, ConnectionOf<Self>>;
    fn fragments() -> &'static Fragments<TranslationOf<Self>>;
    /// This CPU's place to build an entry of `connections`.
    fn draft() -> Option<NonNull<ConnectionOf<Self>>>;

    fn bytes(address: Self::Address) -> Self::Bytes;
    fn words(bytes: Self::Bytes) -> Self::Address;
    /// Whether a frontend can have `address`.
    fn in_range(range: Range, address: Self::Address) -> bool;
    /// The peer of a connected socket.
    ///
    /// # Safety
    /// `sk` is a context's socket.
    unsafe fn peer(sk: *const bpf_sock) -> Self::Address;

    /// Address, and port in host order.
    fn endpoint_parts(endpoint: &Self::Endpoint) -> (Self::Address, u16);
    fn locality(endpoint: &Self::Endpoint) -> Locality;
    /// # Safety
    /// `service` is a look-up's pointer.
    unsafe fn fields(service: *const Self::Service) -> Fields<Self>;
    fn flow_key(cookie: u64, frontend: FrontendOf<Self>) -> Self::FlowKey;
    /// `port` in host order.
    fn reply_key(cookie: u64, address: Self::Address, port: u16) -> Self::ReplyKey;
    fn affinity_entry(last_used: u64, endpoint: Self::Endpoint) -> Self::Affinity;
    /// Time of the entry's last use, and its endpoint.
    fn affinity_parts(entry: Self::Affinity) -> (u64, Self::Endpoint);

    /// `port` in host order.
    #[inline(always)]
    fn frontend(address: Self::Address, port: u16, protocol: u8) -> FrontendOf<Self> {
        Frontend { address: Self::bytes(address), port, protocol, reserved: 0 }
    }

    /// Address, and port in host order.
    #[inline(always)]
    fn frontend_parts(frontend: &FrontendOf<Self>) -> (Self::Address, u16) {
        (Self::words(frontend.address), frontend.port)
    }

    /// `port` in host order.
    #[inline(always)]
    fn member_key(service: u32, (address, port): (Self::Address, u16)) -> MemberKey<Self::Bytes> {
        MemberKey { service, address: Self::bytes(address), port, reserved: 0 }
    }
}

/// The common part of both families, by names of layouts and maps. IPv6 adds `padding`.
macro_rules! family {
    (
        padding: [$($padding:ident)?],
        layouts: $endpoint:ident $service:ident $flow_key:ident $reply_key:ident $affinity:ident,
        maps: $services:ident $slots:ident $members:ident $flows:ident $replies:ident
            $connected:ident $affinities:ident $connections:ident $half_open:ident $fragments:ident
            $draft:ident
    ) => {
        type Endpoint = $endpoint;
        type Service = $service;
        type FlowKey = $flow_key;
        type ReplyKey = $reply_key;
        type Affinity = $affinity;

        #[inline(always)]
        fn services() -> &'static Services<FrontendOf<Self>, $service> {
            &maps::$services
        }

        #[inline(always)]
        fn slots() -> &'static Slots<$endpoint> {
            &maps::$slots
        }

        #[inline(always)]
        fn members() -> &'static Members<MemberKey<Self::Bytes>> {
            &maps::$members
        }

        #[inline(always)]
        fn flows() -> &'static Recent<$flow_key, FlowOf<Self>> {
            &maps::$flows
        }

        #[inline(always)]
        fn replies() -> &'static Recent<$reply_key, FrontendOf<Self>> {
            &maps::$replies
        }

        #[inline(always)]
        fn connected() -> &'static SkStorage<ConnectedOf<Self>> {
            &maps::$connected
        }

        #[inline(always)]
        fn affinity() -> &'static Recent<AffinityKey, $affinity> {
            &maps::$affinities
        }

        #[inline(always)]
        fn connections() -> &'static Connections<TupleOf<Self>, ConnectionOf<Self>> {
            &maps::$connections
        }

        #[inline(always)]
        fn half_open() -> &'static HalfOpen<TupleOf<Self>, ConnectionOf<Self>> {
            &maps::$half_open
        }

        #[inline(always)]
        fn fragments() -> &'static Fragments<TranslationOf<Self>> {
            &maps::$fragments
        }

        #[inline(always)]
        fn draft() -> Option<NonNull<ConnectionOf<Self>>> {
            NonNull::new(maps::$draft.get_ptr_mut(0)?)
        }

        #[inline(always)]
        fn endpoint_parts(endpoint: &$endpoint) -> (Self::Address, u16) {
            (Self::words(endpoint.address), endpoint.port)
        }

        #[inline(always)]
        fn locality(endpoint: &$endpoint) -> Locality {
            Locality::from_byte(endpoint.locality)
        }

        #[inline(always)]
        unsafe fn fields(service: *const $service) -> Fields<Self> {
            // SAFETY: the caller's pointer is to a complete value; no field is read here.
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
        fn flow_key(cookie: u64, frontend: FrontendOf<Self>) -> $flow_key {
            $flow_key { cookie, frontend, $($padding: 0)? }
        }

        #[inline(always)]
        fn reply_key(cookie: u64, address: Self::Address, port: u16) -> $reply_key {
            let (address, reserved) = (Self::bytes(address), Default::default());
            $reply_key { cookie, address, port, reserved }
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
        padding: [],
        layouts: Backend4 Service4 FlowKey4 ReplyKey4 Affinity4,
        maps: SERVICES4 SLOTS4 MEMBERS4 FLOWS4 REPLIES4 CONNECTED4 AFFINITY4 CONNECTIONS4 HALF_OPEN4
            FRAGMENTS4 DRAFT4
    }

    type Address = u32;
    type Bytes = [u8; 4];

    #[inline(always)]
    fn bytes(address: u32) -> [u8; 4] {
        address.to_ne_bytes()
    }

    #[inline(always)]
    fn words(bytes: [u8; 4]) -> u32 {
        u32::from_ne_bytes(bytes)
    }

    #[inline(always)]
    fn in_range(range: Range, address: u32) -> bool {
        range.holds4(Self::bytes(address))
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
        padding: [reserved],
        layouts: Backend6 Service6 FlowKey6 ReplyKey6 Affinity6,
        maps: SERVICES6 SLOTS6 MEMBERS6 FLOWS6 REPLIES6 CONNECTED6 AFFINITY6 CONNECTIONS6 HALF_OPEN6
            FRAGMENTS6 DRAFT6
    }

    type Address = [u32; 4];
    type Bytes = [u8; 16];

    #[inline(always)]
    fn bytes(address: [u32; 4]) -> [u8; 16] {
        // SAFETY: both are sixteen plain bytes.
        unsafe { core::mem::transmute(address) }
    }

    #[inline(always)]
    fn words(bytes: [u8; 16]) -> [u32; 4] {
        // SAFETY: both are sixteen plain bytes.
        unsafe { core::mem::transmute(bytes) }
    }

    #[inline(always)]
    fn in_range(range: Range, address: [u32; 4]) -> bool {
        let [a, b, c, d, e, f, g, h, ..] = Self::bytes(address);
        range.holds6([a, b, c, d, e, f, g, h])
    }

    #[inline(always)]
    unsafe fn peer(sk: *const bpf_sock) -> [u32; 4] {
        // SAFETY: the caller's pointer is a context's socket; word by word, as the verifier
        // demands.
        unsafe {
            let word = |index: usize| (&raw const (*sk).dst_ip6[index]).read_volatile();
            [word(0), word(1), word(2), word(3)]
        }
    }
}
