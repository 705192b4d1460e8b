//! Reads and clears what TCP connections moved to endpoints outside of this node's zone.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use aya::maps::Map;
use topo_lb_common::far_endpoints::{FarEndpoint, Moved};
use topo_lb_common::maps;

use super::error::{OpenError, ReadError, StoreError};
use super::pinned::{Hash, Raw, absent_is_fine, added, entries, failed, open};
use crate::datapath::host::removal::BPF_NOEXIST;

/// The pinned map.
pub(crate) struct FarEndpointsMap(Hash<FarEndpoint, Moved>);

impl FarEndpointsMap {
    /// Opens the map.
    pub(crate) fn open(pin_dir: &Path) -> Result<Self, OpenError> {
        open(pin_dir, maps::FAR_ENDPOINTS, Map::HashMap).map(Self)
    }

    /// Makes the entry in which programs count when there is no room for another one.
    pub(crate) fn make_others(&mut self) -> Result<(), StoreError> {
        let made = self.0.insert(Raw(FarEndpoint::OTHERS), Raw(Moved::default()), BPF_NOEXIST);
        added(made).map_err(failed(maps::FAR_ENDPOINTS, "write"))
    }

    /// Removes the entries of these endpoints.
    fn remove(&mut self, endpoints: &[IpAddr]) -> Result<(), StoreError> {
        for endpoint in endpoints {
            let removed = absent_is_fine(self.0.remove(&Raw(key(*endpoint))));
            removed.map_err(failed(maps::FAR_ENDPOINTS, "remove"))?;
        }
        Ok(())
    }
}

/// Reads what was moved to each endpoint; `None` is all of those without room.
///
/// # Errors
/// The map cannot be read.
pub fn read(pin_dir: &Path) -> Result<BTreeMap<Option<IpAddr>, Moved>, ReadError> {
    let map = FarEndpointsMap::open(pin_dir)?;
    let all = entries(&map.0, maps::FAR_ENDPOINTS).map(|entry| {
        let (key, moved) = entry?;
        Ok((endpoint(key), moved))
    });
    all.collect()
}

/// Removes the entries of endpoints that are gone.
///
/// # Errors
/// The map cannot be opened or changed.
pub fn remove(pin_dir: &Path, endpoints: &[IpAddr]) -> Result<(), ReadError> {
    if endpoints.is_empty() {
        return Ok(());
    }
    Ok(FarEndpointsMap::open(pin_dir)?.remove(endpoints)?)
}

fn endpoint(key: FarEndpoint) -> Option<IpAddr> {
    (key != FarEndpoint::OTHERS).then(|| Ipv6Addr::from(key.address).to_canonical())
}

fn key(endpoint: IpAddr) -> FarEndpoint {
    let mapped = match endpoint {
        IpAddr::V4(address) => Ipv4Addr::to_ipv6_mapped(&address),
        IpAddr::V6(address) => address,
    };
    FarEndpoint { address: mapped.octets() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_address_of_its_endpoint() {
        for address in ["10.1.2.3", "2001:db8::1"] {
            let address = address.parse().unwrap();
            assert_eq!(endpoint(key(address)), Some(address));
        }
        assert_eq!(endpoint(FarEndpoint::OTHERS), None);
        let bytes = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3];
        assert_eq!(key("10.1.2.3".parse().unwrap()).address, bytes);
    }
}
