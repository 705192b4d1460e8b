//! The required shape of each map.

use aya::maps::MapType;
use aya::maps::lpm_trie::Key;
use topo_lb_common::address::{Frontend4, Frontend6};
use topo_lb_common::affinity::{Affinity4, Affinity6, AffinityKey};
use topo_lb_common::backend::{Backend4, Backend6};
use topo_lb_common::connected::{Connected4, Connected6};
use topo_lb_common::connection::{
    Connection4, Connection6, FragmentPlace, Translation4, Translation6, Tuple4, Tuple6,
};
use topo_lb_common::counters::{Counters, Name};
use topo_lb_common::device::{Device, Quota};
use topo_lb_common::ended;
use topo_lb_common::exclusion::{Excluded, ExcludedKey, Levels};
use topo_lb_common::failing;
use topo_lb_common::far_endpoints::{FarEndpoint, MOST_FAR_ENDPOINTS, Moved};
use topo_lb_common::flow::{Flows4, Flows6};
use topo_lb_common::frontend_filter;
use topo_lb_common::hop::{Hop4, Hop6, PROBES, Peer};
use topo_lb_common::maps;
use topo_lb_common::members::{Member, MemberKey4, MemberKey6};
use topo_lb_common::openings::{BUCKETS, Openings4, Openings6};
use topo_lb_common::packets::Packets;
use topo_lb_common::range::Range;
use topo_lb_common::record::{Record4, Record6};
use topo_lb_common::snat::Snat;
use topo_lb_common::sources::{Source4, Source6};
use topo_lb_common::totals::{MOST_TOTALS, Totals, TotalsKey};
use topo_lb_common::unprogrammed::Unprogrammed;
use topo_lb_common::usage::Usage;

use crate::datapath::host::connection_room::Host;
use topo_lb_core::plan::Capacity;

/// `BPF_F_NO_PREALLOC`: an entry takes memory only while it exists.
const NO_PREALLOC: u32 = 1;
/// `BPF_F_MMAPABLE`: the agent can map the array's memory (fc9702273e2e, Linux 5.5).
const MMAPABLE: u32 = 1 << 10;
/// `BPF_F_RDONLY_PROG`: programs only read the map (591fe9888d78, Linux 5.2). Versions whose Services
/// share no rows of slots lack it: an agent of such a version makes the maps anew.
const RDONLY_PROG: u32 = 1 << 7;

/// Free entries of an LRU map that each CPU may keep to itself (`LOCAL_FREE_TARGET`, kernel/bpf/bpf_lru_list.c):
/// a map of a fixed size has as many more.
const LRU_SPARE: u32 = 128;

/// LRU maps whose size no flag sets.
const FIXED_LRU: [&str; 5] =
    [maps::FRAGMENTS4, maps::FRAGMENTS6, maps::DEVICES, maps::OWN4, maps::OWN6];

/// Half-open connections for which there is room.
pub(crate) fn half_open_room(capacity: &Capacity) -> u32 {
    if capacity.connections == 0 { 1 } else { Host::this().half_open() }
}

/// CPUs that this host can ever have: the number of parts of `counters`.
pub(crate) fn cpus() -> u32 {
    // Without /sys, connections of the other CPUs are not counted.
    aya::util::nr_cpus().map_or(1, |cpus| cpus as u32)
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct MapSpec {
    pub(crate) name: &'static str,
    pub(crate) map_type: MapType,
    /// In bytes.
    pub(crate) key: u32,
    /// In bytes.
    pub(crate) value: u32,
    pub(crate) max_entries: u32,
    pub(crate) flags: u32,
    /// Whether the map is pinned, and so outlives the agent.
    pub(crate) is_pinned: bool,
}

/// The shape of every map of `maps::ALL`, in that order.
pub(crate) fn map_specs(capacity: &Capacity) -> [MapSpec; maps::ALL.len()] {
    fn spec<K, V>(name: &'static str, map_type: MapType, max_entries: u32, flags: u32) -> MapSpec {
        let (key, value) = (size_of::<K>() as u32, size_of::<V>() as u32);
        MapSpec { name, map_type, key, value, max_entries, flags, is_pinned: true }
    }
    use MapType::{
        Array, ArrayOfMaps, Hash, LpmTrie, LruHash, PerCpuArray, Queue, RingBuf, SkStorage,
    };
    let Capacity { services, slots, members, flows, connections, .. } = *capacity;
    let (entries, closed) = (maps::entries(connections), maps::closed(connections));
    let settled = half_open_room(capacity);
    let (opened, half_open) = (maps::opened(settled), maps::half_open_entries(settled));
    let (buckets, clients) = if connections == 0 { (1, 1) } else { (BUCKETS, flows) };
    let (sources, hops) = (capacity.sources.max(1), capacity.hops.max(1));
    let fragments =
        if capacity.sources == 0 { maps::FRAGMENTS } else { maps::FRAGMENTS_ALL_FRONTENDS };
    let mut all = [
        spec::<u32, Range>(maps::RANGE, Array, 1, 0),
        spec::<Frontend4, u32>(maps::SERVICES4, Hash, services, 0),
        spec::<Frontend6, u32>(maps::SERVICES6, Hash, services, 0),
        spec::<u32, Record4>(maps::RECORDS4, Array, capacity.records(), MMAPABLE),
        spec::<u32, Record6>(maps::RECORDS6, Array, capacity.records(), MMAPABLE),
        spec::<u32, Backend4>(maps::SLOTS4, Array, slots, RDONLY_PROG),
        spec::<u32, Backend6>(maps::SLOTS6, Array, slots, RDONLY_PROG),
        spec::<MemberKey4, Member>(maps::MEMBERS4, Hash, members, NO_PREALLOC),
        spec::<MemberKey6, Member>(maps::MEMBERS6, Hash, members, NO_PREALLOC),
        spec::<i32, Flows4>(maps::FLOWS4, SkStorage, 0, NO_PREALLOC),
        spec::<i32, Flows6>(maps::FLOWS6, SkStorage, 0, NO_PREALLOC),
        spec::<i32, Connected4>(maps::CONNECTED4, SkStorage, 0, NO_PREALLOC),
        spec::<i32, Connected6>(maps::CONNECTED6, SkStorage, 0, NO_PREALLOC),
        spec::<AffinityKey, Affinity4>(maps::AFFINITY4, LruHash, flows, 0),
        spec::<AffinityKey, Affinity6>(maps::AFFINITY6, LruHash, flows, 0),
        spec::<u32, Counters>(maps::COUNTERS, Array, services.saturating_mul(cpus()), MMAPABLE),
        spec::<TotalsKey, Totals>(maps::TOTALS, Hash, MOST_TOTALS, NO_PREALLOC),
        spec::<FarEndpoint, Moved>(maps::FAR_ENDPOINTS, Hash, MOST_FAR_ENDPOINTS, NO_PREALLOC),
        spec::<(), ()>(maps::FAILING, RingBuf, failing::RING_BYTES, 0),
        spec::<(), ()>(maps::ENDED, RingBuf, ended::RING_BYTES, 0),
        spec::<u32, u64>(maps::ENDED_LOST, PerCpuArray, 1, 0),
        spec::<u32, u64>(maps::TORN, PerCpuArray, 1, 0),
        spec::<u32, u32>(maps::TRACE, ArrayOfMaps, 1, 0),
        spec::<u32, u64>(maps::TRACE_LOST, PerCpuArray, 1, 0),
        spec::<u32, Name>(maps::NAMES, Hash, services, NO_PREALLOC),
        spec::<u32, Unprogrammed>(maps::UNPROGRAMMED, Hash, maps::MOST_UNPROGRAMMED, NO_PREALLOC),
        spec::<ExcludedKey, Excluded>(maps::EXCLUDED, Hash, maps::MOST_EXCLUDED, NO_PREALLOC),
        spec::<u32, Levels>(maps::EXCLUSION, Array, 1, 0),
        spec::<u32, u32>(maps::REVISION, Array, 1, 0),
        spec::<u32, u64>(maps::LEASE, Array, 1, MMAPABLE),
        spec::<Tuple4, Connection4>(maps::CONNECTIONS4, Hash, entries, NO_PREALLOC),
        spec::<Tuple6, Connection6>(maps::CONNECTIONS6, Hash, entries, NO_PREALLOC),
        spec::<Tuple4, Connection4>(maps::HALF_OPEN4, Hash, half_open, NO_PREALLOC),
        spec::<Tuple6, Connection6>(maps::HALF_OPEN6, Hash, half_open, NO_PREALLOC),
        spec::<FragmentPlace, Translation4>(maps::FRAGMENTS4, LruHash, fragments, 0),
        spec::<FragmentPlace, Translation6>(maps::FRAGMENTS6, LruHash, fragments, 0),
        spec::<u32, Packets>(maps::PACKETS, PerCpuArray, maps::HOOKS, 0),
        spec::<u32, Device>(maps::DEVICES, LruHash, maps::MOST_DEVICES, 0),
        spec::<u32, Quota>(maps::QUOTA, Array, 1, 0),
        spec::<(), Tuple4>(maps::CLOSED4, Queue, closed, 0),
        spec::<(), Tuple6>(maps::CLOSED6, Queue, closed, 0),
        spec::<(), Tuple4>(maps::SETTLED4, Queue, settled, 0),
        spec::<(), Tuple6>(maps::SETTLED6, Queue, settled, 0),
        spec::<(), Tuple4>(maps::OPENED4, Queue, opened, 0),
        spec::<(), Tuple6>(maps::OPENED6, Queue, opened, 0),
        spec::<u32, Openings4>(maps::OPENINGS4, Array, buckets, 0),
        spec::<u32, Openings6>(maps::OPENINGS6, Array, buckets, 0),
        spec::<u32, Usage>(maps::USAGE, Array, 2, 0),
        spec::<AffinityKey, Affinity4>(maps::CLIENTS4, LruHash, clients, 0),
        spec::<AffinityKey, Affinity6>(maps::CLIENTS6, LruHash, clients, 0),
        spec::<u32, u64>(maps::FRONTENDS, Array, frontend_filter::WORDS, MMAPABLE),
        spec::<Key<Source4>, u32>(maps::SOURCES4, LpmTrie, sources, NO_PREALLOC),
        spec::<Key<Source6>, u32>(maps::SOURCES6, LpmTrie, sources, NO_PREALLOC),
        spec::<u32, Snat>(maps::SNAT, Array, 1, 0),
        spec::<Tuple4, u64>(maps::OWN4, LruHash, maps::OWN, 0),
        spec::<Tuple6, u64>(maps::OWN6, LruHash, maps::OWN, 0),
        spec::<Tuple4, Hop4>(maps::HOPS4, LruHash, hops, 0),
        spec::<Tuple6, Hop6>(maps::HOPS6, LruHash, hops, 0),
        spec::<Peer, u32>(maps::PEERS, Hash, maps::MOST_PEERS, NO_PREALLOC),
        spec::<(), ()>(maps::PROBES, RingBuf, PROBES, 0),
    ];
    let only_tc = all.iter_mut().filter(|spec| maps::TC.contains(&spec.name));
    only_tc.for_each(|spec| spec.is_pinned = capacity.connections != 0);
    let only_all_frontends = all.iter_mut().filter(|spec| maps::ALL_FRONTENDS.contains(&spec.name));
    only_all_frontends.for_each(|spec| spec.is_pinned = capacity.sources != 0);
    for spec in all.iter_mut().filter(|spec| spec.is_pinned && FIXED_LRU.contains(&spec.name)) {
        spec.max_entries += LRU_SPARE * cpus();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_map_of_the_abi_has_a_shape_in_the_same_order() {
        let names = map_specs(&Capacity::default()).map(|spec| spec.name);
        assert_eq!(names, maps::ALL);
        assert_eq!(maps::TC[0], maps::CONNECTIONS4);
        assert_eq!(maps::ALL_FRONTENDS[0], maps::FRONTENDS);
    }

    #[test]
    fn what_each_cpu_keeps_of_an_lru_map_takes_no_room_from_connections() {
        let capacity = Capacity { connections: 512, sources: 1, ..Capacity::default() };
        let specs = map_specs(&capacity);
        let size = |name| specs.iter().find(|spec| spec.name == name).unwrap().max_entries;
        assert_eq!(size(maps::OWN4), maps::OWN + 128 * cpus());
        let fixed = specs.iter().filter(|spec| spec.map_type == MapType::LruHash);
        let by_flag = [maps::AFFINITY4, maps::AFFINITY6, maps::CLIENTS4, maps::CLIENTS6];
        let by_flag = [&by_flag[..], &[maps::HOPS4, maps::HOPS6]].concat();
        let fixed = fixed.filter(|spec| !by_flag.contains(&spec.name));
        assert_eq!(fixed.count(), FIXED_LRU.len());
        // Without tc they take no memory.
        let specs = map_specs(&Capacity { connections: 0, ..capacity });
        let half_open = specs.iter().find(|spec| spec.name == maps::HALF_OPEN4).unwrap();
        assert_eq!(half_open.max_entries, 4);
    }
}
