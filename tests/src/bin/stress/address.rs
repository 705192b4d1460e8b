//! Addresses that say what they are: an endpoint's names its Service, the generation that it is
//! of, and its place there, so that where a connection has landed is read off its address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// How many Services there are in each address family.
pub(crate) const SERVICES: u8 = 64;
/// Endpoints of a Service at most, exclusive.
pub(crate) const MOST: u16 = 1 << 9;
/// Addresses repeat after so many generations.
pub(crate) const CYCLE: u32 = 1 << 9;

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const BOTH: [Self; 2] = [Self::V4, Self::V6];
}

/// An endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// Below [`SERVICES`].
    pub(crate) service: u8,
    /// Below [`CYCLE`].
    pub(crate) generation: u32,
    /// Below [`MOST`].
    pub(crate) place: u16,
}

impl Endpoint {
    /// Its address.
    pub(crate) fn address(self, family: Family) -> IpAddr {
        let bits = (u32::from(self.service) << 18)
            | ((self.generation % CYCLE) << 9)
            | u32::from(self.place);
        match family {
            Family::V4 => Ipv4Addr::from_bits((10 << 24) | bits).into(),
            Family::V6 => Ipv6Addr::from_bits((0xfd00_000a << 96) | u128::from(bits)).into(),
        }
    }

    /// The endpoint at an address; `None` where there is none.
    pub(crate) fn at(address: IpAddr) -> Option<Self> {
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
pub(crate) fn cluster_ip(service: u8, family: Family) -> IpAddr {
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
