//! The bits of `frontends`: one for each published frontend, see
//! [`frontend_filter`](topo_lb_common::frontend_filter).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use topo_lb_common::frontend_filter::{ANY_OUTSIDE, FrontendBit, WORDS, bit};
use topo_lb_common::maps;
use topo_lb_common::reply_filter::folded;

use super::error::{OpenError, StoreError};
use super::mapped::Mapped;
use super::pinned::failed;
use topo_lb_core::cluster::{Clients, Frontend};

/// Which frontends have which bit. Pure.
#[derive(Debug, Default)]
struct FrontendBits {
    all: BTreeMap<FrontendBit, Vec<Frontend>>,
    /// How many are for clients outside alone: these have [`ANY_OUTSIDE`], too.
    outside: usize,
}

impl FrontendBits {
    /// Adds a frontend; returns its bits.
    fn add(&mut self, frontend: Frontend) -> impl Iterator<Item = FrontendBit> + use<> {
        let bit = bit_of(&frontend);
        let is_outside = frontend.clients == Clients::Outside;
        // Nearly always there is one, so a `Vec` suffices.
        let all = self.all.entry(bit).or_insert_with(|| Vec::with_capacity(1));
        if !all.contains(&frontend) {
            all.push(frontend);
            self.outside += usize::from(is_outside);
        }
        [Some(bit), is_outside.then_some(ANY_OUTSIDE)].into_iter().flatten()
    }

    /// Removes a frontend; returns those of its bits that no other frontend has.
    fn remove(&mut self, frontend: Frontend) -> impl Iterator<Item = FrontendBit> + use<> {
        let bit = bit_of(&frontend);
        let mut gone = [None; 2];
        if let Some(all) = self.all.get_mut(&bit)
            && let Some(place) = all.iter().position(|other| *other == frontend)
        {
            all.swap_remove(place);
            if all.is_empty() {
                self.all.remove(&bit);
            }
            let is_outside = frontend.clients == Clients::Outside;
            self.outside -= usize::from(is_outside);
            let bits = [Some(bit), is_outside.then_some(ANY_OUTSIDE)];
            gone = bits.map(|bit| bit.filter(|bit| !self.has(*bit)));
        }
        gone.into_iter().flatten()
    }

    fn has(&self, bit: FrontendBit) -> bool {
        self.all.contains_key(&bit) || bit == ANY_OUTSIDE && self.outside != 0
    }

    /// The bits of all frontends, as the map holds them.
    fn words(&self) -> Vec<u64> {
        let mut words = vec![0; WORDS as usize];
        let outside = (self.outside != 0).then_some(&ANY_OUTSIDE);
        for FrontendBit { word, mask } in self.all.keys().chain(outside) {
            words[*word as usize] |= mask;
        }
        words
    }
}

fn bit_of(frontend: &Frontend) -> FrontendBit {
    let address = match frontend.address {
        IpAddr::V4(address) => u32::from_ne_bytes(address.octets()),
        IpAddr::V6(address) => folded(bytemuck::cast(address.octets())),
    };
    bit(address, frontend.port)
}

/// The map `frontends`, of which this process is the only writer.
pub(crate) struct FrontendFilter {
    bits: FrontendBits,
    words: Mapped<u64>,
}

impl FrontendFilter {
    /// Opens the map; `None` if it is not pinned, because programs test `range`.
    pub(crate) fn open(pin_dir: &Path) -> Result<Option<Self>, OpenError> {
        if !pin_dir.join(maps::FRONTENDS).exists() {
            return Ok(None);
        }
        let words = Mapped::open(pin_dir, maps::FRONTENDS)?;
        Ok(Some(Self { bits: FrontendBits::default(), words }))
    }

    /// Sets the bits of exactly these frontends. A bit that was set and is needed stays set all the
    /// time.
    pub(crate) fn begin(
        &mut self,
        published: impl Iterator<Item = Frontend>,
    ) -> Result<(), StoreError> {
        self.bits = FrontendBits::default();
        for frontend in published {
            drop(self.bits.add(frontend));
        }
        for (index, word) in (0..).zip(self.bits.words()) {
            self.words.set(index, &word).map_err(failed(maps::FRONTENDS, "write"))?;
        }
        Ok(())
    }

    /// Sets the bits of a frontend. Call it before the frontend is published.
    pub(crate) fn add(&mut self, frontend: Frontend) -> Result<(), StoreError> {
        let mut bits = self.bits.add(frontend);
        bits.try_for_each(|FrontendBit { word, mask }| self.update(word, |bits| bits | mask))
    }

    /// Clears the bits of a frontend, unless another one has them. Call it after the frontend was
    /// withdrawn.
    pub(crate) fn remove(&mut self, frontend: Frontend) -> Result<(), StoreError> {
        let mut bits = self.bits.remove(frontend);
        bits.try_for_each(|FrontendBit { word, mask }| self.update(word, |bits| bits & !mask))
    }

    fn update(&self, word: u32, change: impl Fn(u64) -> u64) -> Result<(), StoreError> {
        let before = self.words.get(word).map_err(failed(maps::FRONTENDS, "read"))?;
        let after = change(before);
        if after == before {
            return Ok(());
        }
        self.words.set(word, &after).map_err(failed(maps::FRONTENDS, "write"))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use topo_lb_core::cluster::Protocol;

    /// Frontends that share bits: protocols do not count.
    fn frontend() -> impl Strategy<Value = Frontend> {
        let address = prop_oneof![
            (0..3_u8).prop_map(|last| IpAddr::from([10, 96, 0, last])),
            (0..3_u16).prop_map(|last| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last])),
        ];
        let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp)];
        (address, 80..82_u16, protocol)
            .prop_map(|(address, port, protocol)| Frontend::new(address, port, protocol))
    }

    proptest! {
        #[test]
        fn exactly_the_published_frontends_have_their_bits(
            steps in prop::collection::vec((any::<bool>(), frontend()), 0..60),
        ) {
            let (mut bits, mut live) = (FrontendBits::default(), BTreeSet::new());
            let mut words = vec![0; WORDS as usize];
            for (is_published, frontend) in steps {
                // Bits are set before a publication and cleared after a withdrawal: at both
                // moments the live frontends are those without this one.
                if is_published {
                    for FrontendBit { word, mask } in bits.add(frontend) {
                        words[word as usize] |= mask;
                    }
                    live.insert(frontend);
                } else {
                    live.remove(&frontend);
                    for FrontendBit { word, mask } in bits.remove(frontend) {
                        words[word as usize] &= !mask;
                    }
                }
                let mut wanted = FrontendBits::default();
                for frontend in &live {
                    drop(wanted.add(*frontend));
                }
                prop_assert_eq!(&words, &wanted.words());
                prop_assert_eq!(&words, &bits.words());
                for frontend in &live {
                    let FrontendBit { word, mask } = bit_of(frontend);
                    prop_assert!(words[word as usize] & mask != 0, "{}", frontend);
                }
            }
        }
    }

    #[test]
    fn a_withdrawal_that_is_repeated_takes_no_bit_from_another_frontend() {
        let [tcp, udp] = [Protocol::Tcp, Protocol::Udp]
            .map(|protocol| Frontend::new([172, 18, 0, 2].into(), 30_080, protocol));
        let mut bits = FrontendBits::default();
        drop(bits.add(tcp));
        drop(bits.add(udp));
        assert!(bits.remove(udp).eq([]));
        assert!(bits.remove(udp).eq([]));
        assert!(bits.remove(tcp).eq([bit_of(&tcp)]));
        assert!(bits.remove(tcp).eq([]));
    }

    #[test]
    fn the_last_frontend_for_clients_outside_takes_their_bit_along() {
        let plain = Frontend::new([172, 18, 0, 2].into(), 30_080, Protocol::Tcp);
        let outside = Frontend { clients: Clients::Outside, ..plain };
        let other = Frontend { port: 30_081, ..outside };
        let mut bits = FrontendBits::default();
        assert!(bits.add(plain).eq([bit_of(&plain)]));
        for _ in 0..2 {
            assert!(bits.add(outside).eq([bit_of(&plain), ANY_OUTSIDE]));
        }
        assert!(bits.add(other).eq([bit_of(&other), ANY_OUTSIDE]));
        assert!(bits.remove(outside).eq([]), "others have both");
        assert!(bits.remove(other).eq([bit_of(&other), ANY_OUTSIDE]));
        assert!(bits.remove(plain).eq([bit_of(&plain)]));
    }
}
