//! Whether the kernel may give a socket of this network namespace a node port as its own.

use std::fs::read_to_string;
use std::ops::RangeInclusive;

/// `--service-node-port-range` of the API server, by default.
const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;

/// The first and the last node port that the kernel may give; `None` if there is none.
#[must_use]
pub fn node_ports() -> Option<(u16, u16)> {
    let read = |name| read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok();
    shared(&read("ip_local_port_range")?, &read("ip_local_reserved_ports")?)
}

/// The same by the values of `net.ipv4.ip_local_port_range` and `net.ipv4.ip_local_reserved_ports`.
fn shared(range: &str, reserved: &str) -> Option<(u16, u16)> {
    let mut ends = range.split_whitespace().map(|end| end.parse::<u16>().ok());
    let given = ends.next()??..=ends.next()??;
    let reserved: Vec<_> = reserved
        .trim()
        .split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.parse::<u16>().ok()?..=last.parse().ok()?)
        })
        .collect();
    let is_free = |port: &u16| {
        given.contains(port) && !reserved.iter().any(|reserved| reserved.contains(port))
    };
    let free: Vec<_> = NODE_PORTS.filter(is_free).collect();
    Some((*free.first()?, *free.last()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_ports_are_given_unless_they_are_out_of_range_or_reserved() {
        for (range, reserved, wanted) in [
            ("32768\t60999\n", "\n", None),
            ("1024\t65535\n", "\n", Some((30_000, 32_767))),
            ("30500\t60999\n", "\n", Some((30_500, 32_767))),
            ("1024\t65535\n", "30000-32767\n", None),
            ("1024\t65535\n", "8080,30000-32766\n", Some((32_767, 32_767))),
            ("1024\t65535\n", "30000-31000,31002-40000\n", Some((31_001, 31_001))),
            ("", "", None),
        ] {
            assert_eq!(shared(range, reserved), wanted, "{range} without {reserved}");
        }
    }
}
