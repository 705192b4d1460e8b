//! Reading and writing many entries of a map by one call of bpf(2), which aya lacks.

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use aya_obj::generated::{bpf_attr, bpf_cmd};

use super::syscall::call;

/// Adds or replaces entries of a map (aa2e93b8e58e, "bpf: Add generic support for update and delete
/// batch ops", Linux 5.6). Returns how many were written, from the first on: all of them, or those
/// before the first failure.
///
/// # Errors
/// The first write fails.
pub fn update_batch<K: bytemuck::Pod, V: bytemuck::Pod>(
    map: BorrowedFd<'_>,
    keys: &[K],
    values: &[V],
) -> io::Result<usize> {
    assert_eq!(keys.len(), values.len());
    let mut attribute = batch(map, keys.as_ptr(), values.as_ptr(), keys.len());
    let result = call(bpf_cmd::BPF_MAP_UPDATE_BATCH, &mut attribute);
    let error = io::Error::last_os_error();
    // SAFETY: the variant that the command fills; an integer. It is the number of writes, unless the
    // kernel refused the whole call.
    match unsafe { attribute.batch.count } as usize {
        done if result >= 0 || done > 0 && done < keys.len() => Ok(done),
        _ => Err(error),
    }
}

/// Reads entries of a hash map, from the `place` on where the last call ended; zero: from the first
/// on. Returns how many were read, and the place of the next call; `None` after the last entry
/// (057996380a42, "bpf: Add batch ops to all htab bpf map", Linux 5.6). Of an array, `place` is the index before the
/// first one.
///
/// # Errors
/// The kernel refuses, or the map has more entries of one hash than there is room for.
pub fn lookup_batch<K: bytemuck::Pod, V: bytemuck::Pod>(
    map: BorrowedFd<'_>,
    place: Option<u32>,
    keys: &mut [K],
    values: &mut [V],
) -> io::Result<(usize, Option<u32>)> {
    assert_eq!(keys.len(), values.len());
    let (from, mut to) = (place.unwrap_or(0), 0_u32);
    let mut attribute = batch(map, keys.as_mut_ptr(), values.as_mut_ptr(), keys.len());
    attribute.batch.in_batch = if place.is_some() { &raw const from as u64 } else { 0 };
    attribute.batch.out_batch = &raw mut to as u64;
    let result = call(bpf_cmd::BPF_MAP_LOOKUP_BATCH, &mut attribute);
    let error = io::Error::last_os_error();
    // SAFETY: the variant that the command fills; an integer.
    let read = unsafe { attribute.batch.count } as usize;
    match error.raw_os_error() {
        _ if result >= 0 => Ok((read, Some(to))),
        Some(libc::ENOENT) => Ok((read, None)),
        _ => Err(error),
    }
}

/// What both commands need.
fn batch<K, V>(map: BorrowedFd<'_>, keys: *const K, values: *const V, count: usize) -> bpf_attr {
    // SAFETY: all variants are integers: zero is a value of each.
    let mut attribute: bpf_attr = unsafe { zeroed() };
    attribute.batch.keys = keys as u64;
    attribute.batch.values = values as u64;
    attribute.batch.count = count as u32;
    attribute.batch.map_fd = map.as_raw_fd() as u32;
    attribute
}
