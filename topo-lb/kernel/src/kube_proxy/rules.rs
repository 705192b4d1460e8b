//! kube-proxy's rules in the kernel, whatever its mode. Chains that kubelet makes, such as
//! `KUBE-FIREWALL`, are not among them.

use std::io;
use std::mem::size_of;
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;

use memchr::memmem;
use netlink_bindings::nftables::{ChainAttrs, Nfgenmsg, Request};
use nix::net::if_::if_nametoindex;
use rustix::net::netlink::NETFILTER;

use crate::netlink::Netlink;
use crate::nftables;

/// Its chain for Services in the table `nat` of iptables.
const CHAIN: &str = "KUBE-SERVICES";
/// Its table of nftables.
const TABLE: &str = "kube-proxy";

/// What is there, in words. What cannot be read is left out.
pub(super) fn look() -> Vec<&'static str> {
    let (mut chain, mut table) = (false, false);
    // Without nf_tables there are no such chains.
    let _ = chains(|of_table, name| {
        table |= of_table == TABLE;
        chain |= (of_table, name) == ("nat", CHAIN);
    });
    let found = [
        (table, "the table kube-proxy of nftables"),
        (chain, "the chain KUBE-SERVICES of iptables"),
        (in_legacy().unwrap_or(false), "the chain KUBE-SERVICES of iptables-legacy"),
        (if_nametoindex("kube-ipvs0").is_ok(), "the device kube-ipvs0"),
    ];
    found.into_iter().filter(|(is_there, _)| *is_there).map(|(_, words)| words).collect()
}

/// Calls `each` with the table and the name of every chain of nftables, of all families. iptables-nft keeps
/// its chains there, too.
fn chains(mut each: impl FnMut(&str, &str)) -> io::Result<()> {
    let netlink = Netlink::open(Some(NETFILTER))?;
    let ask = |all: Request<'_>| drop(all.op_getchain_dump(&Nfgenmsg::new()));
    nftables::list(&netlink, ask, |attributes| {
        let chain = ChainAttrs::new(attributes);
        if let (Ok(table), Ok(name)) = (chain.get_table(), chain.get_name()) {
            each(&table.to_string_lossy(), &name.to_string_lossy());
        }
    })
}

/// Whether the older iptables for IPv4 has its chain (include/uapi/linux/netfilter_ipv4/ip_tables.h).
/// Does not make the table.
fn in_legacy() -> io::Result<bool> {
    const SO_GET_INFO: libc::c_int = 64;
    const SO_GET_ENTRIES: libc::c_int = 65;
    /// `sizeof(struct ipt_getinfo)`, and where its member `size` is.
    const INFO: usize = 84;
    const INFO_SIZE: usize = 80;
    /// `sizeof(struct ipt_get_entries)`, and where its member `size` is. Entries follow.
    const ENTRIES: usize = 40;
    const ENTRIES_SIZE: usize = 32;

    let tables = std::fs::read_to_string("/proc/net/ip_tables_names")?;
    if !tables.lines().any(|table| table == "nat") {
        return Ok(false);
    }
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let mut info = [0_u8; INFO];
    info[..3].copy_from_slice(b"nat");
    get(&socket, SO_GET_INFO, &mut info)?;
    let mut size = [0; size_of::<u32>()];
    size.copy_from_slice(&info[INFO_SIZE..INFO_SIZE + size_of::<u32>()]);
    let mut entries = vec![0; ENTRIES + u32::from_ne_bytes(size) as usize];
    entries[..3].copy_from_slice(b"nat");
    entries[ENTRIES_SIZE..ENTRIES_SIZE + size.len()].copy_from_slice(&size);
    get(&socket, SO_GET_ENTRIES, &mut entries)?;
    // A chain begins with an error target that has its name.
    Ok(memmem::find(&entries, &[CHAIN.as_bytes(), b"\0"].concat()).is_some())
}

/// Reads a socket option of the level `IPPROTO_IP` into `value`, which also has the question.
fn get(socket: &UdpSocket, option: libc::c_int, value: &mut [u8]) -> io::Result<()> {
    let mut length = value.len() as libc::socklen_t;
    // SAFETY: the socket is open, and the kernel writes at most `length` bytes to `value`, which has
    // so many.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            option,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
