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

/// What the programs do with packets from outside to endpoints of other nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sources<'a> {
    /// New connections get the addresses of this uplink, and packets may be sent on by it as they came.
    Given(&'a SoleUplink),
    /// The kernel masquerades new connections, and the addresses stay for replies to earlier ones. Packets may still be
    /// sent on as they came.
    Direct(&'a SoleUplink),
    /// The same, and no packet is sent on.
    None,
}

/// Writes it.
///
/// # Errors
/// As [`read`].
pub(crate) fn write(map: &mut Map, sources: Sources<'_>) -> Result<(), StoreError> {
    let before = read(map)?;
    let mut map =
        Array::<&mut MapData, Raw<Snat>>::try_from(map).map_err(failed(maps::SNAT, "write"))?;
    map.set(0, Raw(with(before, sources)), 0).map_err(failed(maps::SNAT, "write"))
}

/// The addresses that connections have or had.
pub(crate) fn addresses(snat: &Snat) -> impl Iterator<Item = IpAddr> {
    let both = [IpAddr::from(snat.address4), IpAddr::from(snat.address6)];
    both.into_iter().filter(|address| !address.is_unspecified())
}

fn with(before: Snat, sources: Sources<'_>) -> Snat {
    let (Sources::Given(uplink) | Sources::Direct(uplink)) = sources else {
        return Snat { device4: 0, device6: 0, direct: 0, ..before };
    };
    let index = uplink.device.index;
    let mut snat =
        Snat { device4: 0, device6: 0, ethernet: uplink.ethernet, direct: index, ..before };
    for address in &uplink.addresses {
        match address {
            IpAddr::V4(address) => (snat.address4, snat.device4) = (address.octets(), index),
            IpAddr::V6(address) => (snat.address6, snat.device6) = (address.octets(), index),
        }
    }
    match sources {
        Sources::Given(_) => snat,
        Sources::Direct(_) | Sources::None => Snat { device4: 0, device6: 0, ..snat },
    }
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
        let uplink = SoleUplink { device, ethernet, addresses };
        let first = with(Snat::default(), Sources::Given(&uplink));
        let (address4, none) = ([192, 0, 2, 1], Snat::default());
        let wanted = Snat { address4, device4: 7, direct: 7, ethernet, ..none };
        assert_eq!(first, wanted);
        assert_eq!(with(first, Sources::None), Snat { device4: 0, direct: 0, ..wanted });
        let direct = Snat { device4: 0, ..wanted };
        assert_eq!(with(first, Sources::Direct(&uplink)), direct);
        assert_eq!(with(none, Sources::Direct(&uplink)), direct);
        let declined = Snat { declined: 1, ..first };
        assert_eq!(with(declined, Sources::None).declined, 1, "routes are as before");
        assert!(super::addresses(&first).eq([IpAddr::from([192, 0, 2, 1])]));
    }
}
