//! `usage`: how full the tables of connections are, of which programs cannot ask the kernel.

/// Value of `usage`, of which there is one for each address family: IPv4, then IPv6. The programs add and
/// subtract, and do not see which entries expire; the agent removes those, and corrects that.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Usage {
    /// Connections in `half_open4/6`. Less than zero for a moment where two CPUs subtract one.
    pub half_open: i64,
    /// Open connections in `connections4/6`; as above.
    pub open: i64,
}
