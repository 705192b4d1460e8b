//! Converts between the plan's types and the layouts of the maps. Pure.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use topo_lb_common::address::{self, Frontend4, Frontend6};
use topo_lb_common::backend::{Backend4, Backend6, Locality};
use topo_lb_common::maps;
use topo_lb_common::members::{MemberKey4, MemberKey6};
use topo_lb_common::selection::{INLINE, NO_TIER, SLOTTED, Selection};
use topo_lb_common::service::{Service4, Service6};

use crate::cluster::{Frontend, Protocol};
use crate::plan::Entry;
use crate::topology::Chosen;

/// The kernel's number of a protocol.
pub const fn protocol_number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => address::TCP,
        Protocol::Udp => address::UDP,
        Protocol::Sctp => address::SCTP,
    }
}

/// The protocol with a kernel's number; `None` if no Service can have it.
pub const fn protocol_of(number: u8) -> Option<Protocol> {
    match number {
        address::TCP => Some(Protocol::Tcp),
        address::UDP => Some(Protocol::Udp),
        address::SCTP => Some(Protocol::Sctp),
        _ => None,
    }
}

/// The layouts of one address family's maps.
pub trait Layout {
    /// Name of `services*`.
    const SERVICES: &'static str;
    /// Name of `slots*`.
    const SLOTS: &'static str;
    /// Name of `members*`.
    const MEMBERS: &'static str;
    /// Key of `services*`.
    type Frontend: bytemuck::Pod;
    /// Value of `services*`.
    type Service: bytemuck::Pod;
    /// Value of `slots*`.
    type Backend: bytemuck::Pod + Default;
    /// Key of `members*`.
    type MemberKey: bytemuck::Pod;
    /// An address in network order.
    type Octets: Copy;

    /// The octets of an address; `None` if it is of the other family.
    fn octets(address: IpAddr) -> Option<Self::Octets>;
    /// Key of `services*`.
    fn frontend(octets: Self::Octets, port: u16, protocol: u8) -> Self::Frontend;
    /// Decodes a frontend; `None` if no Service can have its protocol.
    fn read_frontend(frontend: &Self::Frontend) -> Option<Frontend>;
    /// Value of `slots*`.
    fn backend(octets: Self::Octets, port: u16, locality: Locality) -> Self::Backend;
    /// Decodes an endpoint.
    fn read_backend(backend: &Self::Backend) -> Chosen;
    /// Key of `members*`.
    fn member(index: u32, octets: Self::Octets, port: u16) -> Self::MemberKey;
    /// Decodes a member: Service index and endpoint.
    fn read_member(key: &Self::MemberKey) -> (u32, SocketAddr);
    /// Value of `services*`.
    fn service(
        frontend: Self::Frontend,
        header: Header,
        inline: [Self::Backend; INLINE],
    ) -> Self::Service;
    /// The header and the inline endpoints of a value of `services*`.
    fn read_service(service: &Self::Service) -> (Header, [Self::Backend; INLINE]);
    /// Whether a value is that of a single write, for this key.
    fn is_whole(service: &Self::Service, key: &Self::Frontend) -> bool;
}

/// The common part of both families' service values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number of the write.
    pub generation: u32,
    /// Index of the Service port.
    pub service: u32,
    /// How to choose.
    pub selection: Selection,
    /// Session affinity in seconds; zero for none.
    pub affinity_seconds: u32,
}

/// IPv4 maps.
pub struct V4;
/// IPv6 maps.
pub struct V6;

macro_rules! layout {
    ($family:ty, $variant:ident, $address:ty, $octets:ty, $frontend:ident, $service:ident,
     $backend:ident, $member:ident, maps: [$services:ident $slots:ident $members:ident],
     padding: [$($padding:ident)*]) => {
        impl Layout for $family {
            const SERVICES: &'static str = maps::$services;
            const SLOTS: &'static str = maps::$slots;
            const MEMBERS: &'static str = maps::$members;
            type Frontend = $frontend;
            type Service = $service;
            type Backend = $backend;
            type MemberKey = $member;
            type Octets = $octets;

            fn octets(address: IpAddr) -> Option<$octets> {
                match address {
                    IpAddr::$variant(address) => Some(address.octets()),
                    _ => None,
                }
            }

            fn frontend(address: $octets, port: u16, protocol: u8) -> $frontend {
                $frontend { address, port, protocol, reserved: 0 }
            }

            fn read_frontend(frontend: &$frontend) -> Option<Frontend> {
                Some(Frontend {
                    address: <$address>::from(frontend.address).into(),
                    port: frontend.port,
                    protocol: protocol_of(frontend.protocol)?,
                })
            }

            fn backend(address: $octets, port: u16, locality: Locality) -> $backend {
                $backend { address, port, locality: locality as u8, reserved: 0 }
            }

            fn read_backend(backend: &$backend) -> Chosen {
                let address = (<$address>::from(backend.address), backend.port).into();
                Chosen::new(address, Locality::from_byte(backend.locality))
            }

            fn member(service: u32, address: $octets, port: u16) -> $member {
                $member { service, address, port, reserved: 0 }
            }

            fn read_member(key: &$member) -> (u32, SocketAddr) {
                (key.service, (<$address>::from(key.address), key.port).into())
            }

            fn service(
                frontend: $frontend,
                header: Header,
                endpoints: [$backend; INLINE],
            ) -> $service {
                $service {
                    generation: header.generation,
                    service: header.service,
                    frontend,
                    selection: header.selection,
                    affinity_seconds: header.affinity_seconds,
                    endpoints,
                    generation_tail: header.generation,
                    $($padding: 0,)*
                }
            }

            fn read_service(service: &$service) -> (Header, [$backend; INLINE]) {
                let header = Header {
                    generation: service.generation,
                    service: service.service,
                    selection: service.selection,
                    affinity_seconds: service.affinity_seconds,
                };
                (header, service.endpoints)
            }

            fn is_whole(service: &$service, key: &$frontend) -> bool {
                service.generation == service.generation_tail && service.frontend == *key
            }
        }
    };
}

layout!(V4, V4, Ipv4Addr, [u8; 4], Frontend4, Service4, Backend4, MemberKey4, maps: [SERVICES4 SLOTS4 MEMBERS4], padding: [reserved reserved_tail]);
layout!(V6, V6, Ipv6Addr, [u8; 16], Frontend6, Service6, Backend6, MemberKey6, maps: [SERVICES6 SLOTS6 MEMBERS6], padding: []);

/// The row as backends of this family; leaves out endpoints of the other.
pub fn backends<L: Layout>(row: &[Chosen]) -> Vec<L::Backend> {
    row.iter()
        .filter_map(|chosen| {
            let address = chosen.address();
            let octets = L::octets(address.ip())?;
            Some(L::backend(octets, address.port(), chosen.locality))
        })
        .collect()
}

/// The value that publishes an entry.
pub fn service<L: Layout>(
    frontend: L::Frontend,
    entry: &Entry,
    slot_base: Option<u32>,
    generation: u32,
) -> L::Service {
    let mut inline = [L::Backend::default(); INLINE];
    if slot_base.is_none() {
        for (place, backend) in inline.iter_mut().zip(backends::<L>(&entry.row)) {
            *place = backend;
        }
    }
    let selection = Selection {
        slot_base: slot_base.unwrap_or(0),
        spill: entry.spill,
        count: entry.count,
        wider: (entry.row.len() - usize::from(entry.count)) as u16,
        flags: if slot_base.is_some() { SLOTTED } else { 0 },
        tier: entry.tier.unwrap_or(NO_TIER),
        reserved: 0,
    };
    let header = Header {
        generation,
        service: entry.index,
        selection,
        affinity_seconds: entry.affinity_seconds,
    };
    L::service(frontend, header, inline)
}

/// The entry, first slot and generation in a value. `slot` reads one slot.
pub fn entry<L: Layout>(
    service: &L::Service,
    mut slot: impl FnMut(u32) -> Option<L::Backend>,
) -> (Entry, Option<u32>, u32) {
    let (header, inline) = L::read_service(service);
    let selection = header.selection;
    let length = u32::from(selection.count) + u32::from(selection.wider);
    let slotted = selection.flags & SLOTTED != 0;
    let row = if slotted {
        (0..length)
            .filter_map(|place| slot(selection.slot_base.checked_add(place)?))
            .map(|backend| L::read_backend(&backend))
            .collect()
    } else {
        inline.iter().take(length as usize).map(L::read_backend).collect()
    };
    let entry = Entry {
        index: header.service,
        tier: (selection.tier != NO_TIER).then_some(selection.tier),
        count: selection.count,
        spill: selection.spill,
        affinity_seconds: header.affinity_seconds,
        row,
    };
    (entry, slotted.then_some(selection.slot_base), header.generation)
}

/// Encodes a text with a final zero; a longer one is cut.
pub fn text<const LENGTH: usize>(text: &str) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    for (place, byte) in bytes[..LENGTH - 1].iter_mut().zip(text.bytes()) {
        *place = byte;
    }
    bytes
}

/// Decodes a text; `None` if it has no final zero, or is not UTF-8.
pub fn read_text(bytes: &[u8]) -> Option<&str> {
    CStr::from_bytes_until_nul(bytes).ok()?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use topo_lb_common::counters::NAME_LENGTH;

    use super::*;

    fn chosen(address: &str, locality: Locality) -> Chosen {
        Chosen::new(address.parse().unwrap(), locality)
    }

    fn entry_of(row: Vec<Chosen>, count: u16) -> Entry {
        Entry { index: 7, tier: Some(1), count, spill: 9, affinity_seconds: 600, row: row.into() }
    }

    #[test]
    fn an_inline_entry_is_read_back_as_it_was_written() {
        let row =
            vec![chosen("10.0.0.1:80", Locality::Node), chosen("10.0.0.2:81", Locality::Region)];
        let wanted = entry_of(row, 1);
        let key = V4::frontend([10, 96, 0, 1], 80, address::TCP);
        let value = service::<V4>(key, &wanted, None, 42);
        assert_eq!(value.generation, value.generation_tail);
        assert_eq!(value.frontend, key);
        let (read, base, generation) = entry::<V4>(&value, |_| None);
        assert_eq!((read, base, generation), (wanted, None, 42));
    }

    #[test]
    fn a_slotted_entry_is_read_back_from_its_slots() {
        let row: Vec<Chosen> =
            (1..=12).map(|n| chosen(&format!("[fd00::{n}]:80"), Locality::Zone)).collect();
        let wanted = Entry { tier: None, ..entry_of(row.clone(), 12) };
        let slots = backends::<V6>(&row);
        let key = V6::frontend([0xfd; 16], 53, address::UDP);
        let value = service::<V6>(key, &wanted, Some(100), 1);
        let (read, base, _) = entry::<V6>(&value, |slot| slots.get(slot as usize - 100).copied());
        assert_eq!((read, base), (wanted, Some(100)));
        assert_eq!(value.endpoints, [Backend6::default(); INLINE]);
    }

    #[test]
    fn names_of_any_length_fit_and_are_read_back() {
        let name = |name: &str| text::<NAME_LENGTH>(name);
        assert_eq!(read_text(&name("default/web:http")), Some("default/web:http"));
        let label = "x".repeat(63);
        let longest = format!("{label}/{label}:{label}");
        assert_eq!(read_text(&name(&longest)), Some(&*longest), "it names another port when cut");
        let long = "x".repeat(500);
        assert_eq!(read_text(&name(&long)).map(str::len), Some(NAME_LENGTH - 1));
    }
}
