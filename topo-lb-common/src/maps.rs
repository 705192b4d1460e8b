//! Names and default sizes of the maps. A map is pinned under its name.

use crate::connection::{FRAGMENT_PLACES, FRAGMENT_PLACES_OUTSIDE};

/// Frontends of IPv4 Services: [`Frontend4`](crate::address::Frontend4) → index in `records4`.
pub const SERVICES4: &str = "services4";
/// Frontends of IPv6 Services: [`Frontend6`](crate::address::Frontend6) → index in `records6`.
pub const SERVICES6: &str = "services6";
/// What connections to IPv4 frontends need: [`Record4`](crate::record::Record4).
pub const RECORDS4: &str = "records4";
/// What connections to IPv6 frontends need: [`Record6`](crate::record::Record6).
pub const RECORDS6: &str = "records6";
/// Endpoints of IPv4 Services with more than [`INLINE4`](crate::record::INLINE4) of them.
pub const SLOTS4: &str = "slots4";
/// Endpoints of IPv6 Services with more than [`INLINE6`](crate::record::INLINE6) of them.
pub const SLOTS6: &str = "slots6";
/// Endpoints by Service, for flows that outlive a choice (UDP, session affinity).
pub const MEMBERS4: &str = "members4";
/// The same for IPv6.
pub const MEMBERS6: &str = "members6";
/// Unconnected UDP sockets: the frontends that they send to, and the endpoints, in the socket's own
/// storage.
pub const FLOWS4: &str = "flows4";
/// The same for IPv6.
pub const FLOWS6: &str = "flows6";
/// Connected sockets: what they dialled, in the socket's own storage.
pub const CONNECTED4: &str = "connected4";
/// The same for IPv6.
pub const CONNECTED6: &str = "connected6";
/// Session affinity of network namespaces.
pub const AFFINITY4: &str = "affinity4";
/// The same for IPv6.
pub const AFFINITY6: &str = "affinity6";
/// Connections by Service index and locality; each CPU has a part of its own.
pub const COUNTERS: &str = "counters";
/// What TCP connections moved, by Service index, locality and tier:
/// [`TotalsKey`](crate::totals::TotalsKey) → [`Totals`](crate::totals::Totals).
pub const TOTALS: &str = "totals";
/// What TCP connections moved to endpoints outside of this node's zone:
/// [`FarEndpoint`](crate::far_endpoints::FarEndpoint) → [`Moved`](crate::far_endpoints::Moved).
pub const FAR_ENDPOINTS: &str = "far_endpoints";
/// A ring buffer of [`Failing`](crate::failing::Failing) endpoints.
pub const FAILING: &str = "failing";
/// A ring buffer of connections that have [`Ended`](crate::ended::Ended) and were not translated.
pub const ENDED: &str = "ended";
/// Connections for which that ring buffer had no room, per CPU.
pub const ENDED_LOST: &str = "ended_lost";
/// Look-ups of Services that found another frontend's record each time, per CPU.
pub const TORN: &str = "torn";
/// The ring buffer for [`Decision`](crate::trace::Decision)s while somebody traces.
pub const TRACE: &str = "trace";
/// Decisions for which the ring buffer had no room, per CPU.
pub const TRACE_LOST: &str = "trace_lost";
/// Service index → `namespace/name:port`, for people and for the agent after a restart.
pub const NAMES: &str = "names";
/// Unprogrammed Services: those that lack room in the maps above; for people.
pub const UNPROGRAMMED: &str = "unprogrammed";
/// Cgroups of excluded and of steered Pods.
pub const EXCLUDED: &str = "excluded";
/// The levels of the cgroup hierarchy that have such a cgroup.
pub const EXCLUSION: &str = "exclusion";
/// The address range that holds every frontend: other addresses cost no look-up.
pub const RANGE: &str = "range";

/// Number of the last plan: a tc connection or UDP flow checks its endpoint only after a new one.
pub const REVISION: &str = "revision";
/// Until when endpoints with a lease serve ([`LEASED`](crate::selection::LEASED)): nanoseconds of
/// `CLOCK_MONOTONIC`, host order. The agent renews it while its resolver lives.
pub const LEASE: &str = "lease";
/// tc: established connections, an entry for each direction.
pub const CONNECTIONS4: &str = "connections4";
/// The same for IPv6.
pub const CONNECTIONS6: &str = "connections6";
/// tc: connections that are not established yet.
pub const HALF_OPEN4: &str = "half_open4";
/// The same for IPv6.
pub const HALF_OPEN6: &str = "half_open6";
/// tc: fragmented datagrams.
pub const FRAGMENTS4: &str = "fragments4";
/// The same for IPv6.
pub const FRAGMENTS6: &str = "fragments6";
/// tc: the reply filter. Not pinned: each agent has its own.
pub const REPLY_FILTER: &str = "reply_filter";
/// tc: packets by outcome, per hook and CPU.
pub const PACKETS: &str = "packets";
/// tc: what each device may still do.
pub const DEVICES: &str = "devices";
/// tc: how many open connections a device may have.
pub const QUOTA: &str = "quota";
/// tc: closed connections of `connections4`, a queue of the keys of their entries for replies.
pub const CLOSED4: &str = "closed4";
/// The same for IPv6.
pub const CLOSED6: &str = "closed6";
/// tc: connections of `half_open4` that have their answer, a queue of their clients' keys.
pub const SETTLED4: &str = "settled4";
/// The same for IPv6.
pub const SETTLED6: &str = "settled6";
/// tc: connections of `half_open4` in the order of their opening, a queue of their clients' keys.
pub const OPENED4: &str = "opened4";
/// The same for IPv6.
pub const OPENED6: &str = "opened6";
/// tc: the last openings of each client at each frontend.
pub const OPENINGS4: &str = "openings4";
/// The same for IPv6.
pub const OPENINGS6: &str = "openings6";
/// tc: how full the tables of connections are.
pub const USAGE: &str = "usage";
/// tc: session affinity of clients without a socket on this node.
pub const CLIENTS4: &str = "clients4";
/// The same for IPv6.
pub const CLIENTS6: &str = "clients6";

/// Bits of frontends, in place of `range`: with `--frontends all`.
pub const FRONTENDS: &str = "frontends";
/// Who may dial a frontend with source ranges: [`Source4`](crate::sources::Source4).
pub const SOURCES4: &str = "sources4";
/// The same for IPv6.
pub const SOURCES6: &str = "sources6";
/// [`crate::snat::Snat`].
pub const SNAT: &str = "snat";
/// Whom datagrams of this node itself were sent to, from a frontend's address and port: the key of their
/// answers → the time of the last one (`CLOCK_MONOTONIC`, nanoseconds).
pub const OWN4: &str = "own4";
/// The same for IPv6.
pub const OWN6: &str = "own6";

/// Direct return: where packets of a flow are sent on to, [`Tuple4`](crate::connection::Tuple4) →
/// [`Hop4`](crate::hop::Hop4). The least recently used one is replaced: then its packets are sent on by the table of
/// the Service.
pub const HOPS4: &str = "hops4";
/// The same for IPv6.
pub const HOPS6: &str = "hops6";
/// Direct return: the other nodes, [`Peer`](crate::hop::Peer) → [`PROVED`](crate::hop::PROVED) and tag.
pub const PEERS: &str = "peers";
/// Direct return: a ring buffer of frames of other agents, [`Probe`](crate::hop::Probe).
pub const PROBES: &str = "probes";

/// Every pinned map, in the order of creation.
pub const ALL: [&str; 60] = [
    RANGE,
    SERVICES4,
    SERVICES6,
    RECORDS4,
    RECORDS6,
    SLOTS4,
    SLOTS6,
    MEMBERS4,
    MEMBERS6,
    FLOWS4,
    FLOWS6,
    CONNECTED4,
    CONNECTED6,
    AFFINITY4,
    AFFINITY6,
    COUNTERS,
    TOTALS,
    FAR_ENDPOINTS,
    FAILING,
    ENDED,
    ENDED_LOST,
    TORN,
    TRACE,
    TRACE_LOST,
    NAMES,
    UNPROGRAMMED,
    EXCLUDED,
    EXCLUSION,
    REVISION,
    LEASE,
    CONNECTIONS4,
    CONNECTIONS6,
    HALF_OPEN4,
    HALF_OPEN6,
    FRAGMENTS4,
    FRAGMENTS6,
    PACKETS,
    DEVICES,
    QUOTA,
    CLOSED4,
    CLOSED6,
    SETTLED4,
    SETTLED6,
    OPENED4,
    OPENED6,
    OPENINGS4,
    OPENINGS6,
    USAGE,
    CLIENTS4,
    CLIENTS6,
    FRONTENDS,
    SOURCES4,
    SOURCES6,
    SNAT,
    OWN4,
    OWN6,
    HOPS4,
    HOPS6,
    PEERS,
    PROBES,
];
/// Maps that only tc needs, and that are pinned only with tc: those of [`ALL`] from `connections4` on.
pub const TC: &[&str] = ALL.split_at(30).1.split_at(20).0;
/// Maps that are pinned only with `--frontends all`, beside those of [`TC`].
pub const ALL_FRONTENDS: &[&str] = ALL.split_at(50).1;

/// Default: frontends per address family, and Service ports of both together.
pub const DEFAULT_SERVICES: u32 = 65_536;
/// Default: endpoints per address family of Services whose endpoints do not fit into a record.
pub const DEFAULT_SLOTS: u32 = 262_144;
/// Default: entries of `members4` and of `members6`.
pub const DEFAULT_MEMBERS: u32 = 262_144;
/// Default: affinity entries per address family.
pub const DEFAULT_FLOWS: u32 = 65_536;
/// Open tc connections per address family, unless the agent sets another number.
pub const DEFAULT_CONNECTIONS: u32 = 131_072;
/// Connections for which `half_open4` and `half_open6` have room, unless the agent sets another number. `settled4` and
/// `settled6` have as many entries.
pub const DEFAULT_HALF_OPEN: u32 = 8_192;

/// Entries of `opened4` and of `opened6`: a connection that leaves `half_open4/6` leaves its key here until that is
/// the first one. `half_open`: connections for which `half_open4/6` have room.
#[must_use]
pub const fn opened(half_open: u32) -> u32 {
    half_open.saturating_mul(2)
}

/// Entries of `half_open4` and of `half_open6`, two for each key of [`opened`]: the number of connections is bounded by
/// `usage`, and by that queue if `usage` is wrong.
#[must_use]
pub const fn half_open_entries(half_open: u32) -> u32 {
    opened(half_open).saturating_mul(2)
}

/// Entries of `closed4` and of `closed6`. `connections`: open ones for which there is room.
#[must_use]
pub const fn closed(connections: u32) -> u32 {
    let quarter = connections / 4;
    if quarter == 0 { 1 } else { quarter }
}

/// Entries of `connections4` and of `connections6`, two for each connection: closed ones have room of
/// their own, so that they take none from open ones. `connections`: as for [`closed`].
#[must_use]
pub const fn entries(connections: u32) -> u32 {
    connections.saturating_add(closed(connections)).saturating_mul(2)
}
/// Fragmented datagrams per address family that are stored at once: room for the places of 16
/// devices at least.
pub const FRAGMENTS: u32 = 16 * 2 * FRAGMENT_PLACES;
/// The same with clients outside.
pub const FRAGMENTS_ALL_FRONTENDS: u32 = FRAGMENTS + 2 * FRAGMENT_PLACES_OUTSIDE;
/// Most entries of `peers`; each takes memory only while it exists.
pub const MOST_PEERS: u32 = 16_384;
/// Entries of `own4` and of `own6`; the least recently used one is replaced.
pub const OWN: u32 = 8_192;
/// Most entries of `devices`; the least recently used one is replaced. Clients outside have
/// [`CLIENTS`](crate::device::CLIENTS) of them, whatever they send: the others are for devices.
pub const MOST_DEVICES: u32 = 4_096;
/// Most entries of `unprogrammed`; each takes memory only while it exists.
pub const MOST_UNPROGRAMMED: u32 = 16_384;
/// Most Pods that can be excluded or steered on a node; each takes memory only while it is.
pub const MOST_EXCLUDED: u32 = 4_096;
/// Most entries of `sources4` and of `sources6`; each takes memory only while it exists.
pub const MOST_SOURCES: u32 = 65_536;
/// Entries of `packets`: one for each hook of tc, and one for XDP.
pub const HOOKS: u32 = crate::packets::XDP + 1;
