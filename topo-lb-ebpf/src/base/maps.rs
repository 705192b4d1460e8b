//! The maps and the constants of the object.
//!
//! Maps have the names of `topo_lb_common::maps`, under which the agent pins them. The sizes here
//! are defaults: the agent sets its own before it loads the object.

use aya_ebpf::Global;
use aya_ebpf::bindings::BPF_F_NO_PREALLOC;
use aya_ebpf::btf_maps::{
    Array, ArrayOfMaps, HashMap, LpmTrie, LruHashMap, PerCpuArray, Queue, RingBuf, SkStorage,
};
use aya_ebpf::macros::btf_map;
use topo_lb_common::address::{Frontend4, Frontend6};
use topo_lb_common::affinity::{Affinity4, Affinity6, AffinityKey};
use topo_lb_common::backend::{Backend4, Backend6};
use topo_lb_common::connected::{Connected4, Connected6};
use topo_lb_common::connection::{
    Connection4, Connection6, FragmentPlace, Translation4, Translation6, Tuple4, Tuple6,
};
use topo_lb_common::counters::{Counters, Name};
use topo_lb_common::device::{Device, Quota};
use topo_lb_common::ended::RING_BYTES as ENDED_BYTES;
use topo_lb_common::exclusion::{Excluded, ExcludedKey, Levels};
use topo_lb_common::failing::RING_BYTES as FAILING_BYTES;
use topo_lb_common::far_endpoints::{FarEndpoint, MOST_FAR_ENDPOINTS, Moved};
use topo_lb_common::flow::{Flows4, Flows6};
use topo_lb_common::frontend_filter;
use topo_lb_common::hop::{self, Hop4, Hop6, Peer};
use topo_lb_common::maps::{
    DEFAULT_CONNECTIONS, DEFAULT_FLOWS, DEFAULT_HALF_OPEN, DEFAULT_MEMBERS, DEFAULT_SERVICES,
    DEFAULT_SLOTS, FRAGMENTS as DATAGRAMS, HOOKS, MOST_DEVICES, MOST_EXCLUDED, MOST_PEERS,
    MOST_SOURCES, MOST_UNPROGRAMMED, closed, entries, half_open_entries, opened,
};
use topo_lb_common::members::{Member, MemberKey4, MemberKey6};
use topo_lb_common::openings::{BUCKETS, Openings4, Openings6};
use topo_lb_common::packets::Packets;
use topo_lb_common::range::Range;
use topo_lb_common::record::{Record4, Record6, SPARE};
use topo_lb_common::reply_filter::{self, ReplyFilterEntry};
use topo_lb_common::snat::Snat;
use topo_lb_common::sources::{Source4, Source6};
use topo_lb_common::totals::{MOST_TOTALS, Totals, TotalsKey};
use topo_lb_common::trace::RING_BYTES;
use topo_lb_common::unprogrammed::Unprogrammed;
use topo_lb_common::usage::Usage;

const SERVICES: usize = DEFAULT_SERVICES as usize;
const SLOTS: usize = DEFAULT_SLOTS as usize;
const MEMBERS: usize = DEFAULT_MEMBERS as usize;
const FLOWS: usize = DEFAULT_FLOWS as usize;
/// An entry takes memory only while it exists: for maps that are seldom read.
const ON_DEMAND: usize = BPF_F_NO_PREALLOC as usize;
/// `BPF_F_MMAPABLE` (fc9702273e2e, "bpf: Add mmap() support for BPF_MAP_TYPE_ARRAY", Linux 5.5).
const MMAPABLE: usize = 1 << 10;
/// `BPF_F_RDONLY_PROG` (591fe9888d78, "bpf: add program side {rd, wr}only support for maps", Linux 5.2).
const RDONLY_PROG: usize = 1 << 7;

/// Map of frontends: the index of each one's record.
pub(crate) type Services<K> = HashMap<K, u32, SERVICES>;
/// Map of records, which the agent writes through `mmap`.
pub(crate) type Records<V> = Array<V, { SERVICES + SPARE as usize }, MMAPABLE>;
/// Map of endpoints outside the records.
pub(crate) type Slots<V> = Array<V, SLOTS, RDONLY_PROG>;
/// Map of the endpoints that a client may keep.
pub(crate) type Members<K> = HashMap<K, Member, MEMBERS, ON_DEMAND>;
/// Map of what clients recently used.
pub(crate) type Recent<K, V> = LruHashMap<K, V, FLOWS>;
/// Map of established connections: two entries each.
pub(crate) type Connections<K, V> =
    HashMap<K, V, { entries(DEFAULT_CONNECTIONS) as usize }, ON_DEMAND>;
/// Queue of closed connections.
pub(crate) type Closed<K> = Queue<K, { closed(DEFAULT_CONNECTIONS) as usize }>;
/// Queue of half-open connections that have their answer.
pub(crate) type Settled<K> = Queue<K, { DEFAULT_HALF_OPEN as usize }>;
/// Queue of openings, the oldest first.
pub(crate) type Opened<K> = Queue<K, { opened(DEFAULT_HALF_OPEN) as usize }>;
/// Map of the last openings.
pub(crate) type LastOpenings<V> = Array<V, { BUCKETS as usize }>;
/// Map of connections that are not established yet: two entries each.
pub(crate) type HalfOpen<K, V> =
    HashMap<K, V, { half_open_entries(DEFAULT_HALF_OPEN) as usize }, ON_DEMAND>;
/// Map of whom the node's own datagrams were sent to, with the time of the last one.
pub(crate) type Own<K> = LruHashMap<K, u64, { topo_lb_common::maps::OWN as usize }>;
/// Map of who may dial frontends with source ranges.
pub(crate) type Sources<K> = LpmTrie<K, u32, { MOST_SOURCES as usize }>;
/// Map of fragmented datagrams.
pub(crate) type Fragments<V> = LruHashMap<FragmentPlace, V, { DATAGRAMS as usize }>;

#[btf_map(name = "range")]
pub(crate) static RANGE: Array<Range, 1> = Array::new();

#[btf_map(name = "services4")]
pub(crate) static SERVICES4: Services<Frontend4> = HashMap::new();
#[btf_map(name = "services6")]
pub(crate) static SERVICES6: Services<Frontend6> = HashMap::new();

#[btf_map(name = "records4")]
pub(crate) static RECORDS4: Records<Record4> = Array::new();
#[btf_map(name = "records6")]
pub(crate) static RECORDS6: Records<Record6> = Array::new();

#[btf_map(name = "slots4")]
pub(crate) static SLOTS4: Slots<Backend4> = Array::new();
#[btf_map(name = "slots6")]
pub(crate) static SLOTS6: Slots<Backend6> = Array::new();

#[btf_map(name = "members4")]
pub(crate) static MEMBERS4: Members<MemberKey4> = HashMap::new();
#[btf_map(name = "members6")]
pub(crate) static MEMBERS6: Members<MemberKey6> = HashMap::new();

#[btf_map(name = "flows4")]
pub(crate) static FLOWS4: SkStorage<Flows4> = SkStorage::new();
#[btf_map(name = "flows6")]
pub(crate) static FLOWS6: SkStorage<Flows6> = SkStorage::new();

#[btf_map(name = "connected4")]
pub(crate) static CONNECTED4: SkStorage<Connected4> = SkStorage::new();
#[btf_map(name = "connected6")]
pub(crate) static CONNECTED6: SkStorage<Connected6> = SkStorage::new();

#[btf_map(name = "affinity4")]
pub(crate) static AFFINITY4: Recent<AffinityKey, Affinity4> = LruHashMap::new();
#[btf_map(name = "affinity6")]
pub(crate) static AFFINITY6: Recent<AffinityKey, Affinity6> = LruHashMap::new();

#[btf_map(name = "counters")]
pub(crate) static COUNTERS: Array<Counters, SERVICES, MMAPABLE> = Array::new();

#[btf_map(name = "totals")]
pub(crate) static TOTALS: HashMap<TotalsKey, Totals, { MOST_TOTALS as usize }, ON_DEMAND> =
    HashMap::new();

#[btf_map(name = "far_endpoints")]
pub(crate) static FAR_ENDPOINTS: HashMap<
    FarEndpoint,
    Moved,
    { MOST_FAR_ENDPOINTS as usize },
    ON_DEMAND,
> = HashMap::new();

/// It has `Failing` endpoints. `()`: as for `trace`.
#[btf_map(name = "failing")]
pub(crate) static FAILING: RingBuf<(), { FAILING_BYTES as usize }> = RingBuf::new();

/// It has `Ended` connections. `()`: as for `trace`.
#[btf_map(name = "ended")]
pub(crate) static ENDED: RingBuf<(), { ENDED_BYTES as usize }> = RingBuf::new();

#[btf_map(name = "ended_lost")]
pub(crate) static ENDED_LOST: PerCpuArray<u64, 1> = PerCpuArray::new();

#[btf_map(name = "torn")]
pub(crate) static TORN: PerCpuArray<u64, 1> = PerCpuArray::new();

/// Its ring buffers have decisions. `()`: libbpf takes no type of values there.
#[btf_map(name = "trace")]
pub(crate) static TRACE: ArrayOfMaps<RingBuf<(), { RING_BYTES as usize }>, 1> = ArrayOfMaps::new();

#[btf_map(name = "trace_lost")]
pub(crate) static TRACE_LOST: PerCpuArray<u64, 1> = PerCpuArray::new();

/// No program uses it: the object has it so that the kernel gets its BTF.
#[btf_map(name = "names")]
pub(crate) static NAMES: HashMap<u32, Name, SERVICES, ON_DEMAND> = HashMap::new();

/// As [`NAMES`].
#[btf_map(name = "unprogrammed")]
pub(crate) static UNPROGRAMMED: HashMap<
    u32,
    Unprogrammed,
    { MOST_UNPROGRAMMED as usize },
    ON_DEMAND,
> = HashMap::new();

#[btf_map(name = "excluded")]
pub(crate) static EXCLUDED: HashMap<ExcludedKey, Excluded, { MOST_EXCLUDED as usize }, ON_DEMAND> =
    HashMap::new();

#[btf_map(name = "exclusion")]
pub(crate) static EXCLUSION: Array<Levels, 1> = Array::new();

#[btf_map(name = "revision")]
pub(crate) static REVISION: Array<u32, 1> = Array::new();

#[btf_map(name = "lease")]
pub(crate) static LEASE: Array<u64, 1, MMAPABLE> = Array::new();

#[btf_map(name = "connections4")]
pub(crate) static CONNECTIONS4: Connections<Tuple4, Connection4> = HashMap::new();
#[btf_map(name = "connections6")]
pub(crate) static CONNECTIONS6: Connections<Tuple6, Connection6> = HashMap::new();

#[btf_map(name = "half_open4")]
pub(crate) static HALF_OPEN4: HalfOpen<Tuple4, Connection4> = HashMap::new();
#[btf_map(name = "half_open6")]
pub(crate) static HALF_OPEN6: HalfOpen<Tuple6, Connection6> = HashMap::new();

#[btf_map(name = "fragments4")]
pub(crate) static FRAGMENTS4: Fragments<Translation4> = LruHashMap::new();
#[btf_map(name = "fragments6")]
pub(crate) static FRAGMENTS6: Fragments<Translation6> = LruHashMap::new();

/// Not pinned: each agent has its own, with the marks of its own programs. Agent and programs write
/// single bytes at the same time, the agent through `mmap`.
#[btf_map(name = "reply_filter")]
pub(crate) static REPLY_FILTER: Array<
    ReplyFilterEntry,
    { reply_filter::ENTRIES as usize },
    MMAPABLE,
> = Array::new();

/// Room to build an entry, which is too large for a program's stack. No other program runs on the
/// CPU until the entry is inserted.
#[btf_map(name = "draft4")]
pub(crate) static DRAFT4: PerCpuArray<Connection4, 1> = PerCpuArray::new();
/// The same for IPv6.
#[btf_map(name = "draft6")]
pub(crate) static DRAFT6: PerCpuArray<Connection6, 1> = PerCpuArray::new();

#[btf_map(name = "packets")]
pub(crate) static PACKETS: PerCpuArray<Packets, { HOOKS as usize }> = PerCpuArray::new();

#[btf_map(name = "devices")]
pub(crate) static DEVICES: LruHashMap<u32, Device, { MOST_DEVICES as usize }> = LruHashMap::new();

#[btf_map(name = "quota")]
pub(crate) static QUOTA: Array<Quota, 1> = Array::new();

#[btf_map(name = "closed4")]
pub(crate) static CLOSED4: Closed<Tuple4> = Queue::new();
#[btf_map(name = "closed6")]
pub(crate) static CLOSED6: Closed<Tuple6> = Queue::new();

#[btf_map(name = "own4")]
pub(crate) static OWN4: Own<Tuple4> = LruHashMap::new();
#[btf_map(name = "own6")]
pub(crate) static OWN6: Own<Tuple6> = LruHashMap::new();

#[btf_map(name = "settled4")]
pub(crate) static SETTLED4: Settled<Tuple4> = Queue::new();
#[btf_map(name = "settled6")]
pub(crate) static SETTLED6: Settled<Tuple6> = Queue::new();

#[btf_map(name = "opened4")]
pub(crate) static OPENED4: Opened<Tuple4> = Queue::new();
#[btf_map(name = "opened6")]
pub(crate) static OPENED6: Opened<Tuple6> = Queue::new();

#[btf_map(name = "openings4")]
pub(crate) static OPENINGS4: LastOpenings<Openings4> = Array::new();
#[btf_map(name = "openings6")]
pub(crate) static OPENINGS6: LastOpenings<Openings6> = Array::new();

#[btf_map(name = "usage")]
pub(crate) static USAGE: Array<Usage, 2> = Array::new();

#[btf_map(name = "clients4")]
pub(crate) static CLIENTS4: Recent<AffinityKey, Affinity4> = LruHashMap::new();
#[btf_map(name = "clients6")]
pub(crate) static CLIENTS6: Recent<AffinityKey, Affinity6> = LruHashMap::new();

#[btf_map(name = "frontends")]
pub(crate) static FRONTENDS: Array<u64, { frontend_filter::WORDS as usize }, MMAPABLE> =
    Array::new();

#[btf_map(name = "sources4")]
pub(crate) static SOURCES4: Sources<Source4> = LpmTrie::new();
#[btf_map(name = "sources6")]
pub(crate) static SOURCES6: Sources<Source6> = LpmTrie::new();

#[btf_map(name = "hops4")]
pub(crate) static HOPS4: Recent<Tuple4, Hop4> = LruHashMap::new();
#[btf_map(name = "hops6")]
pub(crate) static HOPS6: Recent<Tuple6, Hop6> = LruHashMap::new();

#[btf_map(name = "peers")]
pub(crate) static PEERS: HashMap<Peer, u32, { MOST_PEERS as usize }, ON_DEMAND> = HashMap::new();

/// It has `Probe`s. `()`: as for `trace`.
#[btf_map(name = "probes")]
pub(crate) static PROBES: RingBuf<(), { hop::PROBES as usize }> = RingBuf::new();

#[btf_map(name = "snat")]
pub(crate) static SNAT: Array<Snat, 1> = Array::new();

/// Service ports for which there is room: the length of a CPU's part of `counters`.
#[unsafe(no_mangle)]
pub(crate) static SERVICE_PORTS: Global<u32> = Global::new(DEFAULT_SERVICES);

/// Connections for which `half_open4` and `half_open6` have room.
#[unsafe(no_mangle)]
pub(crate) static HALF_OPEN_ROOM: Global<u32> = Global::new(DEFAULT_HALF_OPEN);

/// A random number, another one each time the programs are loaded: by it clients outside share entries.
#[unsafe(no_mangle)]
pub(crate) static SEED: Global<u64> = Global::new(0);

/// Whether `getpeername` of a TCP socket returns the Service that was dialled. If zero, TCP
/// connections have no reverse state, and the application sees the endpoint as its peer.
#[unsafe(no_mangle)]
pub(crate) static TCP_PEER_IS_SERVICE: Global<u8> = Global::new(1);

/// Whether Pods can be excluded or steered. If zero, it costs connections nothing.
#[unsafe(no_mangle)]
pub(crate) static HAS_EXCLUSIONS: Global<u8> = Global::new(0);

/// Whether programs only observe: they decide and count, and leave every connection as it is
/// (`--observe`). If zero, it costs connections nothing.
#[unsafe(no_mangle)]
pub(crate) static OBSERVES: Global<u8> = Global::new(0);

/// Whether TCP connections are counted that topo-lb does not translate (`--count all`). If zero, it costs them nothing.
#[unsafe(no_mangle)]
pub(crate) static COUNTS_ALL: Global<u8> = Global::new(0);

/// Whether the kernel has `bpf_set_retval` for these hooks. If zero, the verifier skips the call,
/// because it knows the constant.
#[unsafe(no_mangle)]
pub(crate) static HAS_SET_RETVAL: Global<u8> = Global::new(0);

/// Whether the kernel has `bpf_skc_to_mptcp_sock`; as [`HAS_SET_RETVAL`].
#[unsafe(no_mangle)]
pub(crate) static HAS_MPTCP_SOCK: Global<u8> = Global::new(0);

/// Whether the kernel has `bpf_ktime_get_coarse_ns`; as [`HAS_SET_RETVAL`].
#[unsafe(no_mangle)]
pub(crate) static HAS_COARSE_CLOCK: Global<u8> = Global::new(0);

/// Whether all frontends are ours, and clients outside of this node are served
/// (`--frontends all`). If zero, the programs do not read `frontends` and `sources4/6`.
#[unsafe(no_mangle)]
pub(crate) static SERVES_ALL_FRONTENDS: Global<u8> = Global::new(0);

/// Whether packets of clients outside are sent on to other nodes as they are (`--direct-return auto`). If zero, it costs
/// them nothing.
#[unsafe(no_mangle)]
pub(crate) static RETURNS_DIRECTLY: Global<u8> = Global::new(0);

/// The bit of `skb->mark` that says that the packet's source is to be replaced.
#[unsafe(no_mangle)]
pub(crate) static MASQUERADE_MARK: Global<u32> = Global::new(0);

/// Where the bit `skc_ipv6only` is in `struct sock`, in bits; zero if unknown, or if the kernel has no
/// `bpf_probe_read_kernel` for hooks of `bind`.
#[unsafe(no_mangle)]
pub(crate) static V6ONLY_BIT: Global<u32> = Global::new(0);

/// The cookie of the host's network namespace; zero if unknown.
#[unsafe(no_mangle)]
pub(crate) static HOST_NETNS: Global<u64> = Global::new(0);
