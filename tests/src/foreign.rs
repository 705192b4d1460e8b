//! Another socket load balancer, as small as can be: programs at `connect` and `sendmsg` that make
//! one address another one. Written as instructions, so that no second object is to be built.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use topo_lb::datapath::host::memlock;

/// The name of its programs.
pub const NAME: &str = "foreign_lb";

// Commands of include/uapi/linux/bpf.h, enum bpf_cmd.
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_ATTACH: libc::c_long = 8;
const BPF_PROG_DETACH: libc::c_long = 9;
const BPF_OBJ_PIN: libc::c_long = 6;
const BPF_OBJ_GET: libc::c_long = 7;
const BPF_PROG_GET_FD_BY_ID: libc::c_long = 13;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_LINK_CREATE: libc::c_long = 28;
/// `BPF_PROG_TYPE_CGROUP_SOCK_ADDR`.
const SOCK_ADDR: u32 = 18;

const BPF_F_ALLOW_MULTI: u32 = 1 << 1;
const BPF_F_BEFORE: u32 = 1 << 3;
const BPF_F_PREORDER: u32 = 1 << 6;

/// How it is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachMode {
    /// By links, as newer load balancers do.
    Link,
    /// By `BPF_PROG_ATTACH`, as older ones do.
    Legacy,
    /// By links, before all others of its cgroup: for kernels that can do that alone.
    First,
}

/// What its programs do with an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// They make it another one. IPv6 addresses may differ in the last 32 bits alone.
    Rewrite(IpAddr, IpAddr),
    /// They do not let it be dialled.
    Deny(IpAddr),
}

/// It is attached until it is dropped.
#[derive(Debug)]
pub struct Foreign {
    attached: Vec<Attached>,
}

#[derive(Debug)]
struct Attached {
    id: u32,
    attach_type: u32,
    program: OwnedFd,
    cgroup: File,
    /// None where it was attached without one.
    _link: Option<OwnedFd>,
    is_legacy: bool,
}

impl Foreign {
    /// Attaches to a cgroup, at the hooks of each rule's family.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn attach(cgroup: &Path, mode: AttachMode, rules: &[Rule]) -> Result<Self> {
        memlock::lift_limit();
        let mut attached = Vec::new();
        for rule in rules {
            for attach_type in rule.hooks() {
                attached.push(attach(cgroup, mode, *rule, attach_type)?);
            }
        }
        Ok(Self { attached })
    }

    /// The kernel's ids of its programs.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.attached.iter().map(|attached| attached.id)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if self.is_legacy {
            let mut attribute = [0_u32; 8];
            attribute[..3].copy_from_slice(&[
                self.cgroup.as_raw_fd() as u32,
                self.program.as_raw_fd() as u32,
                self.attach_type,
            ]);
            if let Err(error) = bpf(BPF_PROG_DETACH, &mut attribute) {
                eprintln!("a foreign program stays attached: {error}");
            }
        }
    }
}

/// Puts a link as an older agent made it, attached without any order, in the place of a pinned one
/// that is on `cgroup`.
///
/// # Errors
/// The kernel refuses.
pub fn make_older(pin: &Path, cgroup: &Path) -> Result<()> {
    let place = CString::new(pin.as_os_str().as_bytes())?;
    let beside = CString::new([place.as_bytes(), b"_older"].concat())?;
    let path = |text: &CStr| [text.as_ptr() as u64 as u32, (text.as_ptr() as u64 >> 32) as u32];
    let [low, high] = path(&place);
    let link = owned(bpf(BPF_OBJ_GET, &mut [low, high, 0, 0])?);
    // struct bpf_link_info: type, id, prog_id, cgroup_id in words 4 and 5, attach_type.
    let mut info = [0_u32; 8];
    info_of(&link, &mut info)?;
    let program = owned(bpf(BPF_PROG_GET_FD_BY_ID, &mut [info[2], 0, 0])?);
    let cgroup = File::open(cgroup)?;
    let (fd, target) = (program.as_raw_fd() as u32, cgroup.as_raw_fd() as u32);
    let older = owned(bpf(BPF_LINK_CREATE, &mut [fd, target, info[6], 0])?);
    let [low, high] = path(&beside);
    bpf(BPF_OBJ_PIN, &mut [low, high, older.as_raw_fd() as u32, 0])?;
    std::fs::rename(OsStr::from_bytes(beside.as_bytes()), pin)
        .with_context(|| format!("cannot put a link at {}", pin.display()))
}

/// Whether this kernel lets programs run before those that are there.
///
/// # Errors
/// It cannot be found out.
pub fn orders(cgroup: &Path) -> Result<bool> {
    let nobody = Rule::Deny(IpAddr::from([255, 255, 255, 255]));
    match Foreign::attach(cgroup, AttachMode::First, &[nobody]) {
        Ok(_) => Ok(true),
        Err(error) => match error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            Some(libc::EINVAL) => Ok(false),
            _ => Err(error),
        },
    }
}

impl Rule {
    fn address(self) -> IpAddr {
        match self {
            Self::Rewrite(from, _) => from,
            Self::Deny(address) => address,
        }
    }

    /// `enum bpf_attach_type`: connect4 and sendmsg4, connect6 and sendmsg6.
    fn hooks(self) -> [u32; 2] {
        if self.address().is_ipv4() { [10, 14] } else { [11, 15] }
    }

    /// The program: compares the last word of the address in `struct bpf_sock_addr`.
    fn code(self) -> Vec<u64> {
        let (field, from) = word(self.address());
        let (to, allowed) = match self {
            Self::Rewrite(_, to) => (word(to).1, 1),
            Self::Deny(_) => (from, 0),
        };
        vec![
            instruction(0xb7, 0, 0, 0, 1),           // r0 = 1
            instruction(0x61, 2, 1, field, 0),       // w2 = *(u32 *)(r1 + field)
            instruction(0xb4, 3, 0, 0, from as i32), // w3 = from
            instruction(0x5d, 2, 3, 3, 0),           // if r2 != r3 goto exit
            instruction(0xb4, 2, 0, 0, to as i32),   // w2 = to
            instruction(0x63, 1, 2, field, 0),       // *(u32 *)(r1 + field) = w2
            instruction(0xb7, 0, 0, 0, allowed),     // r0 = allowed
            instruction(0x95, 0, 0, 0, 0),           // exit
        ]
    }
}

/// Where an address ends in `struct bpf_sock_addr`, and its last word as it is read there.
fn word(address: IpAddr) -> (i16, u32) {
    match address {
        IpAddr::V4(address) => (4, u32::from_ne_bytes(address.octets())),
        IpAddr::V6(address) => {
            let [.., a, b, c, d] = address.octets();
            (20, u32::from_ne_bytes([a, b, c, d]))
        }
    }
}

/// `struct bpf_insn` on a little-endian machine.
fn instruction(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> u64 {
    let [low, high] = offset.to_le_bytes();
    let [a, b, c, d] = immediate.to_le_bytes();
    u64::from_le_bytes([code, source << 4 | destination, low, high, a, b, c, d])
}

fn attach(cgroup: &Path, mode: AttachMode, rule: Rule, attach_type: u32) -> Result<Attached> {
    let path: PathBuf = cgroup.into();
    let cgroup = File::open(cgroup).with_context(|| format!("no cgroup {}", path.display()))?;
    let program = load(&rule.code(), attach_type).context("a foreign program is not taken")?;
    let id = id(&program).context("a foreign program has no id")?;
    let (target, fd) = (cgroup.as_raw_fd() as u32, program.as_raw_fd() as u32);
    let mut attribute = [0_u32; 8];
    let link = match mode {
        AttachMode::Legacy => {
            attribute[..4].copy_from_slice(&[target, fd, attach_type, BPF_F_ALLOW_MULTI]);
            bpf(BPF_PROG_ATTACH, &mut attribute)?;
            None
        }
        AttachMode::Link | AttachMode::First => {
            let first = if mode == AttachMode::First { BPF_F_PREORDER | BPF_F_BEFORE } else { 0 };
            attribute[..4].copy_from_slice(&[fd, target, attach_type, first]);
            Some(owned(bpf(BPF_LINK_CREATE, &mut attribute)?))
        }
    };
    let is_legacy = mode == AttachMode::Legacy;
    Ok(Attached { id, attach_type, program, cgroup, _link: link, is_legacy })
}

fn load(code: &[u64], attach_type: u32) -> io::Result<OwnedFd> {
    let license = c"GPL";
    let mut name = [0; 16];
    name[..NAME.len()].copy_from_slice(NAME.as_bytes());
    let mut attribute = [0_u32; 18];
    let mut wide = |place: usize, address: u64| {
        attribute[place] = address as u32;
        attribute[place + 1] = (address >> 32) as u32;
    };
    wide(0, u64::from(SOCK_ADDR) | (code.len() as u64) << 32);
    wide(2, code.as_ptr() as u64);
    wide(4, license.as_ptr() as u64);
    for (place, four) in name.chunks_exact(4).enumerate() {
        attribute[12 + place] = u32::from_ne_bytes(four.try_into().expect("four bytes"));
    }
    attribute[17] = attach_type;
    bpf(BPF_PROG_LOAD, &mut attribute).map(owned)
}

fn id(program: &OwnedFd) -> Result<u32> {
    let mut info = [0_u32; 2];
    info_of(program, &mut info)?;
    match info {
        [SOCK_ADDR, id] => Ok(id),
        other => bail!("the kernel says {other:?} of a program"),
    }
}

/// Reads the head of what the kernel says of a program or a link.
fn info_of<const N: usize>(object: &OwnedFd, info: &mut [u32; N]) -> io::Result<()> {
    let address = info.as_mut_ptr() as u64;
    let mut attribute = [
        object.as_raw_fd() as u32,
        size_of_val(info) as u32,
        address as u32,
        (address >> 32) as u32,
    ];
    bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attribute).map(drop)
}

fn bpf<const N: usize>(
    command: libc::c_long,
    attribute: &mut [u32; N],
) -> io::Result<libc::c_long> {
    // A union bpf_attr is aligned to 8 bytes; the kernel copies it, wherever it is.
    // SAFETY: the attribute is as long as said, and what it points to outlives the call.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, attribute.as_mut_ptr(), size_of_val(attribute))
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(fd: libc::c_long) -> OwnedFd {
    // SAFETY: the commands that call this return a new descriptor, which nobody else owns.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}
