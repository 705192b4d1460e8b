//! The maps `sources4` and `sources6`: who may dial a frontend with source ranges.

use std::marker::PhantomData;
use std::path::Path;

use aya::maps::lpm_trie::Key;
use aya::maps::{LpmTrie, Map, MapData};
use ipnet::IpNet;
use topo_lb_common::sources::{ALLOWED, DENIED};

use super::encode::{Layout, protocol_number};
use super::error::{OpenError, StoreError};
use super::pinned::{Raw, absent_is_fine, failed, open};
use topo_lb_core::plan::Installed;
use topo_lb_core::plan::entry::SourceEntry;

/// The map of one family.
pub(super) struct Sources<L: Layout> {
    trie: LpmTrie<MapData, Raw<L::Source>, u32>,
    layout: PhantomData<L>,
}

impl<L: Layout> Sources<L> {
    /// Opens the pinned map; `None` if it is not pinned, because only ClusterIPs are served.
    ///
    /// # Errors
    /// It has another type.
    pub(super) fn open(pin_dir: &Path) -> Result<Option<Self>, OpenError> {
        if !pin_dir.join(L::SOURCES).exists() {
            return Ok(None);
        }
        let trie = open(pin_dir, L::SOURCES, Map::LpmTrie)?;
        Ok(Some(Self { trie, layout: PhantomData }))
    }

    pub(super) fn set(&mut self, entry: &SourceEntry) -> Result<(), StoreError> {
        let Some(key) = key::<L>(entry) else { return Ok(()) };
        let value = if entry.range.is_some() { ALLOWED } else { DENIED };
        self.trie.insert(&key, value, 0).map_err(failed(L::SOURCES, "write a source range"))
    }

    pub(super) fn remove(&mut self, entry: &SourceEntry) -> Result<(), StoreError> {
        let Some(key) = key::<L>(entry) else { return Ok(()) };
        absent_is_fine(self.trie.remove(&key)).map_err(failed(L::SOURCES, "remove a source range"))
    }

    pub(super) fn read(&self, installed: &mut Installed) -> Result<(), StoreError> {
        for key in self.trie.keys() {
            let key = key.map_err(failed(L::SOURCES, "read"))?;
            entry::<L>(&key).into_iter().for_each(|entry| installed.adopt_source(entry));
        }
        Ok(())
    }
}

/// The key of an entry; `None` if it is of the other family.
fn key<L: Layout>(entry: &SourceEntry) -> Option<Key<Raw<L::Source>>> {
    let address = entry.frontend.address;
    let protocol = protocol_number(entry.frontend.protocol);
    let frontend = L::frontend(L::octets(address)?, entry.frontend.port, protocol);
    let length = entry.range.map_or(0, |range| range.prefix_len());
    let client = match entry.range {
        Some(range) => L::octets(range.network())?,
        None => bytemuck::Zeroable::zeroed(),
    };
    let source = L::source(frontend, client);
    Some(Key::new(L::FRONTEND_BITS + u32::from(length), Raw(source)))
}

/// Decodes a key; `None` if this version writes no such key.
fn entry<L: Layout>(key: &Key<Raw<L::Source>>) -> Option<SourceEntry> {
    let Raw(source) = key.data();
    let (frontend, client) = L::read_source(&source);
    let frontend = L::read_frontend(&frontend)?;
    let length = u8::try_from(key.prefix_len().checked_sub(L::FRONTEND_BITS)?).ok()?;
    let range = match length {
        0 => None,
        length => Some(IpNet::new(client, length).ok()?),
    };
    Some(SourceEntry { frontend, range })
}

#[cfg(test)]
mod tests {
    use topo_lb_common::sources::FRONTEND_BITS4;

    use super::super::encode::{V4, V6};
    use super::*;
    use topo_lb_core::cluster::{Frontend, Protocol};

    #[test]
    fn an_entry_is_read_back_as_it_was_written() {
        let four = Frontend::new([192, 0, 2, 1].into(), 443, Protocol::Tcp);
        let six = Frontend::new([0xfd; 16].into(), 53, Protocol::Udp);
        let range = |text: &str| Some(text.parse::<IpNet>().expect("a range"));
        for range in [None, range("10.0.0.0/8"), range("203.0.113.7/32")] {
            let written = SourceEntry { frontend: four, range };
            let key = key::<V4>(&written).expect("a key");
            assert_eq!(entry::<V4>(&key), Some(written));
        }
        for range in [None, range("fd00::/8"), range("2001:db8::1/128")] {
            let written = SourceEntry { frontend: six, range };
            let key = key::<V6>(&written).expect("a key");
            assert_eq!(entry::<V6>(&key), Some(written));
        }
        let denies = SourceEntry { frontend: four, range: None };
        let key = key::<V4>(&denies).expect("a key");
        assert_eq!(key.prefix_len(), FRONTEND_BITS4);
        assert!(super::key::<V6>(&denies).is_none());
    }
}
