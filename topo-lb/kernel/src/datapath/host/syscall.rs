//! Calls of bpf(2) that aya lacks: attaching to a cgroup with flags, replacing the program of a
//! link, reading where a link is attached, listing the programs of a cgroup, loading a program from
//! its instructions, and maps of maps.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

pub use aya_obj::generated::BPF_F_BEFORE;
use aya_obj::generated::bpf_attach_type::{BPF_TRACE_ITER, BPF_XDP};
use aya_obj::generated::bpf_prog_type::BPF_PROG_TYPE_TRACING;
use aya_obj::generated::{
    BPF_F_QUERY_EFFECTIVE, XDP_FLAGS_DRV_MODE, bpf_attach_type, bpf_attr,
    bpf_attr__bindgen_ty_14__bindgen_ty_3__bindgen_ty_1, bpf_cmd, bpf_link_info, bpf_link_type,
    bpf_map_type, bpf_prog_info, bpf_prog_type,
};

/// Attaches among programs that run first, parents' before children's (4b82b181a26c, Linux 6.15).
pub const BPF_F_PREORDER: u32 = 1 << 6;
/// Number of programs that the first query has room for.
const FEW_PROGRAMS: usize = 32;

/// A link's program and target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkInfo {
    /// The kernel's id of the program.
    pub program: u32,
    /// Where the link is attached.
    pub target: LinkTarget,
}

/// The target of a link. Attach types are those of `enum bpf_attach_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkTarget {
    /// A cgroup; the id is zero if the cgroup is gone.
    #[expect(missing_docs, reason = "the variant says it")]
    Cgroup { id: u64, attach_type: u32 },
    /// A device, by tcx or XDP; the index is zero if the device is gone.
    #[expect(missing_docs, reason = "the variant says it")]
    Device { index: u32, attach_type: u32 },
    /// Another target.
    Other,
}

/// A loaded program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramHead {
    /// `enum bpf_prog_type`.
    pub program_type: u32,
    /// The kernel's id.
    pub id: u32,
    /// The first 15 bytes of its name.
    pub name: String,
}

/// Calls bpf(2) with an attribute that is zero except for what `fill` sets; returns the result and
/// the attribute afterwards. What the attribute points to must outlive the call.
///
/// # Errors
/// The kernel refuses.
pub fn bpf(
    command: bpf_cmd,
    fill: impl FnOnce(&mut bpf_attr),
) -> io::Result<(libc::c_long, bpf_attr)> {
    // SAFETY: all variants are integers: zero is a value of each.
    let mut attribute: bpf_attr = unsafe { zeroed() };
    fill(&mut attribute);
    let result = call(command, &mut attribute);
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok((result, attribute)) }
}

pub(super) fn call(command: bpf_cmd, attribute: &mut bpf_attr) -> libc::c_long {
    // SAFETY: the kernel's own union with its size; a kernel with a shorter union accepts it if the
    // rest is zero. Every address in it outlives the call (by the callers below).
    unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as libc::c_long,
            std::ptr::from_mut(attribute),
            size_of::<bpf_attr>(),
        )
    }
}

/// As [`bpf`], for commands that return a new descriptor.
fn bpf_fd(command: bpf_cmd, fill: impl FnOnce(&mut bpf_attr)) -> io::Result<OwnedFd> {
    let (fd, _) = bpf(command, fill)?;
    // SAFETY: the commands that call this return a new descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Opens the pin at `path`; `None` if there is none.
///
/// # Errors
/// The kernel does not open it.
pub fn open_pin(path: &Path) -> io::Result<Option<OwnedFd>> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let opened = bpf_fd(bpf_cmd::BPF_OBJ_GET, |attribute| {
        attribute.__bindgen_anon_4.pathname = path.as_ptr() as u64;
    });
    some_if_found(opened)
}

fn some_if_found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Pins the object of `fd` at `path`.
///
/// # Errors
/// The kernel refuses, or `path` is not on bpffs.
pub fn pin(fd: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let pinned = bpf(bpf_cmd::BPF_OBJ_PIN, |attribute| {
        attribute.__bindgen_anon_4.pathname = path.as_ptr() as u64;
        attribute.__bindgen_anon_4.bpf_fd = fd.as_raw_fd() as u32;
    });
    pinned.map(drop)
}

/// Opens a pinned link and reads its program and target; `None` if nothing is pinned.
///
/// # Errors
/// The kernel does not open it, or it is no link.
pub fn open_link(path: &Path) -> io::Result<Option<(OwnedFd, LinkInfo)>> {
    let Some(link) = open_pin(path)? else { return Ok(None) };
    let info = link_info(link.as_fd())?;
    Ok(Some((link, info)))
}

/// Reads a link's program and target.
///
/// # Errors
/// The kernel does not return them.
pub fn link_info(link: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    const CGROUP: u32 = bpf_link_type::BPF_LINK_TYPE_CGROUP as u32;
    const TCX: u32 = bpf_link_type::BPF_LINK_TYPE_TCX as u32;
    const XDP: u32 = bpf_link_type::BPF_LINK_TYPE_XDP as u32;
    // SAFETY: integers.
    let raw: bpf_link_info = unsafe { info(link)? };
    let about = raw.__bindgen_anon_1;
    // SAFETY: the type of the link says which variant the kernel filled; all are integers.
    let target = unsafe {
        match raw.type_ {
            CGROUP => LinkTarget::Cgroup {
                id: about.cgroup.cgroup_id,
                attach_type: about.cgroup.attach_type,
            },
            TCX => {
                LinkTarget::Device { index: about.tcx.ifindex, attach_type: about.tcx.attach_type }
            }
            XDP => LinkTarget::Device { index: about.xdp.ifindex, attach_type: BPF_XDP as u32 },
            _ => LinkTarget::Other,
        }
    };
    Ok(LinkInfo { program: raw.prog_id, target })
}

/// # Safety
/// `T` is the kernel's structure for this kind of descriptor, and zero is a value of it.
unsafe fn info<T>(fd: BorrowedFd<'_>) -> io::Result<T> {
    // SAFETY: by the caller.
    let mut info: T = unsafe { zeroed() };
    bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, |attribute| {
        attribute.info.bpf_fd = fd.as_raw_fd() as u32;
        attribute.info.info_len = size_of::<T>() as u32;
        attribute.info.info = std::ptr::from_mut(&mut info) as u64;
    })?;
    Ok(info)
}

/// Reads type, id and name of a loaded program.
///
/// # Errors
/// The kernel does not return them.
pub fn program_head(program: BorrowedFd<'_>) -> io::Result<ProgramHead> {
    // SAFETY: integers.
    let raw: bpf_prog_info = unsafe { info(program)? };
    // SAFETY: the kernel ends the name with a zero within its 16 bytes.
    let name = unsafe { CStr::from_ptr(raw.name.as_ptr()) }.to_string_lossy().into_owned();
    Ok(ProgramHead { program_type: raw.type_, id: raw.id, name })
}

/// The id of the loaded program after `id`, of any type, or `None`. Needs CAP_SYS_ADMIN.
///
/// # Errors
/// The kernel refuses.
pub fn next_program(id: u32) -> io::Result<Option<u32>> {
    let next = bpf(bpf_cmd::BPF_PROG_GET_NEXT_ID, |attribute| {
        attribute.__bindgen_anon_6.__bindgen_anon_1.start_id = id;
    });
    // SAFETY: the variant that the command fills; an integer.
    Ok(some_if_found(next)?.map(|(_, attribute)| unsafe { attribute.__bindgen_anon_6.next_id }))
}

/// Opens a loaded program; needs CAP_SYS_ADMIN.
///
/// # Errors
/// It does not exist, or this process may not open it.
pub fn program_by_id(id: u32) -> io::Result<OwnedFd> {
    bpf_fd(bpf_cmd::BPF_PROG_GET_FD_BY_ID, |attribute| {
        attribute.__bindgen_anon_6.__bindgen_anon_1.prog_id = id;
    })
}

/// Creates a map with one entry, keys and values of four bytes; `inner` shows the shape of maps in it.
///
/// # Errors
/// The kernel refuses.
pub(super) fn create_map(
    map_type: bpf_map_type,
    inner: Option<BorrowedFd<'_>>,
) -> io::Result<OwnedFd> {
    bpf_fd(bpf_cmd::BPF_MAP_CREATE, |attribute| {
        // SAFETY: all variants are integers, and all are zero.
        let map = unsafe { &mut attribute.__bindgen_anon_1 };
        (map.map_type, map.key_size, map.value_size, map.max_entries) = (map_type as u32, 4, 4, 1);
        map.inner_map_fd = inner.map_or(0, |inner| inner.as_raw_fd() as u32);
    })
}

/// Writes a map into the first element of an array of maps.
///
/// # Errors
/// The kernel refuses.
pub(in crate::datapath) fn update(outer: BorrowedFd<'_>, inner: BorrowedFd<'_>) -> io::Result<()> {
    first_element(bpf_cmd::BPF_MAP_UPDATE_ELEM, outer, Some(&mut (inner.as_raw_fd() as u32)))
}

/// The id of the map in the first element of an array of maps, if there is one.
///
/// # Errors
/// The kernel refuses.
pub(in crate::datapath) fn inner_map(outer: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let mut id = 0;
    let found = first_element(bpf_cmd::BPF_MAP_LOOKUP_ELEM, outer, Some(&mut id));
    Ok(some_if_found(found)?.map(|()| id))
}

/// Empties the first element of an array of maps, and waits until no program uses the map that was in it.
///
/// # Errors
/// The kernel refuses.
pub(in crate::datapath) fn remove_inner(outer: BorrowedFd<'_>) -> io::Result<()> {
    some_if_found(first_element(bpf_cmd::BPF_MAP_DELETE_ELEM, outer, None)).map(drop)
}

/// A command about the first element of a map; one that takes no value refuses it.
fn first_element(
    command: bpf_cmd,
    outer: BorrowedFd<'_>,
    value: Option<&mut u32>,
) -> io::Result<()> {
    let key = 0_u32;
    let done = bpf(command, |attribute| {
        // SAFETY: all variants are integers, and all are zero.
        let element = unsafe { &mut attribute.__bindgen_anon_2 };
        element.map_fd = outer.as_raw_fd() as u32;
        element.key = &raw const key as u64;
        element.__bindgen_anon_1.value = value.map_or(0, |value| std::ptr::from_mut(value) as u64);
    });
    done.map(drop)
}

/// The ids of the programs that run in a cgroup at a hook, in their order.
///
/// # Errors
/// The kernel refuses.
pub fn effective_programs(cgroup: BorrowedFd<'_>, hook: bpf_attach_type) -> io::Result<Vec<u32>> {
    programs(cgroup, hook, BPF_F_QUERY_EFFECTIVE)
}

/// The ids of the programs that are attached to the cgroup itself at a hook.
///
/// # Errors
/// The kernel refuses.
pub fn attached_programs(cgroup: BorrowedFd<'_>, hook: bpf_attach_type) -> io::Result<Vec<u32>> {
    programs(cgroup, hook, 0)
}

fn programs(cgroup: BorrowedFd<'_>, hook: bpf_attach_type, flags: u32) -> io::Result<Vec<u32>> {
    let mut room = FEW_PROGRAMS;
    loop {
        let mut ids = vec![0; room];
        // SAFETY: all variants are integers: zero is a value of each.
        let mut attribute: bpf_attr = unsafe { zeroed() };
        attribute.query.__bindgen_anon_1.target_fd = cgroup.as_raw_fd() as u32;
        attribute.query.attach_type = hook as u32;
        attribute.query.query_flags = flags;
        attribute.query.prog_ids = ids.as_mut_ptr() as u64;
        attribute.query.__bindgen_anon_2.count = room as u32;
        let result = call(bpf_cmd::BPF_PROG_QUERY, &mut attribute);
        let error = io::Error::last_os_error();
        // SAFETY: the variant that the command fills; an integer.
        let count = unsafe { attribute.query.__bindgen_anon_2.count } as usize;
        if result >= 0 {
            ids.truncate(count);
            return Ok(ids);
        }
        if error.raw_os_error() != Some(libc::ENOSPC) {
            return Err(error);
        }
        // The kernel returned their number; it may have grown since.
        room = count.max(room) * 2;
    }
}

/// Attaches a program to a cgroup by a link that is not pinned yet.
///
/// # Errors
/// The kernel refuses.
pub fn link_cgroup(
    program: BorrowedFd<'_>,
    cgroup: BorrowedFd<'_>,
    hook: bpf_attach_type,
    flags: u32,
) -> io::Result<OwnedFd> {
    bpf_fd(bpf_cmd::BPF_LINK_CREATE, |attribute| {
        attribute.link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd() as u32;
        attribute.link_create.__bindgen_anon_2.target_fd = cgroup.as_raw_fd() as u32;
        attribute.link_create.attach_type = hook as u32;
        attribute.link_create.flags = flags;
    })
}

/// Attaches a program of XDP to the driver of a device by a link that is not pinned yet: Linux 5.9 (aa8d3a716b59,
/// "bpf, xdp: Add bpf_link-based XDP attachment API").
///
/// # Errors
/// The kernel or the driver refuses.
pub fn link_xdp(program: BorrowedFd<'_>, device: u32) -> io::Result<OwnedFd> {
    bpf_fd(bpf_cmd::BPF_LINK_CREATE, |attribute| {
        attribute.link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd() as u32;
        attribute.link_create.__bindgen_anon_2.target_ifindex = device;
        attribute.link_create.attach_type = BPF_XDP as u32;
        attribute.link_create.flags = XDP_FLAGS_DRV_MODE;
    })
}

/// Makes an iterator over a map by a link that is not pinned yet. Reading it takes Linux 5.8.
///
/// # Errors
/// The kernel refuses.
pub fn link_iterator(program: BorrowedFd<'_>, map: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // The first field of `union bpf_iter_link_info`; the kernel takes the rest as zero.
    let map = map.as_raw_fd() as u32;
    bpf_fd(bpf_cmd::BPF_LINK_CREATE, |attribute| {
        attribute.link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd() as u32;
        attribute.link_create.attach_type = BPF_TRACE_ITER as u32;
        let iterator = bpf_attr__bindgen_ty_14__bindgen_ty_3__bindgen_ty_1 {
            iter_info: std::ptr::from_ref(&map) as u64,
            iter_info_len: size_of_val(&map) as u32,
        };
        attribute.link_create.__bindgen_anon_3.__bindgen_anon_1 = iterator;
    })
}

/// Switches a link to another program; every connection runs through the one or the other.
///
/// # Errors
/// The kernel refuses.
pub fn update_link(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let updated = bpf(bpf_cmd::BPF_LINK_UPDATE, |attribute| {
        attribute.link_update.link_fd = link.as_raw_fd() as u32;
        attribute.link_update.__bindgen_anon_1.new_prog_fd = program.as_raw_fd() as u32;
    });
    updated.map(drop)
}

/// Loads the shortest program that returns 1: `r0 = 1; exit`. `attach_type` is one of `enum
/// bpf_attach_type`, or zero for tc.
///
/// # Errors
/// The kernel refuses.
pub fn load_empty(program_type: bpf_prog_type, attach_type: u32) -> io::Result<OwnedFd> {
    // BPF_ALU64 | BPF_MOV | BPF_K with an immediate of 1; BPF_JMP | BPF_EXIT.
    let code = [[0xb7, 0, 0, 0, 1, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
    load(program_type, "", &code, attach_type)
}

/// Loads the shortest iterator over what the kernel's type `target` names, an id of its BTF.
///
/// # Errors
/// The verifier refuses it, or a capability is missing.
pub fn load_iterator(target: u32) -> io::Result<OwnedFd> {
    let code = [[0xb7, 0, 0, 0, 0, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
    load_at(BPF_PROG_TYPE_TRACING, "", &code, BPF_TRACE_ITER as u32, target)
}

/// Loads a program of this name, cut to 15 bytes. Each element of `code` is a `struct bpf_insn`.
/// `attach_type` is one of `enum bpf_attach_type`, or zero for tc.
///
/// # Errors
/// The verifier refuses it, or a capability is missing.
pub fn load(
    program_type: bpf_prog_type,
    name: &str,
    code: &[[u8; 8]],
    attach_type: u32,
) -> io::Result<OwnedFd> {
    load_at(program_type, name, code, attach_type, 0)
}

fn load_at(
    program_type: bpf_prog_type,
    name: &str,
    code: &[[u8; 8]],
    attach_type: u32,
    target: u32,
) -> io::Result<OwnedFd> {
    let license = c"Dual MIT/GPL";
    bpf_fd(bpf_cmd::BPF_PROG_LOAD, |attribute| {
        // SAFETY: all variants are integers, and all are zero.
        let program = unsafe { &mut attribute.__bindgen_anon_3 };
        program.prog_type = program_type as u32;
        program.insn_cnt = code.len() as u32;
        program.insns = code.as_ptr() as u64;
        program.license = license.as_ptr() as u64;
        program.expected_attach_type = attach_type;
        program.attach_btf_id = target;
        for (place, byte) in program.prog_name[..15].iter_mut().zip(name.bytes()) {
            *place = byte as libc::c_char;
        }
    })
}
