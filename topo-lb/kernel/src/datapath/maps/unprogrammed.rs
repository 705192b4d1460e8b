//! The map of Services that lack room in the others: the agent writes it, `list` reads it.

use std::collections::{BTreeMap, BTreeSet};
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
use super::pinned::{Hash, Raw, absent_is_fine, entries, failed, open};
use topo_lb_core::cluster::ServiceId;
use topo_lb_core::plan::{Lack, Meanwhile, Shortage};

/// The pinned map.
pub struct UnprogrammedMap {
    map: Hash<u32, Unprogrammed>,
    /// What is written, and under which key.
    written: BTreeMap<ServiceId, (u32, Lack)>,
    /// The other keys below the highest.
    unused: BTreeSet<u32>,
}

impl UnprogrammedMap {
    /// Opens the map, with what the last agent has written.
    ///
    /// # Errors
    /// It does not exist, or has another type, or cannot be read.
    pub fn open(pin_dir: &Path) -> Result<Self, ReadError> {
        let mut map = opened(pin_dir)?;
        let mut written = BTreeMap::new();
        for (key, value) in entries(&map, maps::UNPROGRAMMED).collect::<Result<Vec<_>, _>>()? {
            match parts(&value) {
                Some((id, lack)) => {
                    // One that died while it wrote may have left two.
                    if let Some((other, _)) = written.insert(id, (key, lack)) {
                        remove(&mut map, other)?;
                    }
                }
                None => remove(&mut map, key)?,
            }
        }
        let used: BTreeSet<u32> = written.values().map(|(key, _)| *key).collect();
        let unused = (0..used.last().map_or(0, |last| last + 1)).filter(|key| !used.contains(key));
        Ok(Self { unused: unused.collect(), map, written })
    }

    /// Writes these Services, as far as the map has room, and removes all others: only what differs from what is
    /// written.
    ///
    /// # Errors
    /// The kernel refuses a write: the map may still name earlier Services.
    pub fn write(&mut self, services: &BTreeMap<ServiceId, Lack>) -> Result<(), StoreError> {
        let gone = self.written.iter().filter(|(id, _)| !services.contains_key(*id));
        for (id, key) in gone.map(|(id, (key, _))| (id.clone(), *key)).collect::<Vec<_>>() {
            remove(&mut self.map, key)?;
            self.written.remove(&id);
            self.unused.insert(key);
        }
        for (id, lack) in services {
            let key = match self.written.get(id) {
                Some((_, written)) if written == lack => continue,
                Some((key, _)) => *key,
                None => match self.unused.first() {
                    Some(key) => *key,
                    None if self.written.len() < maps::MOST_UNPROGRAMMED as usize => {
                        self.written.len() as u32
                    }
                    None => continue,
                },
            };
            let value = Raw(value(id, *lack));
            self.map.insert(Raw(key), value, 0).map_err(failed(maps::UNPROGRAMMED, "write"))?;
            self.unused.remove(&key);
            self.written.insert(id.clone(), (key, *lack));
        }
        Ok(())
    }
}

fn opened(pin_dir: &Path) -> Result<Hash<u32, Unprogrammed>, OpenError> {
    open(pin_dir, maps::UNPROGRAMMED, Map::HashMap)
}

fn remove(map: &mut Hash<u32, Unprogrammed>, key: u32) -> Result<(), StoreError> {
    absent_is_fine(map.remove(&Raw(key))).map_err(failed(maps::UNPROGRAMMED, "remove"))
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
    for pair in entries(&opened(pin_dir)?, maps::UNPROGRAMMED) {
        all.extend(parts(&pair?.1));
    }
    Ok(all.into_iter().map(|(id, lack)| (id.to_string().into(), lack)).collect())
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
fn parts(value: &Unprogrammed) -> Option<(ServiceId, Lack)> {
    let (namespace, name) = read_text(&value.service)?.split_once('/')?;
    let id = ServiceId { namespace: namespace.into(), name: name.into() };
    let found = Meanwhile::ALL.into_iter().find(|it| meanwhile(*it) == value.lacks & !0xff)?;
    let of = Shortage::ALL.into_iter().find(|it| lacks(*it) == value.lacks & 0xff)?;
    Some((id, Lack { of, meanwhile: found }))
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
                assert_eq!(read, Some((id.clone(), lack)));
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
