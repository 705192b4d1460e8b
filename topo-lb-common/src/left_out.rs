//! `left_out`: Services that have no room in the maps, for people to look at. No program reads it.

/// Bytes of a Service's name: namespace (63) `/` name (63), and a closing zero. Each is a DNS label
/// (RFC 1123).
pub const TEXT_LENGTH: usize = 128;

/// [`LeftOut::lacks`]: room for frontends or Service ports (`--max-services`).
pub const LACKS_SERVICES: u32 = 1;
/// [`LeftOut::lacks`]: room for endpoints (`--max-endpoints`).
pub const LACKS_ENDPOINTS: u32 = 2;

/// Value of `left_out`; the keys are numbers from zero on, in the order of the names. A Service is
/// left out whole, with all its ports.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct LeftOut {
    /// What there was too little of: [`LACKS_SERVICES`] or [`LACKS_ENDPOINTS`].
    pub lacks: u32,
    /// `namespace/name`, zero-padded UTF-8.
    pub service: [u8; TEXT_LENGTH],
}
