//! What a frontend's connections do, and who may dial it, as the maps hold it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;
use topo_lb_common::record::{INLINE4, INLINE6};
use topo_lb_common::selection::{HASHED, LEASED, SPILL_ONE};

use super::maglev::Shares;
use crate::cluster::{Family, Frontend};
use crate::topology::Chosen;

/// What a frontend's connections do. Equal entries need no write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The Service port's index.
    pub index: u32,
    /// Index of the matching topology key.
    pub tier: Option<u8>,
    /// Number of endpoints of the chosen tier; they come first in [`row`](Self::row). 0: refuse. With a table, its
    /// slots.
    pub count: u16,
    /// Without endpoints, connections from outside are dropped, not refused.
    pub drops: bool,
    /// Share of connections that go to the rest of the row, in parts of `selection::SPILL_ONE`, or
    /// `selection::LEASED`, or `selection::HASHED` with a table.
    pub spill: u16,
    /// How many failed connects in a row the agent hears of; zero for none. 1–15.
    pub failures: u8,
    /// Session affinity in seconds; zero for none.
    pub affinity_seconds: u32,
    /// The endpoints: the chosen tier's, then the wider tier's; with weights
    /// ([`apportionment`](super::apportionment)) an endpoint can be there more than once.
    pub row: Arc<[Chosen]>,
    /// The choice is consistent: the endpoints, sorted, have so many slots of a table, which is not kept.
    pub table: Option<Arc<Shares>>,
}

impl Entry {
    /// Whether what the maps hold of the row is too long for a record of this family.
    pub fn needs_slots(&self, family: Family) -> bool {
        self.slots() as usize > inline(family)
    }

    /// How many endpoints the maps hold: those of the row, or of its table.
    pub fn slots(&self) -> u32 {
        self.table.as_ref().map_or(self.row.len() as u32, |shares| shares.size().into())
    }

    /// What the maps hold: the row, or its table, which takes a third of a millisecond for a hundred endpoints.
    pub fn filled(&self) -> Cow<'_, [Chosen]> {
        match &self.table {
            None => Cow::Borrowed(&self.row),
            Some(shares) => Cow::Owned(shares.table(&self.row)),
        }
    }

    /// Whether the maps hold the same endpoints of both, so that they can share slots.
    pub fn has_row_of(&self, other: &Self) -> bool {
        self.row == other.row && self.table == other.table
    }

    /// The share of connections that go to the rest of the row, of 1; with a lease, while it lasts.
    pub fn spilled(&self) -> f64 {
        match self.spill {
            LEASED | HASHED => 0.0,
            spill => f64::from(spill) / f64::from(SPILL_ONE),
        }
    }

    /// The endpoints, each once, and the share of new connections that each gets, of 1.
    pub fn shares(&self) -> BTreeMap<Chosen, f64> {
        if let Some(shares) = &self.table {
            return shares.each(&self.row).collect();
        }
        let (first, second) = self.row.split_at(self.row.len().min(self.count.into()));
        let of_second = match second {
            [] => 0.0,
            _ => self.spilled(),
        };
        let mut shares = BTreeMap::new();
        for (range, share) in [(first, 1.0 - of_second), (second, of_second)] {
            for &one in range {
                *shares.entry(one).or_default() += share / range.len() as f64;
            }
        }
        shares
    }
}

/// An entry of `sources4` or `sources6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceEntry {
    /// The frontend, whoever its clients are.
    pub frontend: Frontend,
    /// The sources that may dial it; `None`: all others may not.
    pub range: Option<IpNet>,
}

/// Most endpoints in a record.
pub const fn inline(family: Family) -> usize {
    match family {
        Family::V4 => INLINE4,
        Family::V6 => INLINE6,
    }
}
