//! Masquerading of connections from outside to endpoints of other nodes: an nftables table of our
//! own, `inet topo-lb`.
//!
//! The tc programs set a bit in the mark of every such packet. The first chain gives marked
//! connections an address of this node as their source, so that the replies come back here; the
//! second one clears the bit, which nobody after it needs:
//!
//! ```text
//! chain postrouting { type nat hook postrouting priority srcnat
//!     meta l4proto tcp meta mark & BIT != 0 masquerade to :32768-65535 fully-random   # udp, sctp, too
//! }
//! chain unmark { type filter hook postrouting priority srcnat + 1
//!     meta mark & BIT != 0 meta mark set meta mark & ~BIT
//! }
//! ```

use std::ffi::CStr;
use std::io;
use std::time::Instant;

use netlink_bindings::nftables::{
    Chained, CmpOps, MetaKeys, NatRangeFlags, Nfgenmsg, PushExprListAttrs as Rule,
    PushExprMasqAttrs, Registers, Request,
};
use netlink_bindings::traits::{NetlinkChained as _, Pusher};
use netlink_bindings::utils::{finalize_nested_header, push_nested_header};
use rustix::net::netlink::NETFILTER;
use topo_lb_common::address::{SCTP, TCP, UDP};

use crate::datapath::host::source_nat::Hindrances;
use crate::datapath::programs::object::MASQUERADE_MARK;
use crate::device::SoleUplink;
use crate::netlink::Netlink;
use crate::nftables::{self, TABLE};

/// Has the rules of [`PROTOCOLS`].
const POSTROUTING: &CStr = c"postrouting";
const UNMARK: &CStr = c"unmark";
/// Only their connections have ports: nft(8) reads no other rule that chooses one.
const PROTOCOLS: [u8; 3] = [TCP, UDP, SCTP];
/// Ports of masqueraded connections: none below 32768, the default range of node ports.
const PORTS: [u16; 2] = [32_768, 65_535];
/// Tables, chains and rules of ours.
const OBJECTS: usize = 1 + 2 + PROTOCOLS.len() + 1;

/// `NFPROTO_INET`, `NF_INET_POST_ROUTING` and `NF_IP_PRI_NAT_SRC`, include/uapi/linux/netfilter*.h.
const INET: u8 = 1;
const HOOK: u32 = 4;
const SOURCE_NAT: i32 = 100;
/// `NFNL_SUBSYS_NFTABLES`, include/uapi/linux/netfilter/nfnetlink.h.
const SUBSYSTEM: u16 = 10;
/// `NFTA_EXPR_DATA`, include/uapi/linux/netfilter/nf_tables.h.
const EXPRESSION_DATA: u16 = 2;

const FIRST: u32 = Registers::Reg1 as u32;
const SECOND: u32 = Registers::Reg2 as u32;

/// Who gives connections from outside to endpoints of other nodes a source: the programs, or the kernel.
#[derive(Debug, Default)]
pub(crate) struct SourceNat {
    /// What the devices allow; an error says why it is left to the kernel. `None`: no device for clients
    /// outside was found yet.
    pub(super) uplink: Option<Result<SoleUplink, String>>,
    /// What was decided last: the programs with the addresses of this device, or the kernel.
    pub(super) decided: Option<Result<SoleUplink, String>>,
    /// By what packets are sent on as they came (direct return).
    pub(super) direct: Option<SoleUplink>,
    pub(super) hindrances: Hindrances,
    /// When connections are searched next for one that needs the table; `None`: they were not yet.
    pub(super) next_search: Option<Instant>,
}

/// Why the table cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("the nftables table inet topo-lb cannot be written: {0}{advice}", advice = advice(.0))]
pub struct MasqueradeError(#[source] io::Error);

fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT) => {
            "; the host's kernel lacks a module: load nf_tables, nft_chain_nat and nft_masq"
        }
        Some(libc::EPERM | libc::EACCES) => "; it takes CAP_NET_ADMIN",
        _ => "",
    }
}

/// Keeps the table as this process wrote it.
#[derive(Debug)]
pub struct Masquerade {
    /// The bit of the mark.
    bit: u32,
    written: Option<Written>,
}

/// What the kernel had after this process wrote the table.
#[derive(Debug)]
struct Written {
    /// Number of the last change of any nftables table.
    generation: Vec<u8>,
    /// Tables, chains and rules, as the kernel lists them. Each has a handle, so a rule that somebody
    /// replaces by the same one also differs.
    objects: Vec<Vec<u8>>,
}

impl Masquerade {
    /// A table that is not written yet. `bit`: that of the mark, as a mask.
    #[must_use]
    pub const fn new(bit: u32) -> Self {
        Self { bit, written: None }
    }

    /// Writes the table, unless it is as this process wrote it before. Returns whether somebody else
    /// removed or changed it.
    ///
    /// # Errors
    /// The kernel refuses it, and why.
    pub fn keep(&mut self) -> Result<bool, MasqueradeError> {
        self.try_keep().map_err(MasqueradeError)
    }

    /// Call it after [`remove`]: the table is missing because of this process.
    pub fn forget(&mut self) {
        self.written = None;
    }

    fn try_keep(&mut self) -> io::Result<bool> {
        let netlink = Netlink::open(Some(NETFILTER))?;
        let generation = nftables::generation(&netlink)?;
        if let Some(written) = &mut self.written {
            if written.generation == generation {
                return Ok(false);
            }
            let is_same = written.objects == objects(&netlink)?;
            if is_same {
                written.generation = generation;
                return Ok(false);
            }
        }
        let was_written = self.written.take().is_some();
        write(self.bit, true)?;
        let generation = nftables::generation(&netlink)?;
        let objects = objects(&netlink)?;
        // Otherwise somebody was faster; the next call writes it again.
        self.written = (objects.len() == OBJECTS).then_some(Written { generation, objects });
        Ok(was_written)
    }
}

/// Checks whether the kernel would take the table. Writes nothing.
///
/// # Errors
/// It would not, and why.
pub fn check() -> Result<(), MasqueradeError> {
    write(MASQUERADE_MARK, false).map_err(MasqueradeError)
}

/// Removes the table; returns whether there was one.
///
/// # Errors
/// The kernel refuses.
pub fn remove() -> io::Result<bool> {
    let mut batch = Batch::begin();
    batch.0.request().op_deltable_do(&header()).encode().push_name(TABLE);
    match batch.send(true) {
        Ok(()) => Ok(true),
        Err(error) => match error.raw_os_error() {
            // No table, or no nf_tables.
            Some(libc::ENOENT | libc::EOPNOTSUPP | libc::EPROTONOSUPPORT) => Ok(false),
            _ => Err(error),
        },
    }
}

/// Replaces the table in one transaction. Without `commit` the kernel only checks it, as for `nft -c`.
fn write(bit: u32, commit: bool) -> io::Result<()> {
    let mut batch = Batch::begin();
    let Batch(all) = &mut batch;
    // Creating a table that exists changes nothing: then there is one to delete.
    all.request().set_create().op_newtable_do(&header()).encode().push_name(TABLE);
    all.request().op_deltable_do(&header()).encode().push_name(TABLE);
    all.request().set_create().op_newtable_do(&header()).encode().push_name(TABLE);
    for (name, kind, priority) in
        [(POSTROUTING, c"nat", SOURCE_NAT), (UNMARK, c"filter", SOURCE_NAT + 1)]
    {
        let mut request = all.request().set_create().op_newchain_do(&header());
        let chain = request.encode().push_table(TABLE).push_name(name);
        let chain = chain.nested_hook().push_num(HOOK).push_priority(priority).end_nested();
        chain.push_type(kind);
    }
    for protocol in PROTOCOLS {
        let mut request = all.request().set_create().set_append().op_newrule_do(&header());
        let rule = request.encode().push_table(TABLE).push_chain(POSTROUTING);
        masquerade(is_marked(is_of(rule.nested_expressions(), protocol), bit)).end_nested();
    }
    let mut request = all.request().set_create().set_append().op_newrule_do(&header());
    let rule = request.encode().push_table(TABLE).push_chain(UNMARK);
    unmark(is_marked(rule.nested_expressions(), bit), bit).end_nested();
    batch.send(commit)
}

/// Goes on if the packet is of this protocol.
fn is_of<P: Pusher>(rule: Rule<P>, protocol: u8) -> Rule<P> {
    compare(load(rule, MetaKeys::L4Proto), CmpOps::Eq, &[protocol])
}

/// Goes on if the packet's mark has the bit.
fn is_marked<P: Pusher>(rule: Rule<P>, bit: u32) -> Rule<P> {
    let rule = mask(load(rule, MetaKeys::Mark), bit);
    compare(rule, CmpOps::Neq, &[0; 4])
}

fn masquerade<P: Pusher>(rule: Rule<P>) -> Rule<P> {
    let [least, most] = PORTS.map(u16::to_be_bytes);
    let rule = put(put(rule, FIRST, &least), SECOND, &most);
    let flags = NatRangeFlags::ProtoSpecified as u32 | NatRangeFlags::ProtoRandomFully as u32;
    let mut masquerade = rule.nested_elem().push_name(c"masq");
    // The specification describes the data of this expression, but does not list it.
    let begin = push_nested_header(masquerade.as_vec_mut(), EXPRESSION_DATA);
    let data = PushExprMasqAttrs::new(masquerade).push_flags(flags);
    let mut masquerade = data.push_reg_proto_min(FIRST).push_reg_proto_max(SECOND).end_nested();
    finalize_nested_header(masquerade.as_vec_mut(), begin);
    masquerade.end_nested()
}

fn unmark<P: Pusher>(rule: Rule<P>, bit: u32) -> Rule<P> {
    let rule = mask(load(rule, MetaKeys::Mark), !bit);
    let set = rule.nested_elem().nested_data_meta();
    set.push_key(MetaKeys::Mark as u32).push_sreg(FIRST).end_nested().end_nested()
}

fn load<P: Pusher>(rule: Rule<P>, key: MetaKeys) -> Rule<P> {
    let load = rule.nested_elem().nested_data_meta();
    load.push_key(key as u32).push_dreg(FIRST).end_nested().end_nested()
}

fn put<P: Pusher>(rule: Rule<P>, register: u32, value: &[u8]) -> Rule<P> {
    let put = rule.nested_elem().nested_data_immediate().push_dreg(register);
    put.nested_data().push_value(value).end_nested().end_nested().end_nested()
}

/// Marks are numbers of the host's byte order.
fn mask<P: Pusher>(rule: Rule<P>, mask: u32) -> Rule<P> {
    let bitwise = rule.nested_elem().nested_data_bitwise();
    let bitwise = bitwise.push_sreg(FIRST).push_dreg(FIRST).push_len(size_of::<u32>() as u32);
    let bitwise = bitwise.nested_mask().push_value(&mask.to_ne_bytes()).end_nested();
    bitwise.nested_xor().push_value(&[0; 4]).end_nested().end_nested().end_nested()
}

fn compare<P: Pusher>(rule: Rule<P>, how: CmpOps, value: &[u8]) -> Rule<P> {
    let compare = rule.nested_elem().nested_data_cmp().push_sreg(FIRST).push_op(how as u32);
    compare.nested_data().push_value(value).end_nested().end_nested().end_nested()
}

fn header() -> Nfgenmsg {
    Nfgenmsg { nfgen_family: INET, ..Nfgenmsg::new() }
}

/// Commands that the kernel carries out together or not at all.
struct Batch(Chained<'static>);

impl Batch {
    fn begin() -> Self {
        let mut all = Chained::new(0);
        all.request().op_batch_begin_do(&Self::header());
        Self(all)
    }

    fn header() -> Nfgenmsg {
        let mut header = Nfgenmsg::new();
        header.set_res_id(SUBSYSTEM);
        header
    }

    /// Has the kernel carry out the commands; without `commit`, check them.
    fn send(self, commit: bool) -> io::Result<()> {
        let Self(mut all) = self;
        if commit {
            all.request().op_batch_end_do(&Self::header());
        }
        let all = all.finalize();
        // The end of a batch is acknowledged only from Linux 6.10 on: nobody waits for that, so
        // nothing else can be asked on this socket.
        let last = all.chain_len() - if commit { 2 } else { 1 };
        Netlink::open(Some(NETFILTER))?.command(all.buf(), last as u32)
    }
}

/// The table, its chains and its rules.
fn objects(netlink: &Netlink) -> io::Result<Vec<Vec<u8>>> {
    let mut all = list(netlink, |all| {
        all.op_gettable_do(&header()).encode().push_name(TABLE);
    })?;
    for name in [POSTROUTING, UNMARK] {
        all.extend(list(netlink, |all| {
            all.op_getchain_do(&header()).encode().push_table(TABLE).push_name(name);
        })?);
    }
    all.extend(list(netlink, |all| {
        all.op_getrule_dump(&header()).encode().push_table(TABLE);
    })?);
    Ok(all)
}

/// As [`nftables::list`]; returns the attributes of each object.
fn list(netlink: &Netlink, ask: impl FnOnce(Request<'_>)) -> io::Result<Vec<Vec<u8>>> {
    let mut objects = Vec::new();
    nftables::list(netlink, ask, |attributes| objects.push(attributes.to_vec()))?;
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_connection_tracking_lacks_modules_that_are_named() {
        // `nft_expr_type_get` and `nft_chain_parse_hook` without their module; a socket without nf_tables.
        for error in [libc::ENOENT, libc::EOPNOTSUPP, libc::EPROTONOSUPPORT] {
            let said = MasqueradeError(io::Error::from_raw_os_error(error)).to_string();
            assert!(said.ends_with("load nf_tables, nft_chain_nat and nft_masq"), "{said}");
        }
        let said = MasqueradeError(io::Error::from_raw_os_error(libc::ENOMEM)).to_string();
        assert!(!said.contains("module"), "{said}");
    }
}
