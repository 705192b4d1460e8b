//! Addresses that encode an endpoint's Service, its generation, and its place in it: the address
//! that a connection reached tells which endpoint it was.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use topo_lb_common::stress;

/// Number of Services per address family.
pub const SERVICES: u8 = stress::SERVICES as u8;
/// Upper bound (exclusive) of a Service's endpoints.
pub const MOST: u16 = 1 << 9;
/// Addresses repeat after so many generations.
pub const CYCLE: u32 = stress::GENERATIONS;

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both, in the order of their numbers.
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];
}

/// An endpoint of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Below [`SERVICES`].
    pub service: u8,
    /// Below [`CYCLE`].
    pub generation: u32,
    /// Below [`MOST`].
    pub place: u16,
}

impl Endpoint {
    /// The endpoint's address.
    pub fn address(self, family: Family) -> IpAddr {
        let bits = (u32::from(self.service) << 18)
            | ((self.generation % CYCLE) << 9)
            | u32::from(self.place);
        match family {
            Family::V4 => Ipv4Addr::from_bits((10 << 24) | bits).into(),
            Family::V6 => Ipv6Addr::from_bits((0xfd00_000a << 96) | u128::from(bits)).into(),
        }
    }

    /// The endpoint with this address, if any.
    pub fn at(address: IpAddr) -> Option<Self> {
        let bits = match address {
            IpAddr::V4(address) if address.octets()[0] == 10 => address.to_bits() & 0x00ff_ffff,
            IpAddr::V6(address) if address.to_bits() >> 24 == 0xfd00_000a << 72 => {
                (address.to_bits() & 0x00ff_ffff) as u32
            }
            _ => return None,
        };
        Some(Self {
            service: (bits >> 18) as u8,
            generation: (bits >> 9) & (CYCLE - 1),
            place: (bits & u32::from(MOST - 1)) as u16,
        })
    }
}

/// The ClusterIP of a Service.
pub fn cluster_ip(service: u8, family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(172, 20, 0, service + 1).into(),
        Family::V6 => Ipv6Addr::from_bits((0xfd00_000b << 96) | u128::from(service + 1)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_read_off_its_address_and_no_cluster_ip_is_one() {
        for family in Family::BOTH {
            for service in 0..SERVICES {
                assert_eq!(Endpoint::at(cluster_ip(service, family)), None);
                for (generation, place) in [(0, 0), (1, 511), (CYCLE - 1, 0), (77, 300)] {
                    let endpoint = Endpoint { service, generation, place };
                    assert_eq!(Endpoint::at(endpoint.address(family)), Some(endpoint));
                }
            }
        }
    }
}
