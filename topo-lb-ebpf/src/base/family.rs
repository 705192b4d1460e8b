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
use topo_lb_common::flow::{Flow, Flows};
use topo_lb_common::hop::{Hop, PROBE_CLIENT4, PROBE_CLIENT6};
use topo_lb_common::members::MemberKey;
use topo_lb_common::openings::Openings;
use topo_lb_common::range::Range;
use topo_lb_common::record::{Record4, Record6};
use topo_lb_common::reply_filter::folded;
use topo_lb_common::sources::Source;

use crate::base::maps::{
    self, Closed, Connections, Fragments, HalfOpen, LastOpenings, Members, Opened, Own, Recent,
    Records, Services, Settled, Slots, Sources,
};

/// A frontend of a family.
pub(crate) type FrontendOf<F> = Frontend<<F as Family>::Bytes>;
/// What a connected socket of a family dialled.
pub(crate) type ConnectedOf<F> = Connected<FrontendOf<F>, <F as Family>::Endpoint>;
/// The flows of an unconnected socket of a family.
pub(crate) type FlowsOf<F> = Flows<Flow<FrontendOf<F>, <F as Family>::Endpoint>>;
/// An entry of a family's table of connections.
pub(crate) type ConnectionOf<F> = Connection<<F as Family>::Bytes, TupleOf<F>>;
/// The key of such an entry.
pub(crate) type TupleOf<F> = Tuple<<F as Family>::Bytes>;
/// The last openings of a bucket of a family.
pub(crate) type OpeningsOf<F> = Openings<TupleOf<F>>;
/// Where packets of a flow of a family are sent on to.
pub(crate) type HopOf<F> = Hop<<F as Family>::Bytes>;
/// The translation of a fragmented datagram of a family.
pub(crate) type TranslationOf<F> =
    Translation<<F as Family>::Bytes, Fragment<<F as Family>::Bytes>>;
/// Who may dial a frontend of a family.
pub(crate) type SourceOf<F> = Source<<F as Family>::Bytes>;

/// The fields of a record, in place.
pub(crate) struct RecordFields<F: Family> {
    pub(crate) address: *const F::Bytes,
    pub(crate) port: *const u16,
    pub(crate) tier: *const u8,
    pub(crate) service: *const u32,
    pub(crate) slot_base: *const u32,
    pub(crate) affinity_seconds: *const u32,
    /// The first of `INLINE`.
    pub(crate) addresses: *const F::Bytes,
    /// The first of `INLINE`.
    pub(crate) ports: *const u16,
    pub(crate) count: *const u16,
    pub(crate) wider: *const u16,
    pub(crate) spill: *const u16,
    pub(crate) localities: *const u16,
}

impl<F: Family> RecordFields<F> {
    #[inline(always)]
    pub(crate) fn of(record: NonNull<F::Record>) -> Self {
        // SAFETY: a pointer to a complete value.
        unsafe { F::fields(record.as_ptr()) }
    }
}

/// An address family: its layouts and its maps.
pub(crate) trait Family: Sized + 'static {
    /// Words in network order.
    type Address: Copy + PartialEq;
    /// An address as bytes, in network order.
    type Bytes: Copy + 'static;
    type Endpoint: Copy + Default + 'static;
    type Record: 'static;
    type Affinity: Copy;

    /// Endpoints in a record.
    const INLINE: usize;
    /// The loopback address at which every node port has a frontend.
    const LOOPBACK: Self::Address;
    /// The address of all zeros.
    const NOWHERE: Self::Address;
    /// One end of each probe between agents.
    const PROBE_CLIENT: Self::Address;
    const IS_V6: bool;
    /// Whether these frontends are translated; otherwise they only say which ports are node ports.
    /// kube-proxy serves node ports at 127.0.0.0/8, and not at `::1`.
    const SERVES_LOOPBACK: bool;

    fn services() -> &'static Services<FrontendOf<Self>>;
    fn records() -> &'static Records<Self::Record>;
    fn slots() -> &'static Slots<Self::Endpoint>;
    fn members() -> &'static Members<MemberKey<Self::Bytes>>;
    fn flows() -> &'static SkStorage<FlowsOf<Self>>;
    fn connected() -> &'static SkStorage<ConnectedOf<Self>>;
    fn affinity() -> &'static Recent<AffinityKey, Self::Affinity>;
    /// As `affinity`, of clients without a socket on this node.
    fn clients() -> &'static Recent<AffinityKey, Self::Affinity>;
    fn connections() -> &'static Connections<TupleOf<Self>, ConnectionOf<Self>>;
    fn half_open() -> &'static HalfOpen<TupleOf<Self>, ConnectionOf<Self>>;
    fn closed() -> &'static Closed<TupleOf<Self>>;
    fn settled() -> &'static Settled<TupleOf<Self>>;
    fn opened() -> &'static Opened<TupleOf<Self>>;
    fn own() -> &'static Own<TupleOf<Self>>;
    fn hops() -> &'static Recent<TupleOf<Self>, HopOf<Self>>;
    fn openings() -> &'static LastOpenings<OpeningsOf<Self>>;
    fn fragments() -> &'static Fragments<TranslationOf<Self>>;
    fn sources() -> &'static Sources<SourceOf<Self>>;
    /// This CPU's place to build an entry of `connections`.
    fn draft() -> Option<NonNull<ConnectionOf<Self>>>;

    fn bytes(address: Self::Address) -> Self::Bytes;
    /// As an IPv6 address; IPv4 is IPv4-mapped.
    fn mapped(address: Self::Address) -> [u8; 16];
    fn words(bytes: Self::Bytes) -> Self::Address;
    /// An address as two words, whose bytes in memory are in network order; IPv4: the first four.
    fn halves(address: Self::Address) -> [u64; 2];
    /// An address folded to one word.
    fn folded(address: Self::Address) -> u32;
    fn is_loopback(address: Self::Address) -> bool;
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
    /// `port` in host order.
    fn endpoint(address: Self::Bytes, port: u16, locality: u8) -> Self::Endpoint;
    /// # Safety
    /// `record` is a look-up's pointer.
    unsafe fn fields(record: *const Self::Record) -> RecordFields<Self>;
    fn affinity_entry(last_used: u64, endpoint: Self::Endpoint) -> Self::Affinity;
    /// Time of the entry's last use, and its endpoint.
    fn affinity_parts(entry: Self::Affinity) -> (u64, Self::Endpoint);

    /// `port` in host order.
    #[inline(always)]
    fn frontend(address: Self::Address, port: u16, protocol: u8) -> FrontendOf<Self> {
        Frontend { address: Self::bytes(address), port, protocol, reserved: 0 }
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
        layouts: $endpoint:ident $record:ident $affinity:ident,
        inline: $inline:ident,
        maps: $services:ident $records:ident $slots:ident $members:ident $flows:ident
            $connected:ident $affinities:ident $clients:ident $connections:ident $half_open:ident
            $closed:ident $settled:ident $opened:ident $own:ident $openings:ident $fragments:ident
            $sources:ident $hops:ident $draft:ident
    ) => {
        type Endpoint = $endpoint;
        type Record = $record;
        type Affinity = $affinity;

        const INLINE: usize = topo_lb_common::record::$inline;

        #[inline(always)]
        fn services() -> &'static Services<FrontendOf<Self>> {
            &maps::$services
        }

        #[inline(always)]
        fn records() -> &'static Records<$record> {
            &maps::$records
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
        fn flows() -> &'static SkStorage<FlowsOf<Self>> {
            &maps::$flows
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
        fn clients() -> &'static Recent<AffinityKey, $affinity> {
            &maps::$clients
        }

        #[inline(always)]
        fn closed() -> &'static Closed<TupleOf<Self>> {
            &maps::$closed
        }

        #[inline(always)]
        fn settled() -> &'static Settled<TupleOf<Self>> {
            &maps::$settled
        }

        #[inline(always)]
        fn opened() -> &'static Opened<TupleOf<Self>> {
            &maps::$opened
        }

        #[inline(always)]
        fn own() -> &'static Own<TupleOf<Self>> {
            &maps::$own
        }

        #[inline(always)]
        fn hops() -> &'static Recent<TupleOf<Self>, HopOf<Self>> {
            &maps::$hops
        }

        #[inline(always)]
        fn openings() -> &'static LastOpenings<OpeningsOf<Self>> {
            &maps::$openings
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
        fn sources() -> &'static Sources<SourceOf<Self>> {
            &maps::$sources
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
        fn endpoint(address: Self::Bytes, port: u16, locality: u8) -> $endpoint {
            $endpoint { address, port, locality, reserved: 0 }
        }

        #[inline(always)]
        unsafe fn fields(record: *const $record) -> RecordFields<Self> {
            // SAFETY: the caller's pointer is to a complete value; no field is read here.
            unsafe {
                RecordFields {
                    address: &raw const (*record).address,
                    port: &raw const (*record).port,
                    tier: &raw const (*record).tier,
                    service: &raw const (*record).service,
                    slot_base: &raw const (*record).slot_base,
                    affinity_seconds: &raw const (*record).affinity_seconds,
                    addresses: (&raw const (*record).addresses).cast(),
                    ports: (&raw const (*record).ports).cast(),
                    count: &raw const (*record).count,
                    wider: &raw const (*record).wider,
                    spill: &raw const (*record).spill,
                    localities: &raw const (*record).localities,
                }
            }
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
        layouts: Backend4 Record4 Affinity4,
        inline: INLINE4,
        maps: SERVICES4 RECORDS4 SLOTS4 MEMBERS4 FLOWS4 CONNECTED4 AFFINITY4 CLIENTS4
            CONNECTIONS4 HALF_OPEN4 CLOSED4 SETTLED4 OPENED4 OWN4 OPENINGS4 FRAGMENTS4 SOURCES4
            HOPS4 DRAFT4
    }

    type Address = u32;
    type Bytes = [u8; 4];

    const LOOPBACK: u32 = u32::from_ne_bytes([127, 0, 0, 1]);
    const NOWHERE: u32 = 0;
    const PROBE_CLIENT: u32 = u32::from_ne_bytes(PROBE_CLIENT4);
    const IS_V6: bool = false;
    const SERVES_LOOPBACK: bool = true;

    #[inline(always)]
    fn bytes(address: u32) -> [u8; 4] {
        address.to_ne_bytes()
    }

    #[inline(always)]
    fn mapped(address: u32) -> [u8; 16] {
        let [a, b, c, d] = address.to_ne_bytes();
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
    }

    #[inline(always)]
    fn words(bytes: [u8; 4]) -> u32 {
        u32::from_ne_bytes(bytes)
    }

    #[inline(always)]
    fn halves(address: u32) -> [u64; 2] {
        [address.into(), 0]
    }

    #[inline(always)]
    fn folded(address: u32) -> u32 {
        address
    }

    #[inline(always)]
    fn is_loopback(address: u32) -> bool {
        address.to_ne_bytes()[0] == 127
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
        layouts: Backend6 Record6 Affinity6,
        inline: INLINE6,
        maps: SERVICES6 RECORDS6 SLOTS6 MEMBERS6 FLOWS6 CONNECTED6 AFFINITY6 CLIENTS6
            CONNECTIONS6 HALF_OPEN6 CLOSED6 SETTLED6 OPENED6 OWN6 OPENINGS6 FRAGMENTS6 SOURCES6
            HOPS6 DRAFT6
    }

    type Address = [u32; 4];
    type Bytes = [u8; 16];

    const LOOPBACK: [u32; 4] = [0, 0, 0, 1_u32.to_be()];
    const NOWHERE: [u32; 4] = [0; 4];
    const PROBE_CLIENT: [u32; 4] = {
        let (words, _) = PROBE_CLIENT6.as_chunks();
        [
            u32::from_ne_bytes(words[0]),
            u32::from_ne_bytes(words[1]),
            u32::from_ne_bytes(words[2]),
            u32::from_ne_bytes(words[3]),
        ]
    };
    const IS_V6: bool = true;
    const SERVES_LOOPBACK: bool = false;

    #[inline(always)]
    fn bytes(address: [u32; 4]) -> [u8; 16] {
        // SAFETY: both are sixteen plain bytes.
        unsafe { core::mem::transmute(address) }
    }

    #[inline(always)]
    fn mapped(address: Self::Address) -> [u8; 16] {
        Self::bytes(address)
    }

    #[inline(always)]
    fn words(bytes: [u8; 16]) -> [u32; 4] {
        // SAFETY: both are sixteen plain bytes.
        unsafe { core::mem::transmute(bytes) }
    }

    #[inline(always)]
    fn halves([a, b, c, d]: [u32; 4]) -> [u64; 2] {
        let half = |first: u32, second: u32| u64::from(first) | u64::from(second) << 32;
        [half(a, b), half(c, d)]
    }

    #[inline(always)]
    fn folded(address: [u32; 4]) -> u32 {
        folded(address)
    }

    #[inline(always)]
    fn is_loopback(address: [u32; 4]) -> bool {
        address == Self::LOOPBACK
    }

    #[inline(always)]
    fn in_range(range: Range, address: [u32; 4]) -> bool {
        let [first, second, ..] = address;
        range.holds6([first, second])
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
