//! Converts between the plan's types and the layouts of the maps. Pure.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use topo_lb_common::address::{self, Frontend4, Frontend6};
use topo_lb_common::backend::{Backend4, Backend6, Locality};
use topo_lb_common::maps;
use topo_lb_common::members::{MemberKey4, MemberKey6};
use topo_lb_common::record::{DROPS, FAILURES_SHIFT, INLINE4, INLINE6, NO_TIER, Record4, Record6};
use topo_lb_common::selection::{HASHED, NO_SLOTS};
use topo_lb_common::sources::{FRONTEND_BITS4, FRONTEND_BITS6, Source4, Source6};

use topo_lb_core::cluster::{Clients, Frontend, Protocol};
use topo_lb_core::plan::{Entry, maglev};
use topo_lb_core::topology::Chosen;

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

/// What is added to the protocol of a frontend for these clients.
pub const fn clients_number(clients: Clients) -> u8 {
    match clients {
        Clients::Anywhere => 0,
        Clients::Outside => address::OUTSIDE,
        Clients::Steered => address::STEERED,
        Clients::Peers => address::PEERS,
    }
}

/// The layouts of one address family's maps.
pub trait Layout {
    /// Name of `services*`.
    const SERVICES: &'static str;
    /// Name of `records*`.
    const RECORDS: &'static str;
    /// Name of `slots*`.
    const SLOTS: &'static str;
    /// Name of `members*`.
    const MEMBERS: &'static str;
    /// Name of `sources*`.
    const SOURCES: &'static str;
    /// Prefix length of an entry of `sources*` that denies, in bits.
    const FRONTEND_BITS: u32;
    /// Key of `services*`.
    type Frontend: bytemuck::Pod;
    /// Value of `records*`.
    type Record: bytemuck::Pod;
    /// Value of `slots*`.
    type Backend: bytemuck::Pod;
    /// Key of `members*`.
    type MemberKey: bytemuck::Pod;
    /// Key of `sources*`, behind the prefix length.
    type Source: bytemuck::Pod;
    /// An address in network order.
    type Octets: bytemuck::Pod;

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
    /// Key of `sources*`: a frontend, and the address of a client or a range.
    fn source(frontend: Self::Frontend, client: Self::Octets) -> Self::Source;
    /// Decodes a key of `sources*`.
    fn read_source(source: &Self::Source) -> (Self::Frontend, IpAddr);
    /// Value of `records*`. `row`: the endpoints in it, as many as fit at most.
    fn record(frontend: Self::Frontend, head: Head, row: &[Self::Backend]) -> Self::Record;
    /// The frontend, the head, and all places for endpoints of a record.
    fn read_record(record: &Self::Record) -> (Self::Frontend, Head, Vec<Self::Backend>);
}

/// The part of a record that both families have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Index of the Service port.
    pub service: u32,
    /// Index of the matching key, or `NO_TIER`.
    pub tier: u8,
    /// First slot, or `NO_SLOTS`.
    pub slot_base: u32,
    /// Endpoints of the chosen tier; zero refuses.
    pub count: u16,
    /// Endpoints of the wider tier.
    pub wider: u16,
    /// Share of new connections for the wider tier.
    pub spill: u16,
    /// How many failures in a row the agent hears of; zero for none.
    pub failures: u8,
    /// Session affinity in seconds; zero for none.
    pub affinity_seconds: u32,
}

/// IPv4 maps.
pub struct V4;
/// IPv6 maps.
pub struct V6;

macro_rules! layout {
    ($family:ty, $variant:ident, $address:ty, $octets:ty, $frontend:ident, $record:ident,
     $inline:ident, $backend:ident, $member:ident, $source:ident, $frontend_bits:ident,
     maps: [$services:ident $records:ident $slots:ident $members:ident $sources:ident]) => {
        impl Layout for $family {
            const SERVICES: &'static str = maps::$services;
            const RECORDS: &'static str = maps::$records;
            const SLOTS: &'static str = maps::$slots;
            const MEMBERS: &'static str = maps::$members;
            const SOURCES: &'static str = maps::$sources;
            const FRONTEND_BITS: u32 = $frontend_bits;
            type Frontend = $frontend;
            type Record = $record;
            type Backend = $backend;
            type MemberKey = $member;
            type Source = $source;
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
                let of = |clients| {
                    let protocol = frontend.protocol.checked_sub(clients_number(clients))?;
                    Some((protocol_of(protocol)?, clients))
                };
                let (protocol, clients) = Clients::ALL.into_iter().find_map(of)?;
                let address = <$address>::from(frontend.address).into();
                Some(Frontend::new(address, frontend.port, protocol).of(clients))
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

            fn source(frontend: $frontend, client: $octets) -> $source {
                let $frontend { address, port, protocol, reserved } = frontend;
                $source { address, port, protocol, reserved, client }
            }

            fn read_source(source: &$source) -> ($frontend, IpAddr) {
                let $source { address, port, protocol, reserved, client } = *source;
                let frontend = $frontend { address, port, protocol, reserved };
                (frontend, <$address>::from(client).into())
            }

            fn record(frontend: $frontend, head: Head, row: &[$backend]) -> $record {
                let $frontend { address, port, protocol, reserved: _ } = frontend;
                let Head { service, tier, slot_base, count, wider, spill, failures, .. } = head;
                let mut record = $record {
                    address,
                    port,
                    protocol,
                    tier,
                    service,
                    slot_base,
                    affinity_seconds: head.affinity_seconds,
                    count,
                    wider,
                    spill,
                    localities: u16::from(failures) << FAILURES_SHIFT,
                    ..Default::default()
                };
                for (place, backend) in row.iter().enumerate().take($inline) {
                    record.addresses[place] = backend.address;
                    record.ports[place] = backend.port;
                    record.localities |= u16::from(backend.locality & 3) << (2 * place);
                }
                record
            }

            fn read_record(record: &$record) -> ($frontend, Head, Vec<$backend>) {
                let $record { address, port, protocol, tier, service, .. } = *record;
                let $record { slot_base, affinity_seconds, count, wider, spill, .. } = *record;
                let failures = (record.localities >> FAILURES_SHIFT) as u8;
                let head = Head {
                    service,
                    tier,
                    slot_base,
                    count,
                    wider,
                    spill,
                    failures,
                    affinity_seconds,
                };
                let backend = |place| {
                    let (address, port) = (record.addresses[place], record.ports[place]);
                    let locality = (record.localities >> (2 * place)) as u8 & 3;
                    $backend { address, port, locality, reserved: 0 }
                };
                let frontend = $frontend { address, port, protocol, reserved: 0 };
                (frontend, head, (0..$inline).map(backend).collect())
            }
        }
    };
}

layout!(V4, V4, Ipv4Addr, [u8; 4], Frontend4, Record4, INLINE4, Backend4, MemberKey4, Source4, FRONTEND_BITS4, maps: [SERVICES4 RECORDS4 SLOTS4 MEMBERS4 SOURCES4]);
layout!(V6, V6, Ipv6Addr, [u8; 16], Frontend6, Record6, INLINE6, Backend6, MemberKey6, Source6, FRONTEND_BITS6, maps: [SERVICES6 RECORDS6 SLOTS6 MEMBERS6 SOURCES6]);

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

/// The record of an entry.
pub fn record<L: Layout>(
    frontend: L::Frontend,
    entry: &Entry,
    slot_base: Option<u32>,
) -> L::Record {
    let row = if slot_base.is_none() { backends::<L>(&entry.filled()) } else { Vec::new() };
    let head = Head {
        service: entry.index,
        tier: entry.tier.unwrap_or(NO_TIER),
        slot_base: slot_base.unwrap_or(NO_SLOTS),
        count: entry.count,
        wider: match entry.drops {
            true => DROPS,
            false => (entry.slots() - u32::from(entry.count)) as u16,
        },
        spill: entry.spill,
        failures: entry.failures,
        affinity_seconds: entry.affinity_seconds,
    };
    L::record(frontend, head, &row)
}

/// The frontend, the entry and the first slot in a record. `slot` reads one slot.
pub fn entry<L: Layout>(
    record: &L::Record,
    mut slot: impl FnMut(u32) -> Option<L::Backend>,
) -> (L::Frontend, Entry, Option<u32>) {
    let (frontend, head, inline) = L::read_record(record);
    let drops = head.count == 0 && head.wider == DROPS;
    let length = if drops { 0 } else { u32::from(head.count) + u32::from(head.wider) };
    let slot_base = (head.slot_base != NO_SLOTS).then_some(head.slot_base);
    let row: Vec<_> = match slot_base {
        Some(base) => (0..length)
            .filter_map(|place| slot(base.checked_add(place)?))
            .map(|backend| L::read_backend(&backend))
            .collect(),
        None => inline.iter().take(length as usize).map(L::read_backend).collect(),
    };
    let (row, table) = match head.spill {
        HASHED => {
            let (row, shares) = maglev::folded(&row);
            (row, Some(shares.into()))
        }
        _ => (row.into(), None),
    };
    let entry = Entry {
        index: head.service,
        tier: (head.tier != NO_TIER).then_some(head.tier),
        count: head.count,
        drops,
        spill: head.spill,
        failures: head.failures,
        affinity_seconds: head.affinity_seconds,
        row,
        table,
    };
    (frontend, entry, slot_base)
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
    use topo_lb_core::cluster::Family;
    use topo_lb_core::topology::Part;

    use super::*;

    fn chosen(address: &str, locality: Locality) -> Chosen {
        Chosen::new(address.parse().unwrap(), locality)
    }

    fn entry_of(row: Vec<Chosen>, count: u16) -> Entry {
        Entry {
            index: 7,
            tier: Some(1),
            count,
            drops: false,
            spill: 9,
            failures: 15,
            affinity_seconds: 600,
            row: row.into(),
            table: None,
        }
    }

    #[test]
    fn an_inline_entry_is_read_back_as_it_was_written() {
        let row =
            vec![chosen("10.0.0.1:80", Locality::Node), chosen("10.0.0.2:81", Locality::Region)];
        let wanted = entry_of(row, 1);
        let key = V4::frontend([10, 96, 0, 1], 80, address::TCP);
        let value = record::<V4>(key, &wanted, None);
        assert_eq!(entry::<V4>(&value, |_| None), (key, wanted, None));
    }

    #[test]
    fn a_slotted_entry_is_read_back_from_its_slots() {
        let row: Vec<Chosen> =
            (1..=12).map(|n| chosen(&format!("[fd00::{n}]:80"), Locality::Zone)).collect();
        let wanted = Entry { tier: None, ..entry_of(row.clone(), 12) };
        let slots = backends::<V6>(&row);
        let key = V6::frontend([0xfd; 16], 53, address::UDP);
        let value = record::<V6>(key, &wanted, Some(100));
        let read = entry::<V6>(&value, |slot| slots.get(slot as usize - 100).copied());
        assert_eq!(read, (key, wanted, Some(100)));
        assert_eq!(value.addresses, [[0; 16]; INLINE6]);
    }

    #[test]
    fn a_table_is_written_in_its_row_s_place_and_folded_when_it_is_read() {
        for (count, slots) in [(1, 1), (3, 1_601)] {
            let at = |n| chosen(&format!("10.0.0.{n}:80"), Locality::Zone);
            let parts = [Part { weight: 1, endpoints: (1..=count).map(at).collect() }];
            let (row, shares) = maglev::apportioned(&parts);
            let plain = entry_of(row.to_vec(), shares.size());
            let wanted = Entry { spill: HASHED, table: Some(shares.into()), ..plain };
            assert_eq!((wanted.slots(), wanted.count), (slots, slots as u16));
            let base = wanted.needs_slots(Family::V4).then_some(7);
            let key = V4::frontend([203, 0, 113, 7], 80, address::TCP | address::OUTSIDE);
            let value = record::<V4>(key, &wanted, base);
            assert_eq!((value.count, value.wider, value.spill), (slots as u16, 0, HASHED));
            let written = backends::<V4>(&wanted.filled());
            let read = entry::<V4>(&value, |slot| written.get(slot as usize - 7).copied());
            assert_eq!(read, (key, wanted, base));
        }
    }

    #[test]
    fn an_entry_that_drops_is_read_back_and_keeps_its_clients() {
        let wanted = Entry { drops: true, tier: None, spill: 0, ..entry_of(Vec::new(), 0) };
        let key = V4::frontend([203, 0, 113, 7], 80, address::TCP | address::OUTSIDE);
        let value = record::<V4>(key, &wanted, None);
        assert_eq!((value.count, value.wider), (0, DROPS));
        assert_eq!(entry::<V4>(&value, |_| None), (key, wanted, None));
        let frontend = V4::read_frontend(&key).expect("a Service can have it");
        assert_eq!(frontend.to_string(), "203.0.113.7:80/TCP from outside");
    }

    #[test]
    fn each_frontend_has_a_key_of_its_own_and_is_read_back() {
        let numbers =
            [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(|it| (it, protocol_number(it)));
        for number in 0..=u8::MAX {
            let key = V4::frontend([10, 244, 0, 7], 80, number);
            let is_it = |protocol, clients: &Clients| protocol | clients_number(*clients) == number;
            let wanted = numbers.iter().find_map(|&(protocol, of_protocol)| {
                let clients = Clients::ALL.into_iter().find(|it| is_it(of_protocol, it))?;
                Some(Frontend::new([10, 244, 0, 7].into(), 80, protocol).of(clients))
            });
            assert_eq!(V4::read_frontend(&key), wanted, "{number}");
        }
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
