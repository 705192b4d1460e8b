//! The stress test of records: what its writer puts into each record, and what its programs count.
//! The agent has neither.

/// Frontends per family.
pub const SERVICES: u32 = 64;
/// The port of every frontend.
pub const PORT: u16 = 4444;
/// Generations of a Service that differ.
pub const GENERATIONS: u32 = 1 << 9;

/// Number of endpoints in a generation: 1–9, so that some rows are in slots.
#[must_use]
pub const fn count(generation: u32) -> u32 {
    1 + generation % GENERATIONS % 9
}

/// The port of the endpoints of a generation.
#[must_use]
pub const fn port(generation: u32) -> u16 {
    1024 + (generation % GENERATIONS) as u16
}

/// Reads of one CPU: value of the map `reads`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Reads {
    /// All reads.
    pub reads: u64,
    /// Look-ups that found the record of another frontend, and were repeated.
    pub repeated: u64,
    /// Reads that found no frontend.
    pub absent: u64,
    /// Reads that found the record of another frontend each time.
    pub torn: u64,
    /// Reads of a record that is not of one generation of its frontend.
    pub wrong: u64,
}
