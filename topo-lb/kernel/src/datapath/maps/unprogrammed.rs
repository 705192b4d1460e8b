//! The map of Services that lack room in the others: the agent writes it, `list` reads it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use aya::maps::Map;
use topo_lb_common::maps;
use topo_lb_common::unprogrammed::{
    DIRECT_DIALS, LACKS_ENDPOINTS, LACKS_SERVICES, LAST_GOOD, NARROWED, NOBODY, REFUSED,
    TOO_MANY_ENDPOINTS, TOO_MANY_FRONTENDS, Unprogrammed,
};

use super::encode::{read_text, text};
use super::error::{OpenError, ReadError, StoreError};
use super::pinned::{Hash, Raw, entries, failed, open};
use topo_lb_core::cluster::ServiceId;
use topo_lb_core::plan::{Lack, Meanwhile, Shortage};

/// The pinned map.
pub struct UnprogrammedMap(Hash<u32, Unprogrammed>);

impl UnprogrammedMap {
    /// Opens the map.
    ///
    /// # Errors
    /// It does not exist, or has another type.
    pub fn open(pin_dir: &Path) -> Result<Self, OpenError> {
        open(pin_dir, maps::UNPROGRAMMED, Map::HashMap).map(Self)
    }

    /// Writes these Services, as far as the map has room, and removes all others.
    ///
    /// # Errors
    /// The kernel refuses a write: the map may still name earlier Services.
    pub fn write(&mut self, services: &BTreeMap<ServiceId, Lack>) -> Result<(), StoreError> {
        let mut written = 0;
        for (key, (id, lack)) in (0..maps::MOST_UNPROGRAMMED).zip(services) {
            self.0
                .insert(Raw(key), Raw(value(id, *lack)), 0)
                .map_err(failed(maps::UNPROGRAMMED, "write"))?;
            written = key + 1;
        }
        let surplus: Vec<_> =
            self.0.keys().filter_map(Result::ok).filter(|Raw(key)| *key >= written).collect();
        for key in surplus {
            self.0.remove(&key).map_err(failed(maps::UNPROGRAMMED, "remove"))?;
        }
        Ok(())
    }
}

/// The Services that lack room, as `namespace/name` and sorted, and what they lack; empty if the
/// agent of these pins has no such map.
///
/// # Errors
/// The map cannot be read.
pub fn read(pin_dir: &Path) -> Result<Vec<(Arc<str>, Lack)>, ReadError> {
    if !pin_dir.join(maps::UNPROGRAMMED).exists() {
        return Ok(Vec::new());
    }
    let mut all = BTreeMap::new();
    for pair in entries(&UnprogrammedMap::open(pin_dir)?.0, maps::UNPROGRAMMED) {
        let (key, value) = pair?;
        all.extend(parts(&value).map(|parts| (key, parts)));
    }
    Ok(all.into_values().collect())
}

fn value(id: &ServiceId, lack: Lack) -> Unprogrammed {
    let service = text(&id.to_string());
    Unprogrammed { lacks: lacks(lack.of) | meanwhile(lack.meanwhile), service }
}

const fn lacks(of: Shortage) -> u32 {
    match of {
        Shortage::Services => LACKS_SERVICES,
        Shortage::Endpoints => LACKS_ENDPOINTS,
        Shortage::TooManyFrontends => TOO_MANY_FRONTENDS,
        Shortage::TooManyEndpoints => TOO_MANY_ENDPOINTS,
    }
}

const fn meanwhile(meanwhile: Meanwhile) -> u32 {
    match meanwhile {
        Meanwhile::KubeProxy => 0,
        Meanwhile::Narrowed => NARROWED,
        Meanwhile::LastGood => LAST_GOOD,
        Meanwhile::Refused => REFUSED,
        Meanwhile::DirectDials => DIRECT_DIALS,
        Meanwhile::Nobody => NOBODY,
    }
}

/// `None` for a value that no agent writes.
fn parts(value: &Unprogrammed) -> Option<(Arc<str>, Lack)> {
    let service = read_text(&value.service)?;
    let found = Meanwhile::ALL.into_iter().find(|it| meanwhile(*it) == value.lacks & !0xff)?;
    let of = Shortage::ALL.into_iter().find(|it| lacks(*it) == value.lacks & 0xff)?;
    Some((service.into(), Lack { of, meanwhile: found }))
}

#[cfg(test)]
mod tests {
    use topo_lb_common::unprogrammed::TEXT_LENGTH;

    use super::*;

    #[test]
    fn the_longest_name_is_read_back_as_it_was_written() {
        let label = "x".repeat(63);
        let id = ServiceId { namespace: label.as_str().into(), name: label.as_str().into() };
        for of in Shortage::ALL {
            for meanwhile in Meanwhile::ALL {
                let lack = Lack { of, meanwhile };
                let read = parts(&value(&id, lack));
                assert_eq!(read, Some((format!("{label}/{label}").into(), lack)));
            }
        }
    }

    #[test]
    fn what_no_agent_writes_is_left_out() {
        let id = ServiceId { namespace: "a".into(), name: "b".into() };
        let lack = Lack { of: Shortage::Services, meanwhile: Meanwhile::KubeProxy };
        let good = value(&id, lack);
        assert_eq!(parts(&Unprogrammed { lacks: 9, ..good }), None);
        assert_eq!(parts(&Unprogrammed { lacks: 1 | 9 << 8, ..good }), None);
        assert_eq!(parts(&Unprogrammed { service: [b'x'; TEXT_LENGTH], ..good }), None);
        assert_eq!(parts(&Unprogrammed { service: [0xff; TEXT_LENGTH], ..good }), None);
    }
}
