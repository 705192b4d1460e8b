//! Writes `snat`: the address that the programs give connections to other nodes as their source.

use std::net::IpAddr;

use aya::maps::{Array, Map, MapData};
use topo_lb_common::maps;
use topo_lb_common::snat::Snat;

use super::error::StoreError;
use super::pinned::{Raw, failed};
use crate::device::SoleUplink;

/// Reads it.
///
/// # Errors
/// The map has another type, or the kernel refuses.
pub(crate) fn read(map: &Map) -> Result<Snat, StoreError> {
    let map = Array::<&MapData, Raw<Snat>>::try_from(map).map_err(failed(maps::SNAT, "read"))?;
    Ok(map.get(&0, 0).map_err(failed(maps::SNAT, "read"))?.0)
}

/// New connections get the addresses of `uplink`; without one, the kernel masquerades them, and the
/// addresses stay for replies to earlier ones.
///
/// # Errors
/// As [`read`].
pub(crate) fn write(map: &mut Map, uplink: Option<&SoleUplink>) -> Result<(), StoreError> {
    let before = read(map)?;
    let mut map =
        Array::<&mut MapData, Raw<Snat>>::try_from(map).map_err(failed(maps::SNAT, "write"))?;
    map.set(0, Raw(with(before, uplink)), 0).map_err(failed(maps::SNAT, "write"))
}

/// The addresses that connections have or had.
pub(crate) fn addresses(snat: &Snat) -> impl Iterator<Item = IpAddr> {
    let both = [IpAddr::from(snat.address4), IpAddr::from(snat.address6)];
    both.into_iter().filter(|address| !address.is_unspecified())
}

fn with(before: Snat, uplink: Option<&SoleUplink>) -> Snat {
    let ethernet = uplink.map_or(before.ethernet, |uplink| uplink.ethernet);
    let mut snat = Snat { device4: 0, device6: 0, ethernet, ..before };
    for address in uplink.iter().flat_map(|uplink| &uplink.addresses) {
        let index = uplink.map_or(0, |uplink| uplink.device.index);
        match address {
            IpAddr::V4(address) => (snat.address4, snat.device4) = (address.octets(), index),
            IpAddr::V6(address) => (snat.address6, snat.device6) = (address.octets(), index),
        }
    }
    snat
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;

    #[test]
    fn addresses_stay_for_replies_when_new_connections_do_not_get_them() {
        let device = Device { index: 7, name: "eth0".to_owned() };
        let addresses = vec![[192, 0, 2, 1].into()];
        let ethernet = [2, 0, 0, 0, 0, 7];
        let first = with(Snat::default(), Some(&SoleUplink { device, ethernet, addresses }));
        let wanted = Snat { address4: [192, 0, 2, 1], device4: 7, ethernet, ..Snat::default() };
        assert_eq!(first, wanted);
        assert_eq!(with(first, None), Snat { device4: 0, ..wanted });
        let declined = Snat { declined: 1, ..first };
        assert_eq!(with(declined, None).declined, 1, "routes are as before");
        assert!(super::addresses(&first).eq([IpAddr::from([192, 0, 2, 1])]));
    }
}
