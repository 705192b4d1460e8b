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

/// Connections that a device may open before they are answered: 1,024 at once and 256 a second.
///
/// An opening takes two entries of `half_open4/6`. These hold 8,192 openings, and at least half of
/// them where many CPUs keep free entries for themselves. A device that opens as much as it may
/// evicts the opening of another device after (8,192 - 1,024) / 256 = 28 s, or 12 s in the worst
/// case; a client gives up waiting for a SYN-ACK or sends the SYN again before.
pub const OPENINGS: Limit = Limit { interval: SECOND / 256, burst: 1_024 };

/// Refused packets of a device that are answered: 1,000 a second. The kernel's own limit for ICMP
/// allows as many for all devices together (`icmp_msgs_per_sec`).
pub const REFUSALS: Limit = Limit { interval: SECOND / 1_000, burst: 500 };

/// A device may have this part of the established connections for which `connections4` has room: a
/// quarter of 65,536 by default, 16,384, of both address families together. So three quarters are
/// left to others in either map, whatever one device opens; four devices that do so at once can fill
/// a map.
pub const SHARE: u32 = 4;

/// Value of `quota`, of which there is one. Only the agent writes it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Quota {
    /// Time (`CLOCK_MONOTONIC`, nanoseconds) until which the quota holds. Without an agent nobody
    /// subtracts connections that are over: then there is no limit.
    pub until: u64,
    /// Most established connections of a device.
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

    /// Whether a device with so many established connections may open another one at `now`.
    #[inline(always)]
    #[must_use]
    pub const fn allows(&self, connections: u32, now: u64) -> bool {
        connections < self.connections || now >= self.until
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

    /// Gives a token back.
    #[inline(always)]
    pub const fn give_back(&mut self, limit: Limit) {
        self.full_at = self.full_at.saturating_sub(limit.interval);
    }
}

/// The key in `devices` of a client outside of this node with this address (network order, IPv6
/// [`folded`](crate::reply_filter::folded)): above every interface index. Of the clients outside, one in
/// 1,024 shares it.
#[inline(always)]
#[must_use]
pub const fn outside(address: u32) -> u32 {
    1 << 31 | crate::reply_filter::mixed(address, 0) >> 22
}

/// Value of `devices`; the key is the device's interface index, or [`outside`]. An entry that is missing means full
/// buckets.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Device {
    /// [`OPENINGS`].
    pub openings: Bucket,
    /// [`REFUSALS`].
    pub refusals: Bucket,
    /// Established connections, of both address families. The programs add those that they
    /// establish, and CPUs that do so at the same moment may add one together; the agent subtracts
    /// those that are over, and may count those twice that are established meanwhile.
    pub connections: u32,
    /// Zero.
    pub reserved: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::HALF_OPEN;

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
    fn openings_that_are_answered_are_not_limited() {
        let mut bucket = Bucket::default();
        for _ in 0..100_000 {
            assert!(bucket.take(OPENINGS, NOW));
            bucket.give_back(OPENINGS);
        }
        bucket.give_back(OPENINGS);
        let taken = (0..10_000).filter(|_| bucket.take(OPENINGS, NOW)).count() as u64;
        assert_eq!(taken, OPENINGS.burst);
    }

    #[test]
    fn an_opening_outlives_what_another_device_can_open() {
        let patience = 10 * SECOND;
        let others = OPENINGS.burst + patience / OPENINGS.interval;
        assert!(2 * others < u64::from(HALF_OPEN) / 2, "{others} openings of another device");
    }
}
