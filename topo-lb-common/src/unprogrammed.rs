//! `unprogrammed`: Services that lack room in the maps, for people. No program reads it.

/// Bytes of a Service's name: two DNS labels (RFC 1123) of 63, `/`, and a final zero.
pub const TEXT_LENGTH: usize = 128;

/// [`Unprogrammed::lacks`]: room for frontends or Service ports (`--max-services`).
pub const LACKS_SERVICES: u32 = 1;
/// [`Unprogrammed::lacks`]: room for endpoints (`--max-endpoints`).
pub const LACKS_ENDPOINTS: u32 = 2;
/// [`Unprogrammed::lacks`]: the Service alone has too many frontends or ports (`--max-services`).
pub const TOO_MANY_FRONTENDS: u32 = 3;
/// [`Unprogrammed::lacks`]: the Service alone has too many endpoints (`--max-endpoints`).
pub const TOO_MANY_ENDPOINTS: u32 = 4;

/// With [`Unprogrammed::lacks`]: it uses as many of its endpoints as fit inline. With none of these
/// five, all ports of the Service are left to kube-proxy.
pub const NARROWED: u32 = 1 << 8;
/// With [`Unprogrammed::lacks`]: it keeps its last endpoints, which may be out of date.
pub const LAST_GOOD: u32 = 2 << 8;
/// With [`Unprogrammed::lacks`]: it is refused: its policy is strict.
pub const REFUSED: u32 = 3 << 8;
/// With [`Unprogrammed::lacks`]: it is served by nobody, as no kube-proxy is beside.
pub const NOBODY: u32 = 4 << 8;
/// With [`Unprogrammed::lacks`]: it is served, but direct dials of its endpoints are not refused.
pub const DIRECT_DIALS: u32 = 5 << 8;

/// Value of `unprogrammed`; the keys are consecutive numbers from zero, in the order of the names.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Unprogrammed {
    /// The room that the Service lacks: [`LACKS_SERVICES`], [`LACKS_ENDPOINTS`], [`TOO_MANY_FRONTENDS`]
    /// or [`TOO_MANY_ENDPOINTS`]. Added to it, what its connections do meanwhile: nothing, [`NARROWED`],
    /// [`LAST_GOOD`], [`REFUSED`], [`NOBODY`] or [`DIRECT_DIALS`].
    pub lacks: u32,
    /// `namespace/name`, zero-padded UTF-8.
    pub service: [u8; TEXT_LENGTH],
}
