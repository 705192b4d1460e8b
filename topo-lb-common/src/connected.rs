//! `connected4` and `connected6`: what a connected socket dialled, in the socket's own storage,
//! which the kernel frees with the socket.
//!
//! It is valid only while the socket's peer is [`endpoint`](Connected::endpoint). A socket that was
//! connected to another address since then does not match, and stays untouched.

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
