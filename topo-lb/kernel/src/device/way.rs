//! The way to another node: the kernel's route to an endpoint there, and the Ethernet address of its next hop.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable, bytes_of};
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE};
use topo_lb_core::peers::status::Unproved;

use super::Device;
use super::list::name;
use crate::netlink::{self, Netlink, attribute, head};

/// Attributes of routes and of neighbours, include/uapi/linux/rtnetlink.h and neighbour.h.
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_VIA: u16 = 18;
const RTA_ENCAP: u16 = 22;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// States in which the kernel sends to the address that it has (`NUD_VALID`, include/net/neighbour.h).
const VALID: u16 = libc::NUD_PERMANENT
    | libc::NUD_NOARP
    | libc::NUD_REACHABLE
    | libc::NUD_PROBE
    | libc::NUD_STALE
    | libc::NUD_DELAY;

/// `struct rtmsg`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Route {
    family: u8,
    destination_bits: u8,
    source_bits: u8,
    tos: u8,
    table: u8,
    protocol: u8,
    scope: u8,
    kind: u8,
    flags: u32,
}

/// `struct ndmsg`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Neighbour {
    family: u8,
    padding: [u8; 3],
    device: u32,
    state: u16,
    flags: u8,
    kind: u8,
}

/// Looks ways up in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Ways(Netlink);

impl Ways {
    /// Opens a socket.
    ///
    /// # Errors
    /// The kernel opens none.
    pub fn open() -> io::Result<Self> {
        Netlink::open(None).map(Self)
    }

    /// The Ethernet address to which packets for an endpoint go by the uplink. If the kernel does not know it, it is made
    /// to ask for it: look again soon.
    ///
    /// # Errors
    /// There is no such way, and why.
    pub fn to(&self, endpoint: IpAddr, uplink: &Device) -> Result<[u8; 6], Unproved> {
        let unroutable = |error: io::Error| Unproved::NoRoute(endpoint, error.to_string().into());
        let (device, hop) = self.route(endpoint)??;
        if device != uplink.index {
            let name = name(device).unwrap_or_else(|| format!("device {device}"));
            return Err(Unproved::Elsewhere(endpoint, name.into()));
        }
        if let Some(address) = self.neighbour(hop, device).map_err(unroutable)? {
            return Ok(address);
        }
        // If the kernel does not ask, the next look says so again.
        let _ = self.resolve(hop, device);
        Err(Unproved::NoNeighbour(hop))
    }

    /// The index of the device by which packets to an address leave; `None`: there is no route to another host.
    #[must_use]
    pub fn device_to(&self, address: IpAddr) -> Option<u32> {
        self.route(address).ok()?.ok().map(|(device, _)| device)
    }

    /// The device and the next hop of the route to an endpoint.
    fn route(&self, endpoint: IpAddr) -> Result<Result<(u32, IpAddr), Unproved>, Unproved> {
        let octets = octets(endpoint);
        let header = Route {
            family: family(endpoint),
            destination_bits: 8 * octets.len() as u8,
            ..Route::zeroed()
        };
        let mut found = None;
        let asked = self.0.ask_each(
            libc::RTM_GETROUTE,
            1,
            |_, body| append(body, bytes_of(&header), RTA_DST, &octets),
            |_, body| found = Some(read_route(body, endpoint)),
        );
        let none = |why: Arc<str>| Unproved::NoRoute(endpoint, why);
        asked.map_err(|error| none(error.to_string().into()))?;
        found.flatten().ok_or_else(|| none("it leads to no other host".into()))
    }

    /// The Ethernet address of a neighbour; `None` if the kernel does not know it (Linux 5.0, 82cbb5c631a0).
    fn neighbour(&self, hop: IpAddr, device: u32) -> io::Result<Option<[u8; 6]>> {
        let header = Neighbour { family: family(hop), device, ..Neighbour::zeroed() };
        let mut found = None;
        self.0.ask_each(
            libc::RTM_GETNEIGH,
            1,
            |_, body| append(body, bytes_of(&header), NDA_DST, &octets(hop)),
            |_, body| found = read_neighbour(body),
        )?;
        Ok(found)
    }

    /// Has the kernel ask for the address of a neighbour, as if it had a packet for it.
    fn resolve(&self, hop: IpAddr, device: u32) -> io::Result<()> {
        let header =
            Neighbour { family: family(hop), device, flags: libc::NTF_USE, ..Neighbour::zeroed() };
        let mut body = Vec::new();
        append(&mut body, bytes_of(&header), NDA_DST, &octets(hop));
        let flags = NLM_F_CREATE | NLM_F_ACK;
        self.0.command(&netlink::request(libc::RTM_NEWNEIGH, flags, &body), 0)
    }
}

fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().into(),
        IpAddr::V6(address) => address.octets().into(),
    }
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    match octets.len() {
        4 => <[u8; 4]>::try_from(octets).ok().map(IpAddr::from),
        _ => <[u8; 16]>::try_from(octets).ok().map(IpAddr::from),
    }
}

/// Appends a header and an attribute, whose length is a multiple of four.
fn append(body: &mut Vec<u8>, header: &[u8], kind: u16, value: &[u8]) {
    body.extend(header);
    body.extend((4 + value.len() as u16).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
}

/// `None`: the route leads to no other host.
fn read_route(body: &[u8], endpoint: IpAddr) -> Option<Result<(u32, IpAddr), Unproved>> {
    let header: Route = head(body)?;
    let attributes = body.get(size_of::<Route>()..)?;
    let device = head(attribute(attributes, RTA_OIF)?)?;
    if header.kind != libc::RTN_UNICAST {
        return None;
    }
    if attribute(attributes, RTA_ENCAP).is_some() {
        return Some(Err(Unproved::Encapsulated(endpoint)));
    }
    // `struct rtvia`: a family, and a gateway of that.
    let via = attribute(attributes, RTA_VIA).and_then(|via| address(via.get(2..)?));
    let gateway = || attribute(attributes, RTA_GATEWAY).and_then(address);
    Some(Ok((device, via.or_else(gateway).unwrap_or(endpoint))))
}

fn read_neighbour(body: &[u8]) -> Option<[u8; 6]> {
    let header: Neighbour = head(body)?;
    let attributes = body.get(size_of::<Neighbour>()..)?;
    let address = attribute(attributes, NDA_LLADDR)?;
    if header.state & VALID == 0 { None } else { address.try_into().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str) -> Device {
        let index = nix::net::if_::if_nametoindex(name).expect("a device");
        Device { index, name: name.to_owned() }
    }

    #[test]
    fn the_route_to_this_host_itself_leads_to_no_other() {
        let ways = Ways::open().expect("a socket");
        let here = IpAddr::from([127, 0, 0, 1]);
        let said = ways.to(here, &device("lo")).unwrap_err().to_string();
        assert!(said.contains("127.0.0.1: it leads to no other host"), "{said}");
    }

    #[test]
    fn a_route_has_a_gateway_of_its_family_or_of_another_or_none() {
        let endpoint = IpAddr::from([10, 244, 1, 2]);
        let read = |kind, attributes: &[(u16, &[u8])]| {
            let header = Route { family: libc::AF_INET as u8, kind, ..Route::zeroed() };
            let mut body = bytes_of(&header).to_vec();
            for (kind, value) in attributes {
                let mut padded = value.to_vec();
                padded.resize(value.len().next_multiple_of(4), 0);
                append(&mut body, &[], *kind, &padded);
                let at = body.len() - padded.len() - 4;
                body[at..at + 2].copy_from_slice(&(4 + value.len() as u16).to_ne_bytes());
            }
            read_route(&body, endpoint)
        };
        let out: (u16, &[u8]) = (RTA_OIF, &7_u32.to_ne_bytes());
        let six = "fe80::1".parse::<std::net::Ipv6Addr>().expect("an address");
        let via = [&(libc::AF_INET6 as u16).to_ne_bytes()[..], &six.octets()].concat();
        let unicast = libc::RTN_UNICAST;
        assert_eq!(read(unicast, &[out]), Some(Ok((7, endpoint))));
        let gateway: (u16, &[u8]) = (RTA_GATEWAY, &[10, 0, 0, 9]);
        assert_eq!(read(unicast, &[out, gateway]), Some(Ok((7, [10, 0, 0, 9].into()))));
        assert_eq!(read(unicast, &[(RTA_VIA, &via), out]), Some(Ok((7, six.into()))));
        let encapsulated = read(unicast, &[out, (RTA_ENCAP, &[])]);
        assert_eq!(encapsulated, Some(Err(Unproved::Encapsulated(endpoint))));
        for other in [libc::RTN_LOCAL, libc::RTN_BLACKHOLE] {
            assert_eq!(read(other, &[out]), None);
        }
        assert_eq!(read(unicast, &[]), None);
        assert_eq!(read_route(&[0; 5], endpoint), None);
    }

    #[test]
    fn a_neighbour_that_is_not_found_has_no_address() {
        let read = |state, address: &[u8]| {
            let header = Neighbour { state, ..Neighbour::zeroed() };
            let mut body = Vec::new();
            append(&mut body, bytes_of(&header), NDA_LLADDR, address);
            read_neighbour(&body)
        };
        let address = [2, 0, 0, 0, 0, 7];
        assert_eq!(read(libc::NUD_STALE, &address), Some(address));
        assert_eq!(read(libc::NUD_FAILED, &address), None);
        assert_eq!(read(libc::NUD_REACHABLE, &[0; 20]), None, "of InfiniBand");
    }
}
