//! Grace periods: waits until all running programs have ended.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::OnceLock;

use super::syscall::{create_map, update};
use aya_obj::generated::bpf_map_type;

/// An array with one element, which is a map, and that map.
struct Maps {
    outer: OwnedFd,
    inner: OwnedFd,
}

impl Maps {
    fn make() -> io::Result<Self> {
        let inner = create_map(bpf_map_type::BPF_MAP_TYPE_ARRAY, None)?;
        let outer = create_map(bpf_map_type::BPF_MAP_TYPE_ARRAY_OF_MAPS, Some(inner.as_fd()))?;
        Ok(Self { outer, inner })
    }
}

/// Waits until every program that is running now has ended: some milliseconds.
///
/// # Errors
/// The kernel refuses.
pub fn wait() -> io::Result<()> {
    static MAPS: OnceLock<Maps> = OnceLock::new();
    let maps = match MAPS.get() {
        Some(maps) => maps,
        None => {
            let maps = Maps::make()?;
            MAPS.get_or_init(|| maps)
        }
    };
    // The kernel replaces an inner map, here by itself, and then waits for all programs that may
    // still use the old one: `maybe_wait_bpf_programs` calls synchronize_rcu() (1ae80cf31938, "bpf:
    // wait for running BPF programs when updating map-in-map", Linux 4.20). Unlike membarrier(2), it
    // also waits with one online CPU and with `nohz_full`.
    update(maps.outer.as_fd(), maps.inner.as_fd())
}
