//! Objects of a cluster, as streams of events: from an API server, from files, from the saved state; and
//! the custom resources.
//!
//! It must never know the kernel, nor what becomes of an object: it hands out updates of
//! `topo_lb_core::cluster`.
//!
//! The door: [`source::kube::follow`], [`source::file::follow`], [`source::saved`]; [`crd`] has the schemas.

pub mod crd;
pub mod heap;
pub mod source;
