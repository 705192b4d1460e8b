//! Inspects what is attached, which foreign programs run before it, and whether it works.

pub mod attached;
pub mod direct_return;
pub mod effective;
pub mod in_front;
pub mod overridden;
mod pace;
pub mod self_probe;
pub mod tolerated;
pub mod trial;
