//! A minimal foreign socket load balancer: programs at `connect` and `sendmsg` that replace one
//! address by another. Written as instructions, so that no second object file is needed.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use topo_lb::datapath::host::memlock;

use crate::bpf::{self, Command, instruction};

/// The name of its programs.
pub const NAME: &str = "foreign_lb";

const BPF_F_ALLOW_MULTI: u32 = 1 << 1;
const BPF_F_BEFORE: u32 = 1 << 3;
const BPF_F_PREORDER: u32 = 1 << 6;

/// How it is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachMode {
    /// With links, as newer load balancers do.
    Link,
    /// With `BPF_PROG_ATTACH`, as older ones do.
    Legacy,
    /// With links, before all other programs of the cgroup; only on kernels that support that.
    First,
}

/// What its programs do with an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Replace the first address by the second. IPv6 addresses may differ only in the last 32 bits.
    Rewrite(IpAddr, IpAddr),
    /// Refuse the address.
    Deny(IpAddr),
}

/// The load balancer; attached until dropped.
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
    /// `None` if it was attached without a link.
    _link: Option<OwnedFd>,
    is_legacy: bool,
}

impl Foreign {
    /// Attaches it to a cgroup, at the hooks of each rule's address family.
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
            let (target, fd) = (self.cgroup.as_raw_fd() as u32, self.program.as_raw_fd() as u32);
            if let Err(error) = bpf::call(Command::Detach, [target, fd, self.attach_type]) {
                eprintln!("a foreign program stays attached: {error}");
            }
        }
    }
}

/// Replaces a pinned link on `cgroup` by one without an order, like those of older agents.
pub fn make_older(pin: &Path, cgroup: &Path) -> Result<()> {
    let mut beside = pin.as_os_str().to_owned();
    // Without a dot: names in a bpf file system cannot have one.
    beside.push("_older");
    let beside = PathBuf::from(beside);
    let link = bpf::open_pin(pin)?;
    let fact = |name| bpf::fact(&link, name)?.with_context(|| format!("a link without {name}"));
    let program = bpf::open(Command::ProgramById, [fact("prog_id")?, 0, 0])?;
    let cgroup = File::open(cgroup)?;
    let (fd, target) = (program.as_raw_fd() as u32, cgroup.as_raw_fd() as u32);
    let older = bpf::open(Command::LinkCreate, [fd, target, fact("attach_type")?, 0])?;
    bpf::pin(&older, &beside)?;
    std::fs::rename(&beside, pin).with_context(|| format!("cannot put a link at {}", pin.display()))
}

/// Whether this kernel can attach a program before existing ones.
///
/// # Errors
/// The kernel refuses for another reason.
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

/// The offset of the address's last word in `struct bpf_sock_addr`, and the word as read there.
fn word(address: IpAddr) -> (i16, u32) {
    match address {
        IpAddr::V4(address) => (4, u32::from_ne_bytes(address.octets())),
        IpAddr::V6(address) => {
            let [.., a, b, c, d] = address.octets();
            (20, u32::from_ne_bytes([a, b, c, d]))
        }
    }
}

fn attach(cgroup: &Path, mode: AttachMode, rule: Rule, attach_type: u32) -> Result<Attached> {
    let path: PathBuf = cgroup.into();
    let cgroup = File::open(cgroup).with_context(|| format!("no cgroup {}", path.display()))?;
    let program = bpf::load(bpf::SOCK_ADDR, NAME, &rule.code(), attach_type);
    let program = program.context("a foreign program is not taken")?;
    let id = bpf::fact(&program, "prog_id")?.context("a foreign program has no id")?;
    let (target, fd) = (cgroup.as_raw_fd() as u32, program.as_raw_fd() as u32);
    let link = match mode {
        AttachMode::Legacy => {
            bpf::call(Command::Attach, [target, fd, attach_type, BPF_F_ALLOW_MULTI])?;
            None
        }
        AttachMode::Link | AttachMode::First => {
            let first = if mode == AttachMode::First { BPF_F_PREORDER | BPF_F_BEFORE } else { 0 };
            Some(bpf::open(Command::LinkCreate, [fd, target, attach_type, first])?)
        }
    };
    let is_legacy = mode == AttachMode::Legacy;
    Ok(Attached { id, attach_type, program, cgroup, _link: link, is_legacy })
}
