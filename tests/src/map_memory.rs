//! The memory of maps, as the kernel accounts for it.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use aya::maps::MapData;
use fs_err as fs;

/// Bytes of a pinned map: what is allocated with it, and of entries that come later what the kernel expects.
///
/// # Errors
/// It is no map, or the kernel tells nothing of its memory.
pub fn of(pin: &Path) -> Result<u64> {
    let map = MapData::from_pin(pin)?;
    let facts = fs::read_to_string(format!("/proc/self/fdinfo/{}", map.fd().as_fd().as_raw_fd()))?;
    let memory = facts.lines().find_map(|line| line.strip_prefix("memlock:"));
    let memory =
        memory.with_context(|| format!("the kernel tells no memory of {}", pin.display()))?;
    Ok(memory.trim().parse()?)
}
