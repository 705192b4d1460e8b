//! Removing an entry of a map while programs write to it.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use aya_obj::generated::bpf_cmd::{
    self, BPF_MAP_DELETE_ELEM, BPF_MAP_LOOKUP_AND_DELETE_ELEM, BPF_MAP_LOOKUP_ELEM,
    BPF_MAP_UPDATE_ELEM,
};

use super::syscall::bpf;

/// `include/uapi/linux/bpf.h`: writes only if the key does not exist.
pub const BPF_NOEXIST: u64 = 1;
/// `include/linux/errno.h`: the kernel's answer to a command that the type of the map lacks.
const ENOTSUPP: i32 = 524;

/// Removes an entry of a hash map if it is `is_over`. A program that replaces the entry between the look and the
/// removal finds its own entry again: what was removed is looked at once more, and put back if it is not over.
///
/// Before 3e87f192b405, "bpf: Add lookup_and_delete_elem support to hashtab" (Linux 5.14), the kernel removes
/// without saying what. There a program may lose an entry that it writes between the two calls.
///
/// # Errors
/// The kernel refuses; that there is no entry is no error.
pub fn remove_if<K: bytemuck::Pod, V: bytemuck::Pod>(
    map: BorrowedFd<'_>,
    key: &K,
    is_over: impl Fn(&V) -> bool,
) -> io::Result<()> {
    let mut value = V::zeroed();
    let call = |command, value: Option<&mut V>| element(command, map, key, value);
    if !call(BPF_MAP_LOOKUP_ELEM, Some(&mut value))? || !is_over(&value) {
        return Ok(());
    }
    match call(BPF_MAP_LOOKUP_AND_DELETE_ELEM, Some(&mut value)) {
        Ok(true) if !is_over(&value) => call(BPF_MAP_UPDATE_ELEM, Some(&mut value)).map(drop),
        Err(error) if matches!(error.raw_os_error(), Some(ENOTSUPP | libc::EINVAL)) => {
            call(BPF_MAP_DELETE_ELEM, None).map(drop)
        }
        result => result.map(drop),
    }
}

/// A command about an element. Returns whether there is one; when it adds one, whether there was none.
fn element<K, V>(
    command: bpf_cmd,
    map: BorrowedFd<'_>,
    key: &K,
    value: Option<&mut V>,
) -> io::Result<bool> {
    let done = bpf(command, |attribute| {
        // SAFETY: all variants are integers, and all are zero.
        let element = unsafe { &mut attribute.__bindgen_anon_2 };
        element.map_fd = map.as_raw_fd() as u32;
        element.key = std::ptr::from_ref(key) as u64;
        element.__bindgen_anon_1.value = value.map_or(0, |value| std::ptr::from_mut(value) as u64);
        element.flags = if command == BPF_MAP_UPDATE_ELEM { BPF_NOEXIST } else { 0 };
    });
    match done {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EEXIST)) => {
            Ok(false)
        }
        done => done.map(|_| true),
    }
}
