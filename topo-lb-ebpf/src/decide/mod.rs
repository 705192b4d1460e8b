//! What hooks of sockets and of packets decide alike: whether an address is a frontend, which endpoint a new
//! connection gets, and what a tracer is told of it. Its files use only the folder `base`.

pub(crate) mod affinity;
pub(crate) mod decision;
pub(crate) mod frontend_filter;
#[cfg(feature = "log")]
pub(crate) mod log;
pub(crate) mod records;
pub(crate) mod resolve;
pub(crate) mod trace;
