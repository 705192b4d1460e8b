//! When endpoints became Ready: the API does not say it of an endpoint, so the state compares slices.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::UNIX_EPOCH;

use crate::cluster::kept::Endpoints;
use crate::cluster::slice::Slice;

/// No slow start takes longer: what became Ready before is not kept.
const LONGEST_SECONDS: i64 = 3600;

/// When the change behind a slice happened, by the API's clock, in seconds since 1970.
pub(super) fn triggered(slice: &Slice) -> Option<i64> {
    let since = slice.triggered?.duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(since.as_secs()).ok()
}

/// When the Ready endpoints of a new slice became so, as far as it was lately. `before`: all slices of the Service as
/// they were. `at`: when those that were not Ready became so.
pub(super) fn ready_since<'a>(
    new: &Endpoints,
    before: impl Iterator<Item = &'a Endpoints>,
    at: i64,
) -> Box<[(IpAddr, i64)]> {
    let (mut ready, mut known) = (HashSet::new(), HashMap::new());
    for slice in before {
        ready.extend(slice.endpoints.iter().filter(|it| it.ready).map(|it| it.address));
        known.extend(slice.ready_since.iter().copied());
    }
    let since = |address: IpAddr| match ready.contains(&address) {
        false => Some(at),
        true => known.get(&address).copied(),
    };
    let all = new.endpoints.iter().filter(|it| it.ready);
    let lately = all.filter_map(|it| Some((it.address, since(it.address)?)));
    let mut lately: Vec<_> =
        lately.filter(|(_, since)| at.saturating_sub(*since) < LONGEST_SECONDS).collect();
    lately.sort_unstable();
    lately.into()
}
