//! How much of a Service the maps get.

use std::net::SocketAddr;
use std::sync::Arc;

use super::desired::Target;
use super::entry::{self, Entry};
use super::installed::Installed;
use super::member::Member;
use crate::topology::Chosen;

/// How much of a Service is written to the maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// All of it.
    Whole,
    /// All of it but what direct dials get, as in all that follow.
    WithoutDirect,
    /// As many of its endpoints as fit inline, from this one on, wrapping around, and all alike: takes no
    /// slots.
    Narrow(u64),
    /// As `Narrow`, but only endpoints that are members already, or a single endpoint if none is:
    /// takes hardly any new members.
    Known(u64),
    /// As `Narrow`, but members first, and the others from this one on. What is not used is no member
    /// any more, unless it `keeps` those: takes few new members.
    Few {
        /// Where the choice starts.
        first: u64,
        /// For connections that have these endpoints.
        keeps: bool,
    },
    /// Connections are refused: takes no endpoints.
    Refusing,
}

impl Extent {
    /// The entry and the members that are written for a target.
    pub(super) fn of(self, target: &Target, index: u32, installed: &Installed) -> (Entry, Members) {
        let (whole, most) = (target.entry(index), entry::inline(target.family));
        let is_known = |endpoint: SocketAddr| installed.member(index, endpoint).is_some();
        match self {
            Self::Whole | Self::WithoutDirect => (whole, target.members().collect()),
            Self::Narrow(first) => {
                (inline(whole, &target.chosen(), first, most), target.members().collect())
            }
            Self::Few { first, .. } | Self::Known(first) => {
                let (mut row, mut new): (Vec<Chosen>, Vec<Chosen>) =
                    target.chosen().into_iter().partition(|one| is_known(one.address()));
                let most_new = match self {
                    Self::Known(_) => usize::from(row.is_empty()),
                    _ => most,
                };
                turn(&mut row, first);
                turn(&mut new, first);
                row.extend(new.into_iter().take(most_new));
                row.truncate(most);
                // The next plan knows them, and writes the same.
                row.sort_unstable();
                let entry = inline(whole, &row, 0, most);
                let keeps = !matches!(self, Self::Few { keeps: false, .. });
                let used = |endpoint| entry.row.iter().any(|one| one.address() == endpoint);
                let members =
                    target.members().filter(|(at, _)| used(*at) || keeps && is_known(*at));
                let members = members.collect();
                (entry, members)
            }
            Self::Refusing => {
                let row = Arc::default();
                let refusing = Entry {
                    count: 0,
                    drops: false,
                    tier: None,
                    spill: 0,
                    affinity_seconds: 0,
                    row,
                    table: None,
                    ..whole
                };
                (refusing, Vec::new())
            }
        }
    }
}

/// Endpoints, and what is known of each.
pub(super) type Members = Vec<(SocketAddr, Member)>;

/// Begins with the endpoint `first`, counted around.
fn turn(endpoints: &mut [Chosen], first: u64) {
    if let Some(at) = first.checked_rem(endpoints.len() as u64) {
        endpoints.rotate_left(at as usize);
    }
}

/// The entry with at most `most` of these endpoints, from `first` on.
fn inline(whole: Entry, endpoints: &[Chosen], first: u64, most: usize) -> Entry {
    if endpoints.len() <= most && endpoints.len() == whole.slots() as usize {
        return whole;
    }
    let count = endpoints.len();
    let from = first as usize % count.max(1);
    let row: Arc<[Chosen]> =
        endpoints.iter().cycle().skip(from).take(count.min(most)).copied().collect();
    Entry { count: row.len() as u16, spill: 0, row, table: None, ..whole }
}
