//! `usage`: how full the tables of connections are, of which programs cannot ask the kernel.

/// Value of `usage`, of which there is one for each address family: IPv4, then IPv6. The programs add and
/// subtract, and do not see which entries the kernel evicts or which expire; the agent corrects that.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Usage {
    /// Connections in `half_open4/6`. Less than zero for a moment where two CPUs subtract one.
    pub half_open: i64,
    /// Open connections in `connections4/6`; as above.
    pub open: i64,
}

impl Usage {
    /// Whether the table of half-open connections is so full that more openings are to replace others: half of
    /// it is left. `room`: connections that fit into it.
    #[inline(always)]
    #[must_use]
    pub const fn is_under_pressure(half_open: i64, room: u32) -> bool {
        half_open >= room as i64 / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_begins_at_half_of_the_room() {
        let room = 8_192;
        assert!(!Usage::is_under_pressure(4_095, room));
        assert!(Usage::is_under_pressure(4_096, room));
        assert!(!Usage::is_under_pressure(-1, room));
    }
}
