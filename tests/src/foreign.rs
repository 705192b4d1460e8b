//! A minimal foreign socket load balancer: programs at `connect` and `sendmsg` that replace one
//! address by another. Written as instructions, so that no second object file is needed.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;

use anyhow::{Context as _, Result};
use aya_obj::generated::bpf_prog_type::{BPF_PROG_TYPE_CGROUP_SOCK_ADDR, BPF_PROG_TYPE_SOCK_OPS};
use aya_obj::generated::{BPF_F_ALLOW_MULTI, bpf_attach_type, bpf_cmd};
use fs_err::File;
use topo_lb_kernel::datapath::hook::Hook;
use topo_lb_kernel::datapath::host::memlock;
use topo_lb_kernel::datapath::host::syscall::{self, BPF_F_BEFORE, BPF_F_PREORDER};

/// The name of its programs.
pub const NAME: &str = "foreign_lb";

/// How it is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachMode {
    /// With links, as newer load balancers do.
    Link,
    /// With `BPF_PROG_ATTACH`.
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
    hook: bpf_attach_type,
    program: OwnedFd,
    cgroup: File,
    /// `None` if it was attached without a link.
    link: Option<OwnedFd>,
}

impl Foreign {
    /// Attaches it to a cgroup, at the hooks of each rule's address family.
    pub fn attach(cgroup: &Path, mode: AttachMode, rules: &[Rule]) -> Result<Self> {
        memlock::lift_limit();
        let mut attached = Vec::new();
        for rule in rules {
            for hook in rule.hooks() {
                attached.push(Attached::new(cgroup, mode, *rule, hook)?);
            }
        }
        Ok(Self { attached })
    }

    /// Attaches it so that it runs before topo-lb's programs on `cgroup`: first there if the kernel
    /// can order programs, otherwise on the cgroup `below`.
    pub fn attach_before(cgroup: &Path, below: &Path, rules: &[Rule]) -> Result<Self> {
        if orders(cgroup)? {
            Self::attach(cgroup, AttachMode::First, rules)
        } else {
            Self::attach(below, AttachMode::Link, rules)
        }
    }

    /// The kernel's ids of its programs.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.attached.iter().map(|attached| attached.id)
    }
}

impl Attached {
    fn new(cgroup: &Path, mode: AttachMode, rule: Rule, hook: bpf_attach_type) -> Result<Self> {
        let cgroup = File::open(cgroup)?;
        let code = rule.code();
        let program = syscall::load(BPF_PROG_TYPE_CGROUP_SOCK_ADDR, NAME, &code, hook as u32);
        let program = program.context("a foreign program is not taken")?;
        let id = syscall::program_head(program.as_fd())?.id;
        let mut attached = Self { id, hook, program, cgroup, link: None };
        let flags = match mode {
            AttachMode::Legacy => {
                attached.without_link(bpf_cmd::BPF_PROG_ATTACH)?;
                return Ok(attached);
            }
            AttachMode::Link => 0,
            AttachMode::First => BPF_F_PREORDER | BPF_F_BEFORE,
        };
        let (program, cgroup) = (attached.program.as_fd(), attached.cgroup.as_fd());
        attached.link = Some(syscall::link_cgroup(program, cgroup, hook, flags)?);
        Ok(attached)
    }

    /// Attaches or detaches the program without a link.
    fn without_link(&self, command: bpf_cmd) -> io::Result<()> {
        let called = syscall::bpf(command, |attribute| {
            attribute.__bindgen_anon_5.__bindgen_anon_1.target_fd = self.cgroup.as_raw_fd() as u32;
            attribute.__bindgen_anon_5.attach_bpf_fd = self.program.as_raw_fd() as u32;
            attribute.__bindgen_anon_5.attach_type = self.hook as u32;
            attribute.__bindgen_anon_5.attach_flags = match command {
                bpf_cmd::BPF_PROG_ATTACH => BPF_F_ALLOW_MULTI,
                _ => 0,
            };
        });
        called.map(drop)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if self.link.is_none()
            && let Err(error) = self.without_link(bpf_cmd::BPF_PROG_DETACH)
        {
            eprintln!("a foreign program stays attached: {error}");
        }
    }
}

/// A foreign program at `sock_ops` that sets the flags of TCP sockets without keeping those of others, at
/// each connection that is established. Attached until dropped.
#[derive(Debug)]
pub struct FlagSetter {
    _link: OwnedFd,
}

impl FlagSetter {
    /// Attaches one that clears all flags to a cgroup.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn attach(cgroup: &Path) -> Result<Self> {
        Self::attach_setting(cgroup, 0)
    }

    /// Attaches one that sets these flags (`BPF_SOCK_OPS_…_CB_FLAG`) to a cgroup.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn attach_setting(cgroup: &Path, flags: i32) -> Result<Self> {
        // BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB
        Self::attach_at(cgroup, 4, flags)
    }

    /// Attaches one that asks for changes of the state of accepted sockets to a cgroup.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn of_accepted(cgroup: &Path) -> Result<Self> {
        // BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB, and BPF_SOCK_OPS_STATE_CB_FLAG.
        Self::attach_at(cgroup, 5, 4)
    }

    fn attach_at(cgroup: &Path, established: i32, flags: i32) -> Result<Self> {
        memlock::lift_limit();
        // `bpf_sock_ops_cb_flags_set`
        let set_flags = 59;
        let code = [
            instruction(0x61, 2, 1, 0, 0),           // w2 = ctx->op
            instruction(0x55, 2, 0, 2, established), // if r2 != established goto exit
            instruction(0xb7, 2, 0, 0, flags),       // r2 = flags
            instruction(0x85, 0, 0, 0, set_flags),   // call
            instruction(0xb7, 0, 0, 0, 1),           // exit: r0 = 1
            instruction(0x95, 0, 0, 0, 0),           // exit
        ];
        let hook = bpf_attach_type::BPF_CGROUP_SOCK_OPS;
        let program = syscall::load(BPF_PROG_TYPE_SOCK_OPS, "foreign_flags", &code, hook as u32);
        let program = program.context("a foreign program is not taken")?;
        let cgroup = File::open(cgroup)?;
        Ok(Self { _link: syscall::link_cgroup(program.as_fd(), cgroup.as_fd(), hook, 0)? })
    }
}

/// Replaces a hook's pinned link on `cgroup` by one without an order, which others come before.
pub fn replace_without_order(pins: &Path, hook: Hook, cgroup: &Path) -> Result<()> {
    let links = pins.join("links");
    // Without a dot: names in a bpf file system cannot have one.
    let (pin, beside) = (links.join(hook.name()), links.join(format!("{}_unordered", hook.name())));
    let (_link, info) = syscall::open_link(&pin)?.context("no link is pinned")?;
    let program = syscall::program_by_id(info.program)?;
    let cgroup = File::open(cgroup)?;
    let unordered = syscall::link_cgroup(program.as_fd(), cgroup.as_fd(), hook.attach_type(), 0)?;
    syscall::pin(unordered.as_fd(), &beside)?;
    Ok(fs_err::rename(&beside, &pin)?)
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

    fn hooks(self) -> [bpf_attach_type; 2] {
        let hooks = if self.address().is_ipv4() {
            [Hook::Connect4, Hook::Sendmsg4]
        } else {
            [Hook::Connect6, Hook::Sendmsg6]
        };
        hooks.map(Hook::attach_type)
    }

    /// The program: compares the last word of the address in `struct bpf_sock_addr`.
    fn code(self) -> [[u8; 8]; 8] {
        let (field, from) = word(self.address());
        let (to, allowed) = match self {
            Self::Rewrite(_, to) => (word(to).1, 1),
            Self::Deny(_) => (from, 0),
        };
        [
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

/// `struct bpf_insn` on a little-endian machine.
#[must_use]
pub fn instruction(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> [u8; 8] {
    let [low, high] = offset.to_le_bytes();
    let [a, b, c, d] = immediate.to_le_bytes();
    [code, source << 4 | destination, low, high, a, b, c, d]
}
