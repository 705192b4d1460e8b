//! Objects of a cluster, as streams of events: from an API server, from files, from the saved state; and
//! the custom resources.
//!
//! It must never know the kernel, nor what becomes of an object: it hands out updates of
//! `topo_lb_core::cluster`, and imports no other crate of the workspace.
//!
//! The door: [`source::Event`] is what each source sends; [`source::kube::follow`] watches an API server,
//! [`source::file::follow`] a folder, and [`source::saved`] starts without either. [`source::object`] reads
//! the objects of all of them, and [`crd`] has the schemas of the custom resources.

pub mod crd;
pub mod evacuation;
pub mod heap;
pub mod server_clock;
pub mod source;
