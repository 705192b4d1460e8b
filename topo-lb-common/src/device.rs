//! `devices`: what each device may still do, so that no client uses up what others need.

const SECOND: u64 = 1_000_000_000;

/// Rate and burst of a [`Bucket`].
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Nanoseconds until a token comes back by itself.
    pub interval: u64,
    /// Most tokens in the bucket.
    pub burst: u64,
}

/// Refused packets of a device that are answered: 1,000 a second. The kernel's own limit for ICMP
/// allows as many for all devices together (`icmp_msgs_per_sec`).
pub const REFUSALS: Limit = Limit { interval: SECOND / 1_000, burst: 500 };

/// A device may have this part of the open connections for which `connections4` has room, of both
/// address families together. So three quarters are left to others in either map, whatever one device
/// opens; four devices that do so at once can fill a map.
pub const SHARE: u32 = 4;

/// Value of `quota`, of which there is one. Only the agent writes it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Quota {
    /// Time (`CLOCK_MONOTONIC`, nanoseconds) until which the quota holds. Without an agent nobody
    /// subtracts connections that are over: then there is no limit.
    pub until: u64,
    /// Most open connections of a device: a [`SHARE`] of all.
    pub connections: u32,
    /// Time (`CLOCK_MONOTONIC`, units of 2^30 ns = 1.07 s) until which connections stay half-open: an
    /// agent replaces the tables of established ones, and programs of both sets find only half-open
    /// ones. An agent that crashes meanwhile leaves a time that passes.
    pub half_open_until: u32,
}

/// The unit of [`Quota::half_open_until`]: 2^30 ns.
pub const HALF_OPEN_UNIT: u32 = 30;

impl Quota {
    /// Whether no connection may be moved to the established ones at `now`.
    #[inline(always)]
    #[must_use]
    pub const fn keeps_half_open(&self, now: u64) -> bool {
        now >> HALF_OPEN_UNIT < self.half_open_until as u64
    }

    /// Whether a device with so many open connections may open another one at `now`.
    #[inline(always)]
    #[must_use]
    pub const fn allows(&self, connections: u32, now: u64) -> bool {
        connections < self.connections || !self.holds(now)
    }

    /// Whether an agent corrects the counts at `now`. Without one they only grow, and limit nothing.
    #[inline(always)]
    #[must_use]
    pub const fn holds(&self, now: u64) -> bool {
        now < self.until
    }

    /// Whether a table with so many open connections has no room for those of datagrams at `now`: nothing
    /// proves their source, so they get half of it.
    #[inline(always)]
    #[must_use]
    pub const fn is_half_full(&self, open: i64, now: u64) -> bool {
        open >= self.connections as i64 * SHARE as i64 / 2 && self.holds(now)
    }

    /// Whether a table with so many open connections is full at `now`.
    #[inline(always)]
    #[must_use]
    pub const fn is_full(&self, open: i64, now: u64) -> bool {
        open >= self.connections as i64 * SHARE as i64 && self.holds(now)
    }
}

/// A token bucket. CPUs that use it at the same moment may take one token together.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Bucket {
    /// Time (`CLOCK_MONOTONIC`, nanoseconds) at which the bucket is full again.
    pub full_at: u64,
}

impl Bucket {
    /// Takes a token out of the bucket at `now`. Returns whether there was one.
    #[inline(always)]
    pub const fn take(&mut self, limit: Limit, now: u64) -> bool {
        let full_at = if self.full_at < now { now } else { self.full_at };
        if full_at - now > limit.interval * (limit.burst - 1) {
            return false;
        }
        self.full_at = full_at + limit.interval;
        true
    }
}

/// A number that cannot be computed without the seed. The steps are those that end MurmurHash3
/// (fmix64); the seed comes in twice.
#[inline(always)]
#[must_use]
pub const fn seeded(seed: u64, number: u64) -> u64 {
    let mut hash = number ^ seed;
    hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ hash >> 33).wrapping_add(seed.rotate_left(32));
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 33
}

/// What tells clients outside apart: an IPv4 address, or the first half of an IPv6 address, of which a
/// host has the other half for itself (/64). The first byte is the lowest.
#[inline(always)]
#[must_use]
pub const fn word(address: &[u8]) -> u64 {
    let mut word = 0;
    let mut at = 0;
    while at < address.len() && at < 8 {
        word |= (address[at] as u64) << (8 * at);
        at += 1;
    }
    word
}

/// Keys in `devices` that clients outside share by a hash.
pub const CLIENTS: u32 = 1 << 10;

/// The key in `devices` of a client outside of this node with this [`word`]: above every interface index.
/// Of the clients outside, one in [`CLIENTS`] shares it.
#[inline(always)]
#[must_use]
pub const fn outside(seed: u64, word: u64) -> u32 {
    1 << 31 | (seeded(seed, word) >> 32) as u32 & (CLIENTS - 1)
}

/// Value of `devices`; the key is the device's interface index, or [`outside`]. An entry that is missing means full
/// buckets.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Device {
    /// [`REFUSALS`].
    pub refusals: Bucket,
    /// Open TCP connections, of both address families. The programs add those that they establish and
    /// subtract those that close, and CPUs that do so at the same moment may count one together; the
    /// agent subtracts those that expire, and may count those twice that are established meanwhile.
    pub connections: u32,
    /// The same for established flows of other protocols. Anybody may send datagrams in a client's name: they
    /// take no place of its connections.
    pub flows: u32,
}

/// Whether a key in `devices` is one of [`outside`].
#[inline(always)]
#[must_use]
pub const fn is_outside(key: u32) -> bool {
    key >> 31 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 5_000 * SECOND;

    #[test]
    fn a_bucket_gives_a_burst_and_then_its_rate() {
        let mut bucket = Bucket::default();
        let mut taken = |now| (0..1_000).filter(|_| bucket.take(REFUSALS, now)).count();
        assert_eq!(taken(NOW), 500);
        assert_eq!(taken(NOW + SECOND / 100), 10);
        assert_eq!(taken(NOW + 60 * SECOND), 500);
    }

    #[test]
    fn a_quota_holds_while_an_agent_counts() {
        let quota = Quota { until: NOW, connections: 3, half_open_until: 0 };
        assert!(quota.allows(2, NOW - 1));
        assert!(!quota.allows(3, NOW - 1));
        assert!(quota.allows(3, NOW));
        assert!(Quota::default().allows(u32::MAX, 0));
    }

    #[test]
    fn connections_stay_half_open_for_a_time() {
        let quota = Quota { half_open_until: 8, ..Quota::default() };
        assert!(quota.keeps_half_open((8 << HALF_OPEN_UNIT) - 1));
        assert!(!quota.keeps_half_open(8 << HALF_OPEN_UNIT));
        assert!(!Quota::default().keeps_half_open(0));
    }

    #[test]
    fn a_table_is_full_while_an_agent_counts() {
        let quota = Quota { until: NOW, connections: 3, half_open_until: 0 };
        assert!(!quota.is_full(11, NOW - 1));
        assert!(quota.is_full(12, NOW - 1));
        assert!(!quota.is_full(12, NOW));
        assert!(!quota.is_full(-1, NOW - 1));
        assert!(!quota.is_half_full(5, NOW - 1));
        assert!(quota.is_half_full(6, NOW - 1));
        assert!(!quota.is_half_full(6, NOW));
    }

    #[test]
    fn a_host_has_one_word_and_the_seed_decides_with_whom_it_shares_a_key() {
        let mut host = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1];
        let first = word(&host);
        host[15] = 9;
        assert_eq!(word(&host), first);
        host[7] = 2;
        assert_ne!(word(&host), first);
        assert_eq!(word(&[1, 2, 3, 4]), 0x0403_0201);
        let together =
            |seed| (1..100_000).filter(|other| outside(seed, *other) == outside(seed, 0)).collect();
        let [one, other]: [Vec<u64>; 2] = [together(1), together(2)];
        assert!((50..200).contains(&one.len()), "{}", one.len());
        assert!(one.iter().filter(|client| other.contains(client)).count() < 10);
    }
}
