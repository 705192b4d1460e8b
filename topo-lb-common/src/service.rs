//! The value of `services4` and `services6`: all for a connection, with up to [`INLINE`] endpoints.
//!
//! A map update copies the value with plain stores, and the kernel may reuse a deleted element for
//! another key while a program still has a pointer to it: so a reader may see a torn value. Hence
//! the stamp: frontend and generation at the head, the generation again at the tail. The kernel
//! copies from head to tail, and the reader reads from tail to head. If both generations are equal
//! and the frontend is the right one, the value is from one write. docs/internals.md says what this
//! relies on.

use crate::address::{Frontend4, Frontend6};
use crate::backend::{Backend4, Backend6};
use crate::selection::{INLINE, Selection};

/// An IPv4 frontend's Service.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Service4 {
    /// Number of the write that made this value; never zero.
    pub generation: u32,
    /// Index of the Service port, in `counters`, `names`, `members4` and `affinity4`.
    pub service: u32,
    /// The key again: it shows if the kernel reused the element.
    pub frontend: Frontend4,
    /// How to choose.
    pub selection: Selection,
    /// Session affinity in seconds; zero for none.
    pub affinity_seconds: u32,
    /// Zero.
    pub reserved: u32,
    /// The endpoints, if [`SLOTTED`](crate::selection::SLOTTED) is not set.
    pub endpoints: [Backend4; INLINE],
    /// Zero.
    pub reserved_tail: u32,
    /// [`generation`](Self::generation) again.
    pub generation_tail: u32,
}

/// An IPv6 frontend's Service; as [`Service4`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Service6 {
    /// Number of the write that made this value; never zero.
    pub generation: u32,
    /// Index of the Service port, in `counters`, `names`, `members6` and `affinity6`.
    pub service: u32,
    /// The key again: it shows if the kernel reused the element.
    pub frontend: Frontend6,
    /// How to choose.
    pub selection: Selection,
    /// Session affinity in seconds; zero for none.
    pub affinity_seconds: u32,
    /// The endpoints, if [`SLOTTED`](crate::selection::SLOTTED) is not set.
    pub endpoints: [Backend6; INLINE],
    /// [`generation`](Self::generation) again.
    pub generation_tail: u32,
}

const _: () = {
    assert!(size_of::<Frontend4>() == 8);
    assert!(size_of::<Service4>() == 112);
    assert!(core::mem::offset_of!(Service4, endpoints) % 8 == 0);
    assert!(size_of::<Service6>() == 212);
};
