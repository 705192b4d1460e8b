//! Whether the kernel's connection tracking of this network namespace has room. Each connection from
//! outside has an entry there, and its packets are dropped without one.

use std::fs::read_to_string;

const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
const LIMIT: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
/// A heading, then a line of hexadecimal numbers for each CPU (`ct_cpu_seq_show`,
/// net/netfilter/nf_conntrack_standalone.c).
const STATISTICS: &str = "/proc/net/stat/nf_conntrack";
/// The heading of the column of packets that were dropped, for want of room or for other reasons.
const DROP: &str = "drop";

/// Connection tracking, as it is at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conntrack {
    /// Connections.
    pub count: u64,
    /// `net.netfilter.nf_conntrack_max`.
    pub limit: u64,
    /// Packets dropped since the namespace was made.
    pub dropped: u64,
}

impl Conntrack {
    /// Reads it; `None` where the kernel has no connection tracking, or does not tell.
    #[must_use]
    pub fn look() -> Option<Self> {
        let number = |path| read_to_string(path).ok()?.trim().parse().ok();
        let dropped = dropped(&read_to_string(STATISTICS).ok()?)?;
        Some(Self { count: number(COUNT)?, limit: number(LIMIT)?, dropped })
    }

    /// Why new connections are dropped, if they are: at most a twentieth is free. The kernel makes room
    /// by ending connections without an answer, so a full table alone is no fault.
    #[must_use]
    pub fn lack(&self, before: &Self) -> Option<String> {
        let is_full = self.count.saturating_mul(20) >= self.limit.saturating_mul(19);
        (is_full && self.dropped > before.dropped).then(|| {
            format!(
                "the kernel drops new connections, also those from outside, because its connection \
                 tracking is full: raise net.netfilter.nf_conntrack_max, which is {}",
                self.limit
            )
        })
    }
}

/// The sum of the column [`DROP`].
fn dropped(statistics: &str) -> Option<u64> {
    let mut lines = statistics.lines();
    let column = lines.next()?.split_whitespace().position(|heading| heading == DROP)?;
    let of_cpu = |line: &str| u64::from_str_radix(line.split_whitespace().nth(column)?, 16).ok();
    lines.map(of_cpu).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop
00000007  00000000 00000000 00000000 00000001 00000002 00000000 00000000 00000000 00000000 0000000a 00000009
00000007  00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000010 00000000
";

    #[test]
    fn the_packets_dropped_on_all_cpus_are_summed() {
        assert_eq!(dropped(TEXT), Some(26));
    }

    #[test]
    fn another_text_tells_nothing() {
        for text in ["", "entries\n1\n", "drop\nx\n", "entries drop\n1\n"] {
            assert_eq!(dropped(text), None, "{text:?}");
        }
    }

    #[test]
    fn connections_are_lost_if_it_is_full_and_drops_packets() {
        let before = Conntrack { count: 10, limit: 1_000, dropped: 5 };
        for (count, dropped, is_said) in [
            (950, 6, true),
            (1_001, 9, true),
            // Only connections without an answer made room.
            (1_000, 5, false),
            // Dropped for another reason.
            (949, 6, false),
        ] {
            let now = Conntrack { count, dropped, ..before };
            assert_eq!(now.lack(&before).is_some(), is_said, "{now:?}");
        }
    }
}
