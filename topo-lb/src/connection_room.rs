//! How many connections of tc a node has room for, unless `--max-connections` says so.

use std::fs;

use topo_lb_common::maps::{DEFAULT_HALF_OPEN, closed, entries};

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
/// The kernel's memory for a half-open connection of each family, in bytes: two entries each, four places, and three keys
/// in queues, of 20 and 44.
const HALF_OPEN: u64 = 2 * (ENTRY4 + ENTRY6) + 2 * 4 * PLACE + 3 * 64;

/// The room per address family on a node with so many CPUs and so much memory, in bytes.
#[must_use]
pub fn connections(cpus: u32, memory: u64) -> u32 {
    let wanted = LEAST.max(cpus.saturating_mul(PER_CPU)).min(MOST);
    // Fewer by an eighth each time, so that the number does not follow each page of memory.
    std::iter::successors(Some(wanted), |room| Some(room - room / 8))
        .find(|room| bytes(*room) <= memory / PART || *room < 1_024)
        .unwrap_or(wanted)
}

/// The memory of full tables of both address families, in bytes.
#[must_use]
pub fn bytes(connections: u32) -> u64 {
    let most = u64::from(entries(connections));
    most * (ENTRY4 + ENTRY6)
        + 2 * most.next_power_of_two() * PLACE
        + u64::from(closed(connections)) * 64
}

/// The room for half-open connections per address family on a node with so much memory, in bytes. It does not
/// follow `--max-connections`: agents with another one share the tables while one replaces the other.
#[must_use]
pub fn half_open(memory: u64) -> u32 {
    std::iter::successors(Some(MOST_HALF_OPEN), |room| Some(room / 2))
        .find(|room| {
            let bytes = u64::from(*room) * HALF_OPEN;
            bytes <= memory / HALF_OPEN_PART || *room <= DEFAULT_HALF_OPEN
        })
        .unwrap_or(DEFAULT_HALF_OPEN)
}

/// The room for half-open connections on this node.
#[must_use]
pub fn half_open_of_this_node() -> u32 {
    half_open(memory_of_this_node())
}

/// The room on this node.
#[must_use]
pub fn of_this_node() -> u32 {
    // SAFETY: no pointer is passed.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    connections(u32::try_from(cpus).unwrap_or(1), memory_of_this_node())
}

/// In bytes. Where the kernel does not say it, this is any node.
fn memory_of_this_node() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").ok();
    text.and_then(|text| total(&text)).unwrap_or(u64::MAX)
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
            assert_eq!(connections(cpus, memory * GIB), wanted, "{cpus} CPUs, {memory} GiB");
        }
        for (cpus, memory) in [(1, GIB / 2), (2, GIB), (64, GIB), (64, 32 * GIB)] {
            let room = connections(cpus, memory);
            assert!(bytes(room) <= memory / PART, "{room} for {cpus} CPUs, {memory} bytes");
            assert!(bytes(room) * 3 > memory / PART * 2, "{room}: less than there is memory for");
        }
        assert!(connections(1, 0) > 0);
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
            assert_eq!(half_open(memory), wanted, "{memory} bytes");
        }
    }

    #[test]
    fn the_memory_is_that_of_the_kernels_file() {
        let text = "MemTotal:       16379252 kB\nMemFree:         1 kB\n";
        assert_eq!(total(text), Some(16_379_252 * 1_024));
        assert_eq!(total("MemFree: 1 kB"), None);
        assert!(of_this_node() > 0);
    }
}
