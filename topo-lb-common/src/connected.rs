//! `connected4` and `connected6`: what a connected socket dialled, kept in the socket's own
//! storage, so that it goes when the socket goes.
//!
//! It counts only while the socket's peer is [`endpoint`](Connected4::endpoint): a socket that is
//! connected again elsewhere does not match, and is left alone.

use crate::address::{Frontend4, Frontend6};
use crate::backend::{Backend4, Backend6};

/// Value of `connected4`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Connected4 {
    /// What the application dialled.
    pub frontend: Frontend4,
    /// Where the connection went.
    pub endpoint: Backend4,
}

/// Value of `connected6`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Connected6 {
    /// What the application dialled.
    pub frontend: Frontend6,
    /// Where the connection went.
    pub endpoint: Backend6,
}
