//! bpf(2) where aya has no call for it: attaching to a cgroup with flags, replacing the program of a
//! link, reading which cgroup a link is on, asking which programs run in a cgroup, loading a program
//! of a few instructions to see whether the kernel takes it.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

// Commands of include/uapi/linux/bpf.h, enum bpf_cmd.
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_OBJ_PIN: libc::c_long = 6;
const BPF_OBJ_GET: libc::c_long = 7;
const BPF_PROG_GET_NEXT_ID: libc::c_long = 11;
const BPF_PROG_GET_FD_BY_ID: libc::c_long = 13;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_PROG_QUERY: libc::c_long = 16;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_LINK_UPDATE: libc::c_long = 29;

/// Attaches before the programs that are on the cgroup already (120933984460, Linux 6.17).
pub(crate) const BPF_F_BEFORE: u32 = 1 << 3;
/// Attaches among the programs that run before all others, a cgroup's before its children's
/// (4b82b181a26c, Linux 6.15).
pub(crate) const BPF_F_PREORDER: u32 = 1 << 6;
/// Asks for the programs that run in a cgroup, with those of the cgroups above.
const BPF_F_QUERY_EFFECTIVE: u32 = 1;
/// Programs that one answer has room for at first.
const FEW_PROGRAMS: usize = 32;

/// A variant of `union bpf_attr`, as far as the kernel must know it: the kernel takes what is
/// shorter than its own, and takes the rest as zero.
///
/// # Safety
///
/// The type is `repr(C)`, without padding, and laid out as the kernel's variant is.
unsafe trait Attribute {}

#[repr(C)]
struct Object {
    path: u64,
    fd: u32,
    flags: u32,
}
// SAFETY: the BPF_OBJ_* variant.
unsafe impl Attribute for Object {}

#[repr(C)]
struct ById {
    id: u32,
    next_id: u32,
    flags: u32,
}
// SAFETY: the BPF_*_GET_*_ID variant.
unsafe impl Attribute for ById {}

#[repr(C)]
struct InfoByFd {
    fd: u32,
    length: u32,
    info: u64,
}
// SAFETY: the BPF_OBJ_GET_INFO_BY_FD variant.
unsafe impl Attribute for InfoByFd {}

#[repr(C)]
struct LinkCreate {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
}
// SAFETY: the head of the BPF_LINK_CREATE variant, as Linux 5.7 has it.
unsafe impl Attribute for LinkCreate {}

#[repr(C)]
struct Query {
    target: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    programs: u64,
    count: u32,
    reserved: u32,
}
// SAFETY: the head of the BPF_PROG_QUERY variant, as Linux 4.15 has it.
unsafe impl Attribute for Query {}

#[repr(C)]
struct LinkUpdate {
    link: u32,
    program: u32,
    flags: u32,
    old_program: u32,
}
// SAFETY: the BPF_LINK_UPDATE variant.
unsafe impl Attribute for LinkUpdate {}

#[repr(C)]
struct ProgramLoad {
    program_type: u32,
    instructions: u32,
    code: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    device: u32,
    expected_attach_type: u32,
}
// SAFETY: the head of the BPF_PROG_LOAD variant, as Linux 4.17 has it.
unsafe impl Attribute for ProgramLoad {}

/// `struct bpf_link_info` of a cgroup link.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CgroupLinkInfo {
    /// `enum bpf_link_type`.
    pub(crate) link_type: u32,
    pub(crate) id: u32,
    pub(crate) program_id: u32,
    padding: u32,
    /// Zero when the cgroup is gone.
    pub(crate) cgroup_id: u64,
    /// `enum bpf_attach_type`.
    pub(crate) attach_type: u32,
    tail: u32,
}

/// `struct bpf_link_info` of a tcx link.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TcxLinkInfo {
    /// `enum bpf_link_type`.
    pub(crate) link_type: u32,
    pub(crate) id: u32,
    pub(crate) program_id: u32,
    padding: u32,
    /// Zero when the device is gone.
    pub(crate) device: u32,
    /// `enum bpf_attach_type`.
    pub(crate) attach_type: u32,
}

/// `BPF_LINK_TYPE_TCX`.
pub(crate) const LINK_TYPE_TCX: u32 = 11;
/// `BPF_LINK_TYPE_CGROUP`.
pub(crate) const LINK_TYPE_CGROUP: u32 = 3;
/// `BPF_PROG_TYPE_SCHED_CLS`.
const PROGRAM_TYPE_CLASSIFIER: u32 = 3;
/// `BPF_PROG_TYPE_CGROUP_SOCK_ADDR`.
pub(crate) const PROGRAM_TYPE_SOCK_ADDR: u32 = 18;

/// The head of `struct bpf_prog_info`, up to the name.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProgramHead {
    /// `enum bpf_prog_type`.
    pub(crate) program_type: u32,
    pub(crate) id: u32,
    rest: [u64; 7],
    /// Closed by zeros.
    pub(crate) name: [u8; 16],
}

/// One instruction, as `struct bpf_insn` is laid out.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Instruction {
    pub(crate) code: u8,
    pub(crate) registers: u8,
    pub(crate) offset: i16,
    pub(crate) immediate: i32,
}

fn bpf<A: Attribute>(command: libc::c_long, attribute: &mut A) -> io::Result<libc::c_long> {
    // SAFETY: the attribute is laid out as the command wants it (by its trait), as long as said,
    // and every address in it outlives the call (by the callers below).
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attribute), size_of::<A>())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(fd: libc::c_long) -> OwnedFd {
    // SAFETY: the commands that call this return a new descriptor, which nobody else owns.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

/// Opens what is pinned at `path`.
pub(crate) fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attribute = Object { path: path.as_ptr() as u64, fd: 0, flags: 0 };
    bpf(BPF_OBJ_GET, &mut attribute).map(owned)
}

/// Pins what `fd` is at `path`.
pub(crate) fn pin(fd: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attribute = Object { path: path.as_ptr() as u64, fd: fd.as_raw_fd() as u32, flags: 0 };
    bpf(BPF_OBJ_PIN, &mut attribute).map(drop)
}

/// Reads what a cgroup link is; of another kind of link only the first fields mean anything.
pub(crate) fn link_info(link: BorrowedFd<'_>) -> io::Result<CgroupLinkInfo> {
    info(link)
}

/// Opens a pinned tcx link, and reads what it is; of another kind of link only the first fields
/// mean anything. `None` where nothing is pinned.
pub(crate) fn tcx_link(path: &Path) -> io::Result<Option<(OwnedFd, TcxLinkInfo)>> {
    let link = match open_pin(path) {
        Ok(link) => link,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let info = info(link.as_fd())?;
    Ok(Some((link, info)))
}

fn info<T: Default>(link: BorrowedFd<'_>) -> io::Result<T> {
    let mut info = T::default();
    let mut attribute = InfoByFd {
        fd: link.as_raw_fd() as u32,
        length: size_of::<T>() as u32,
        info: std::ptr::from_mut(&mut info) as u64,
    };
    bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attribute)?;
    Ok(info)
}

/// Reads the type and name of a loaded program.
pub(crate) fn program_head(program: BorrowedFd<'_>) -> io::Result<ProgramHead> {
    info(program)
}

/// The id of the next loaded program after `id`, of whatever type; `None` after the last. Needs
/// CAP_SYS_ADMIN.
pub(crate) fn next_program(id: u32) -> io::Result<Option<u32>> {
    let mut attribute = ById { id, next_id: 0, flags: 0 };
    match bpf(BPF_PROG_GET_NEXT_ID, &mut attribute) {
        Ok(_) => Ok(Some(attribute.next_id)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The ids of the programs that run in a cgroup at a hook, in the order of running.
pub(crate) fn effective_programs(cgroup: BorrowedFd<'_>, attach_type: u32) -> io::Result<Vec<u32>> {
    programs(cgroup, attach_type, BPF_F_QUERY_EFFECTIVE)
}

/// The ids of the programs that are attached to a cgroup itself at a hook.
pub(crate) fn attached_programs(cgroup: BorrowedFd<'_>, attach_type: u32) -> io::Result<Vec<u32>> {
    programs(cgroup, attach_type, 0)
}

fn programs(cgroup: BorrowedFd<'_>, attach_type: u32, query_flags: u32) -> io::Result<Vec<u32>> {
    let mut room = FEW_PROGRAMS;
    loop {
        let mut ids = vec![0; room];
        let mut attribute = Query {
            target: cgroup.as_raw_fd() as u32,
            attach_type,
            query_flags,
            attach_flags: 0,
            programs: ids.as_mut_ptr() as u64,
            count: room as u32,
            reserved: 0,
        };
        let result = bpf(BPF_PROG_QUERY, &mut attribute);
        let count = attribute.count as usize;
        match result {
            Ok(_) => {
                ids.truncate(count);
                return Ok(ids);
            }
            // The kernel says how many there are; more may have come since.
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                room = count.max(room) * 2;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Attaches a program to a cgroup by a link that nothing pins yet.
pub(crate) fn link_cgroup(
    program: BorrowedFd<'_>,
    cgroup: BorrowedFd<'_>,
    attach_type: u32,
    flags: u32,
) -> io::Result<OwnedFd> {
    let mut attribute = LinkCreate {
        program: program.as_raw_fd() as u32,
        target: cgroup.as_raw_fd() as u32,
        attach_type,
        flags,
    };
    bpf(BPF_LINK_CREATE, &mut attribute).map(owned)
}

/// Puts another program behind a link; no connection sees neither.
pub(crate) fn update_link(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut attribute = LinkUpdate {
        link: link.as_raw_fd() as u32,
        program: program.as_raw_fd() as u32,
        flags: 0,
        old_program: 0,
    };
    bpf(BPF_LINK_UPDATE, &mut attribute).map(drop)
}

/// Opens a loaded program; needs CAP_SYS_ADMIN.
pub(crate) fn program_by_id(id: u32) -> io::Result<OwnedFd> {
    let mut attribute = ById { id, next_id: 0, flags: 0 };
    bpf(BPF_PROG_GET_FD_BY_ID, &mut attribute).map(owned)
}

/// Loads a cgroup socket address program for one hook (`enum bpf_attach_type`).
pub(crate) fn load_sock_addr(code: &[Instruction], attach_type: u32) -> io::Result<OwnedFd> {
    load(PROGRAM_TYPE_SOCK_ADDR, code, attach_type)
}

/// Loads a program for tc.
pub(crate) fn load_classifier(code: &[Instruction]) -> io::Result<OwnedFd> {
    load(PROGRAM_TYPE_CLASSIFIER, code, 0)
}

fn load(program_type: u32, code: &[Instruction], attach_type: u32) -> io::Result<OwnedFd> {
    let license = c"Dual MIT/GPL";
    let mut attribute = ProgramLoad {
        program_type,
        instructions: code.len() as u32,
        code: code.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
        name: [0; 16],
        device: 0,
        expected_attach_type: attach_type,
    };
    bpf(BPF_PROG_LOAD, &mut attribute).map(owned)
}
