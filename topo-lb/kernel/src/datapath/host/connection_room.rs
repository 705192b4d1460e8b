//! How many connections of tc a node has room for, unless `--max-connections` says so, and what they take.

use std::fs;

use topo_lb_common::maps::{self, DEFAULT_HALF_OPEN, closed, entries};

use crate::datapath::host::memory_limit;
use topo_lb_core::flag::{KUBE_PROXY_REPLACEMENT, MAX_CONNECTIONS, TC_DEVICES};

/// Connections per address family of any node. kube-proxy's default for connection tracking is the same
/// (`conntrack-min`, 131,072).
const LEAST: u32 = 131_072;
/// Connections per CPU, where that is more (kube-proxy: `conntrack-max-per-core`, 32,768).
const PER_CPU: u32 = 32_768;
/// Most connections, whatever the node: Linux 5.10 makes no map that could take 4 GiB
/// (`bpf_map_charge_init`, kernel/bpf/syscall.c).
const MOST: u32 = 4_194_304;
/// Full tables of both address families take at most this part of a node's memory.
const PART: u64 = 16;
/// The kernel's memory for an entry of `connections4`, in bytes: 48 of its own (`struct htab_elem`,
/// kernel/bpf/hashtab.c), 24 of the key, 72 of the value, 8 of the allocator, and the next size that it has.
const ENTRY4: u64 = 192;
/// The same for `connections6`: 48, 48, 120 and 8.
const ENTRY6: u64 = 256;
/// The kernel's memory for a place of the hash, of which there are as many as entries, and then up to the next
/// power of two (`struct bucket`).
const PLACE: u64 = 16;

/// Most half-open connections per address family: answered datagrams of 26 s at 5,000 a second.
const MOST_HALF_OPEN: u32 = 131_072;
/// Full tables of half-open connections of both address families take at most this part of a node's memory, unless
/// it has little.
const HALF_OPEN_PART: u64 = 96;
/// The kernel's memory at the start for a half-open connection of each family, in bytes: four places, and three keys
/// in queues, of 20 and 44.
const HALF_OPEN_PLACES: u64 = 2 * 4 * PLACE + 3 * 64;
/// The same in full tables: two entries each, too.
const HALF_OPEN: u64 = HALF_OPEN_PLACES + 2 * (ENTRY4 + ENTRY6);

/// What the agent's other maps take, in bytes: those of Services at default sizes, what they take for each CPU,
/// and the other ones of tc.
const SERVICES: u64 = 54 * MIB;
const SERVICES_PER_CPU: u64 = 5 * MIB / 2;
const TC: u64 = 20 * MIB;
/// What the process itself takes in a large cluster, in bytes.
const PROCESS: u64 = 100 * MIB;
/// So much room is there under any limit on the memory: that fewer fit is said, and for the user to decide.
const UNDER_ANY_LIMIT: u32 = 16_384;
const MIB: u64 = 1 << 20;

/// What the room depends on.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// The node's CPUs.
    pub cpus: u32,
    /// The node's memory, in bytes.
    pub memory: u64,
    /// The limit on the memory of this process and of its maps, in bytes, if there is one.
    pub limit: Option<u64>,
    /// How large the maps of Services are, in percent of their default sizes.
    pub percent: u64,
}

impl Host {
    /// This node, and this process.
    #[must_use]
    pub fn this() -> Self {
        // SAFETY: no pointer is passed.
        let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        let memory = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
        Self {
            cpus: u32::try_from(cpus).unwrap_or(1),
            // Where the kernel does not say it, any node.
            memory: memory.unwrap_or(u64::MAX),
            limit: memory_limit::of_this_process(),
            percent: 100,
        }
    }

    /// With maps for so many services, slots and flows: the largest one counts for all.
    #[must_use]
    pub fn sized(self, services: u32, slots: u32, flows: u32) -> Self {
        let percent = |room: u32, usual: u32| u64::from(room) * 100 / u64::from(usual);
        let most = percent(services, maps::DEFAULT_SERVICES)
            .max(percent(slots, maps::DEFAULT_SLOTS))
            .max(percent(flows, maps::DEFAULT_FLOWS));
        Self { percent: most, ..self }
    }

    /// The room per address family: by the CPUs, as far as full tables fit.
    #[must_use]
    pub fn connections(&self) -> u32 {
        let wanted = self.wanted();
        let fits = |room: u32| {
            let in_limit =
                room < UNDER_ANY_LIMIT || self.limit.is_none_or(|it| self.needed(room) <= it);
            (in_limit && full_tables(room) <= self.memory / PART) || room < 1_024
        };
        // Fewer by an eighth each time, so that the number does not follow each page of memory.
        let mut fewer = std::iter::successors(Some(wanted), |room| Some(room - room / 8));
        fewer.find(|room| fits(*room)).unwrap_or(wanted)
    }

    fn wanted(&self) -> u32 {
        LEAST.max(self.cpus.saturating_mul(PER_CPU)).min(MOST)
    }

    /// The room for half-open connections per address family. It does not follow `--max-connections`: agents
    /// with another one share these tables while one replaces the other.
    #[must_use]
    pub fn half_open(&self) -> u32 {
        let memory = self.memory.min(self.limit.unwrap_or(u64::MAX));
        std::iter::successors(Some(MOST_HALF_OPEN), |room| Some(room / 2))
            .find(|room| {
                u64::from(*room) * HALF_OPEN <= memory / HALF_OPEN_PART
                    || *room <= DEFAULT_HALF_OPEN
            })
            .unwrap_or(DEFAULT_HALF_OPEN)
    }

    /// What the tables take at the start, in bytes.
    fn at_the_start(&self, connections: u32) -> u64 {
        places(connections) + u64::from(self.half_open()) * HALF_OPEN_PLACES
    }

    /// What they take when they are full, in bytes.
    fn full(&self, connections: u32) -> u64 {
        full_tables(connections) + u64::from(self.half_open()) * HALF_OPEN
    }

    /// The least limit on the memory of an agent with full tables, in bytes: all maps are there twice while
    /// they are renewed.
    #[must_use]
    pub fn needed(&self, connections: u32) -> u64 {
        let services = SERVICES + u64::from(self.cpus) * SERVICES_PER_CPU;
        PROCESS + 2 * (services * self.percent / 100 + TC + self.full(connections))
    }

    /// That the memory limit is too small for so many connections, if it is, and what to do.
    #[must_use]
    pub fn shortage(&self, connections: u32) -> Option<(String, String)> {
        let (limit, needed) = (self.limit?, self.needed(connections));
        let sentence = format!(
            "with {connections} open connections of each address family the agent and its maps can take \
             {}, and the memory limit is {}: the kernel would kill the agent",
            mebibytes(needed),
            mebibytes(limit)
        );
        let remedy = format!(
            "raise the memory limit to {}, remove it, or lower {MAX_CONNECTIONS}",
            mebibytes(needed)
        );
        (limit < needed).then_some((sentence, remedy))
    }

    /// What this node gets and what it costs, for people.
    #[must_use]
    pub fn sentence(&self) -> String {
        let Self { cpus, memory, .. } = *self;
        let room = self.connections();
        let many = if cpus == 1 { "" } else { "s" };
        format!(
            "{cpus} CPU{many} and {} of memory: with {TC_DEVICES} or {KUBE_PROXY_REPLACEMENT} there is room for {room} \
             open ones of each address family, unless {MAX_CONNECTIONS} says otherwise; tables take {}, and full \
             ones {}",
            mebibytes(memory),
            mebibytes(self.at_the_start(room)),
            mebibytes(self.full(room))
        )
    }

    /// That there is less room than on another node of this kind, as the limit leaves no more, and what to do.
    #[must_use]
    pub fn reduced(&self) -> Option<(String, String)> {
        let limit = self.limit?;
        let without = Self { limit: None, ..*self }.connections();
        let sentence =
            format!("{}; the memory limit of {} leaves no more", self.sentence(), mebibytes(limit));
        let needed = mebibytes(self.needed(without));
        let remedy = format!("a limit of {needed}, or none, leaves room for {without}");
        (self.connections() < without).then_some((sentence, remedy))
    }
}

/// The memory of full tables of open connections of both address families, in bytes.
fn full_tables(connections: u32) -> u64 {
    places(connections) + u64::from(entries(connections)) * (ENTRY4 + ENTRY6)
}

/// What these take while they are empty, in bytes.
fn places(connections: u32) -> u64 {
    2 * u64::from(entries(connections)).next_power_of_two() * PLACE
        + u64::from(closed(connections)) * 64
}

/// Rounded up: limits of containers are given in these.
fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(MIB))
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn node(cpus: u32, memory: u64) -> Host {
        Host { cpus, memory, limit: None, percent: 100 }
    }

    #[test]
    fn room_follows_the_cpus_and_full_tables_leave_the_memory_to_others() {
        for (cpus, memory, wanted) in [
            (1, 4, 131_072),
            (2, 4, 131_072),
            (4, 16, 131_072),
            (16, 64, 524_288),
            (64, 256, 2_097_152),
            (1_024, 1 << 20, MOST),
        ] {
            let room = node(cpus, memory * GIB).connections();
            assert_eq!(room, wanted, "{cpus} CPUs, {memory} GiB");
        }
        for (cpus, memory) in [(1, GIB / 2), (2, GIB), (64, GIB), (64, 32 * GIB)] {
            let room = node(cpus, memory).connections();
            assert!(full_tables(room) <= memory / PART, "{room} for {cpus} CPUs, {memory} bytes");
            assert!(
                full_tables(room) * 3 > memory / PART * 2,
                "{room}: less than there is memory for"
            );
        }
        assert!(node(1, 0).connections() > 0);
    }

    #[test]
    fn half_open_connections_have_room_where_there_is_memory() {
        for (memory, wanted) in [
            (0, 8_192),
            (GIB, 8_192),
            (2 * GIB, 16_384),
            (4 * GIB, 32_768),
            (8 * GIB, 65_536),
            (1 << 40, MOST_HALF_OPEN),
        ] {
            assert_eq!(node(2, memory).half_open(), wanted, "{memory} bytes");
        }
    }

    #[test]
    fn the_documents_have_these_sizes() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations.md");
        let page = fs::read_to_string(path).unwrap();
        for (cpus, memory) in [(2, 4), (16, 64), (64, 256)] {
            let host = node(cpus, memory * GIB);
            let room = host.connections();
            let grouped = |number: u64| {
                let digits = number.to_string();
                let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().collect();
                String::from_utf8_lossy(&groups.join(&b","[..])).into_owned()
            };
            let [start, full, limit] =
                [host.at_the_start(room), host.full(room), host.needed(room)]
                    .map(|bytes| grouped(bytes.div_ceil(MIB)));
            let row = format!(
                "| {cpus} | {memory} GiB | {} | {} | {start} MiB | {full} MiB | {limit} MiB |\n",
                grouped(room.into()),
                grouped(host.half_open().into())
            );
            assert!(page.contains(&row), "docs/operations.md lacks {row}");
        }
    }

    #[test]
    fn under_a_limit_on_the_memory_full_tables_and_all_else_fit() {
        let under = |limit| Host { limit: Some(limit), ..node(2, 16 * GIB) };
        let enough = under(node(2, 16 * GIB).needed(LEAST));
        assert_eq!(enough.connections(), LEAST);
        assert_eq!((enough.reduced(), enough.shortage(LEAST)), (None, None));

        let half = under(GIB / 2);
        let room = half.connections();
        assert!((LEAST / 2..LEAST).contains(&room), "{room}");
        assert!(half.needed(room) <= GIB / 2);
        let (sentence, remedy) = half.reduced().unwrap();
        assert!(sentence.contains("the memory limit of 512 MiB leaves no more"), "{sentence}");
        assert!(remedy.ends_with("leaves room for 131072"), "{remedy}");
        assert_eq!(half.shortage(room), None);
        let (sentence, remedy) = half.shortage(LEAST).unwrap();
        assert!(sentence.contains("and the memory limit is 512 MiB"), "{sentence}");
        assert!(remedy.starts_with("raise the memory limit to "), "{remedy}");

        // There is room even if the limit holds the other maps alone.
        let small = under(160 * MIB);
        assert!((UNDER_ANY_LIMIT * 7 / 8..=UNDER_ANY_LIMIT).contains(&small.connections()));
        assert!(small.shortage(small.connections()).is_some());
        // Smaller maps of Services leave more, and larger ones less.
        let edge = under(GIB / 4).sized(8_192, 16_384, 8_192);
        assert_eq!(edge.percent, 12);
        assert_eq!(edge.shortage(edge.connections()), None);
        assert!(edge.connections() > UNDER_ANY_LIMIT);
        assert!(half.sized(65_536, 1 << 20, 65_536).connections() < room);
    }

    #[test]
    fn the_memory_is_that_of_the_kernels_file() {
        let text = "MemTotal:       16379252 kB\nMemFree:         1 kB\n";
        assert_eq!(total(text), Some(16_379_252 * 1_024));
        assert_eq!(total("MemFree: 1 kB"), None);
        assert!(Host::this().connections() > 0);
    }
}
