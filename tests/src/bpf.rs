//! bpf(2) calls that aya lacks: tiny programs, pins of any kind, other load balancers' attachments.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Commands (include/uapi/linux/bpf.h, `enum bpf_cmd`).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Command {
    ProgramLoad = 5,
    Pin = 6,
    OpenPin = 7,
    Attach = 8,
    Detach = 9,
    ProgramById = 13,
    LinkCreate = 28,
}

/// `BPF_PROG_TYPE_SCHED_CLS`: programs of tc.
pub const CLASSIFIER: u32 = 3;
/// `BPF_PROG_TYPE_CGROUP_SOCK_ADDR`.
pub(crate) const SOCK_ADDR: u32 = 18;

/// Runs a command. `attribute` needs no alignment: the kernel copies it (a union bpf_attr is
/// aligned to 8 bytes). The targets of addresses in `attribute` must outlive the call.
pub(crate) fn call<const N: usize>(
    command: Command,
    mut attribute: [u32; N],
) -> io::Result<libc::c_long> {
    // SAFETY: the length is the attribute's, and what it points to outlives the call.
    let result = unsafe {
        let length = size_of_val(&attribute);
        libc::syscall(libc::SYS_bpf, command as libc::c_long, attribute.as_mut_ptr(), length)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Runs a command that returns a new descriptor.
pub(crate) fn open<const N: usize>(command: Command, attribute: [u32; N]) -> io::Result<OwnedFd> {
    let fd = call(command, attribute)?;
    // SAFETY: a new descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The low and the high half of an address.
fn halves<T: ?Sized>(address: *const T) -> [u32; 2] {
    let address = address.cast::<u8>() as u64;
    [address as u32, (address >> 32) as u32]
}

/// Opens any pin at `path`; aya's functions take every pin for the type that they expect.
pub(crate) fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let [low, high] = halves(path.as_ptr());
    open(Command::OpenPin, [low, high, 0, 0])
}

/// Pins a program or a link at `path`.
///
/// # Errors
/// The kernel refuses, for example because something is pinned there.
pub fn pin(object: &OwnedFd, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let [low, high] = halves(path.as_ptr());
    call(Command::Pin, [low, high, object.as_raw_fd() as u32, 0]).map(drop)
}

/// A number of `/proc/self/fdinfo` for an open program, map or link, by its name there.
pub(crate) fn fact(object: &OwnedFd, name: &str) -> io::Result<Option<u32>> {
    let facts = fs::read_to_string(format!("/proc/self/fdinfo/{}", object.as_raw_fd()))?;
    let value = facts.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(value.and_then(|value| value.trim().parse().ok()))
}

/// Loads a program of this type (`enum bpf_prog_type`) and name; some types need an attach type.
///
/// # Errors
/// The verifier refuses it, or a capability is missing.
///
/// # Panics
/// The name is longer than 15 bytes.
pub fn load(kind: u32, name: &str, code: &[u64], attach_type: u32) -> io::Result<OwnedFd> {
    let license = c"GPL";
    let mut bytes = [0; 16];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    let mut attribute = [0_u32; 18];
    attribute[..2].copy_from_slice(&[kind, code.len() as u32]);
    attribute[2..4].copy_from_slice(&halves(code.as_ptr()));
    attribute[4..6].copy_from_slice(&halves(license.as_ptr()));
    for (word, four) in attribute[12..16].iter_mut().zip(bytes.chunks_exact(4)) {
        *word = u32::from_ne_bytes(four.try_into().expect("four bytes"));
    }
    attribute[17] = attach_type;
    open(Command::ProgramLoad, attribute)
}

/// `struct bpf_insn` on a little-endian machine.
#[must_use]
pub fn instruction(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> u64 {
    let [low, high] = offset.to_le_bytes();
    let [a, b, c, d] = immediate.to_le_bytes();
    u64::from_le_bytes([code, source << 4 | destination, low, high, a, b, c, d])
}
