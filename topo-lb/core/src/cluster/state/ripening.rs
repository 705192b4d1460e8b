//! When endpoints became Ready: the API does not say it of an endpoint, so the state compares slices.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, UNIX_EPOCH};

use crate::cluster::kept::Endpoints;
use crate::cluster::service::ServiceId;
use crate::cluster::slice::Slice;

/// The longest slow start: what became Ready before is not kept.
pub const LONGEST_SLOW_START: Duration = Duration::from_secs(3600);
/// A controller that moves an endpoint to another slice takes less, also where it removes it first.
const MOVES_SECONDS: i64 = 10;
/// As many endpoints that have just left are kept.
const MOST_LEFT: usize = 1_000;

/// When the change behind a slice happened, by the API's clock, but not after `now`; in seconds since 1970. Without
/// either, nobody knows.
pub(super) fn triggered(slice: &Slice, now: Option<i64>) -> Option<i64> {
    let since = slice.triggered.and_then(|it| it.duration_since(UNIX_EPOCH).ok());
    let said = since.and_then(|it| i64::try_from(it.as_secs()).ok());
    said.into_iter().chain(now).min()
}

/// Endpoints that were Ready and are in no slice of their Service any more, the last to leave at the end.
#[derive(Clone, Debug, Default)]
pub(super) struct Left(VecDeque<Departure>);

#[derive(Clone, Debug)]
struct Departure {
    service: ServiceId,
    address: IpAddr,
    /// When it became Ready, if that was lately.
    since: Option<i64>,
    /// When it left.
    at: i64,
}

impl Left {
    /// A slice was replaced, or is gone.
    pub(super) fn note(&mut self, old: &Endpoints, new: Option<&Endpoints>, at: i64) {
        let stays: HashSet<IpAddr> =
            new.iter().flat_map(|it| it.endpoints.iter().map(|one| one.address)).collect();
        for one in old.endpoints.iter().filter(|it| it.ready && !stays.contains(&it.address)) {
            let place = old.ready_since.binary_search_by_key(&one.address, |(address, _)| *address);
            let (service, since) =
                (old.service.clone(), place.ok().map(|at| old.ready_since[at].1));
            self.0.push_back(Departure { service, address: one.address, since, at });
        }
        let excess = self.0.len().saturating_sub(MOST_LEFT);
        self.0.drain(..excess);
        self.0.retain(|it| (0..=MOVES_SECONDS).contains(&(at - it.at)));
    }

    /// Those of a Service that have just left.
    fn of<'a>(&'a self, service: &'a ServiceId, at: i64) -> impl Iterator<Item = &'a Departure> {
        let just = move |it: &&Departure| (0..=MOVES_SECONDS).contains(&(at - it.at));
        self.0.iter().filter(move |it| it.service == *service).filter(just)
    }
}

/// When the Ready endpoints of a new slice became so, as far as it was lately. `before`: all slices of the Service as
/// they were. `at`: when those that were not Ready became so. `now`: by the clock of `left`.
pub(super) fn ready_since<'a>(
    new: &Endpoints,
    before: impl Iterator<Item = &'a Endpoints>,
    left: &Left,
    at: i64,
    now: i64,
) -> Box<[(IpAddr, i64)]> {
    let (mut listed, mut ready, mut known) = (HashSet::new(), HashSet::new(), HashMap::new());
    for slice in before {
        listed.extend(slice.endpoints.iter().map(|it| it.address));
        ready.extend(slice.endpoints.iter().filter(|it| it.ready).map(|it| it.address));
        known.extend(slice.ready_since.iter().copied());
    }
    // What is listed and not ready starts anew.
    for departure in left.of(&new.service, now).filter(|it| !listed.contains(&it.address)) {
        ready.insert(departure.address);
        known.extend(departure.since.map(|since| (departure.address, since)));
    }
    let since = |address: IpAddr| match ready.contains(&address) {
        false => Some(at),
        true => known.get(&address).copied(),
    };
    let longest = LONGEST_SLOW_START.as_secs().cast_signed();
    let all = new.endpoints.iter().filter(|it| it.ready);
    let lately = all.filter_map(|it| Some((it.address, since(it.address)?)));
    let mut lately: Vec<_> =
        lately.filter(|(_, since)| at.saturating_sub(*since) < longest).collect();
    lately.sort_unstable();
    lately.into()
}
