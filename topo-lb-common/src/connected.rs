//! `connected4` and `connected6`: what a connected socket dialled, kept in the socket's own
//! storage, so that it goes when the socket goes.
//!
//! It counts only while the socket's peer is [`endpoint`](Connected::endpoint): a socket that is
//! connected again elsewhere does not match, and is left alone.

use crate::address::{Frontend4, Frontend6};
use crate::backend::{Backend4, Backend6};
use crate::layout::layout;

layout! {
    /// Value of both.
    #[repr(C)]
    pub struct Connected<F, B> as Connected4<Frontend4, Backend4>, Connected6<Frontend6, Backend6> {
        /// The frontend that the application dialled.
        pub frontend: F,
        /// The endpoint that the connection went to.
        pub endpoint: B,
    }
}
