//! `topo-lb.io/slow-start: 60s`: the share of new connections that an endpoint gets grows from a tenth of its own to
//! all of it, during this time after it became Ready.
//!
//! * The share of a part, or without weights of the tier, stays the same: its other endpoints get what a young one
//!   leaves. So nobody refuses because of it, and endpoints that are alike young are treated alike.
//! * It grows in four steps, as each one writes the row of the Service port anew.
//! * Where many endpoints of several ages are young, each of them gets the mean of their shares: so it takes no more
//!   room in the maps than without a slow start.
//! * The time is the API's (`endpoints.kubernetes.io/last-change-trigger-time` of the slice that brought the endpoint),
//!   the present that of the node. The state takes a time to come for that at which the slice came, so one can only be
//!   in the future when the clock was set back; farther than the slow start is long, it is not believed.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use super::candidate::Candidate;
use super::ejection::span_or_off;
use super::evaluation::{CandidateStatus, Evaluation};
use super::validation::{Rule, quoted};
use super::weights::Part;
use crate::cluster::{LONGEST_SLOW_START, Service, State};

/// The shortest time.
const SHORTEST: Duration = Duration::from_secs(10);
/// The share after each step, of [`WHOLE`]. Quarters, as an endpoint has a slot for each.
const SHARES: [u64; 5] = [2, 5, 10, 15, WHOLE];
/// An endpoint's own share.
const WHOLE: u64 = 20;
/// How often a share grows.
const STEPS: i64 = SHARES.len() as i64 - 1;
/// With more endpoints than these, the young ones are one group.
const FEW: usize = 16;
/// About the sum of the weights of all parts.
const WEIGHTS: u64 = 50_000;

/// How long it takes until an endpoint has its own share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// From 10 s to 1 h.
    pub during: Duration,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.during.as_secs();
        write!(
            f,
            "an endpoint's share grows from 10 % to its own in {seconds} s after it became Ready"
        )
    }
}

/// What annotation `topo-lb.io/slow-start` asks for: whole seconds, minutes or hours; `None` for `off`.
///
/// # Errors
/// The rule that it breaks.
pub(super) fn from_annotation(text: &str) -> Result<Option<Setting>, Rule> {
    let during = span_or_off(text, SHORTEST, LONGEST_SLOW_START);
    let during = during.ok_or_else(|| Rule::SlowStartTime { text: quoted(text.trim()) })?;
    Ok(during.map(|during| Setting { during }))
}

impl Setting {
    /// How many steps are over at `now` of what became Ready at `since`; both in seconds since 1970.
    fn step(self, since: i64, now: i64) -> i64 {
        let during = self.during.as_secs().cast_signed();
        match now.saturating_sub(since) {
            age if age < -during => STEPS,
            age => (age.max(0).saturating_mul(STEPS) / during).min(STEPS),
        }
    }

    /// When the next step follows; `None`: there is none.
    pub(super) fn next(self, since: i64, now: i64) -> Option<i64> {
        let following = self.step(since, now) + 1;
        let during = self.during.as_secs().cast_signed();
        // Rounded up: not before the step is over.
        let after = (following * during + STEPS - 1) / STEPS;
        (following <= STEPS).then(|| since.saturating_add(after))
    }
}

/// Which endpoints of a Service became Ready lately.
pub(super) struct Young {
    setting: Setting,
    /// In seconds since 1970.
    now: i64,
    since: HashMap<IpAddr, i64>,
}

impl Young {
    /// `None`: no endpoint became Ready lately, or nobody has said the time.
    pub(super) fn of(setting: Setting, state: &State, service: &Service) -> Option<Self> {
        let (now, mut all) = (state.now()?, HashMap::new());
        for (address, since) in state.ready_since(&service.id) {
            let first = all.entry(address).or_insert(since);
            // Slices that have the same address may say two times.
            *first = since.min(*first);
        }
        (!all.is_empty()).then_some(Self { setting, now, since: all })
    }

    /// How much of its own share an endpoint gets, of [`WHOLE`].
    fn share(&self, one: &Candidate<'_>) -> u64 {
        let since = self.since.get(&one.address.ip());
        let step = since.map_or(STEPS, |&since| self.setting.step(since, self.now));
        usize::try_from(step).ok().and_then(|step| SHARES.get(step)).copied().unwrap_or(WHOLE)
    }

    /// How new connections divide: the parts of `done`, or without weights its chosen endpoints, divided by share.
    /// `None`: as without a slow start, as everybody is alike, or some connections spill.
    pub(super) fn divide<'a>(&self, done: &Evaluation<'a>) -> Option<Vec<Part<'a>>> {
        let whole = || {
            let members = done.of_status(|status| status == CandidateStatus::Chosen);
            vec![Part { name: "", weight: 1, members }]
        };
        let parts = match (done.parts.is_empty(), &done.wider) {
            (true, Some(_)) => return None,
            (true, None) => &whole()[..],
            (false, _) => &done.parts,
        };
        let sum: u64 = parts.iter().map(|part| u64::from(part.weight)).sum();
        let is_fine = parts.iter().map(|part| part.members.len()).sum::<usize>() <= FEW;
        let mut divided = Vec::new();
        for part in parts {
            // What kind of share, the sum of the shares, and who gets it.
            let mut groups: Vec<(u64, u64, Vec<usize>)> = Vec::new();
            for &member in &part.members {
                let share = self.share(&done.candidates[member]);
                let kind = if is_fine || share == WHOLE { share } else { 0 };
                match groups.iter_mut().find(|(own, ..)| *own == kind) {
                    Some((_, all, members)) => {
                        *all += share;
                        members.push(member);
                    }
                    None => groups.push((kind, share, vec![member])),
                }
            }
            let all: u64 = groups.iter().map(|(_, share, _)| share).sum();
            divided.extend(groups.into_iter().map(|(_, share, members)| {
                let weight = u64::from(part.weight) * share * WEIGHTS / (all * sum);
                let weight = u16::try_from(weight).unwrap_or(u16::MAX).max(1);
                Part { name: part.name, weight, members }
            }));
        }
        (divided.len() > parts.len()).then_some(divided)
    }

    /// How much of what the most favoured endpoint of its part gets each candidate gets, in percent; `None`: as much.
    /// `divided`: what [`divide`](Self::divide) gives.
    pub(super) fn percents(done: &Evaluation<'_>, divided: &[Part<'_>]) -> Vec<Option<u8>> {
        let mut all = vec![None; done.candidates.len()];
        let each = |part: &Part<'_>| f64::from(part.weight) / part.members.len() as f64;
        for part in divided {
            let of_its = divided.iter().filter(|it| it.name == part.name).map(each);
            let percent = (each(part) * 100.0 / of_its.fold(0.0, f64::max)).round();
            if percent < 100.0 {
                part.members.iter().for_each(|&member| all[member] = Some(percent as u8));
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_whole_seconds_minutes_or_hours() {
        for (text, seconds) in [("10s", 10), (" 60s ", 60), ("1h", 3_600), ("60 m", 3_600)] {
            let during = Duration::from_secs(seconds);
            assert_eq!(from_annotation(text), Ok(Some(Setting { during })), "{text:?}");
        }
        assert_eq!(from_annotation(" off "), Ok(None));
        for wrong in ["", "9s", "61m", "2h", "60", "-60s", "1.5m", "99999999999999999999h", "Off"] {
            let rule = Rule::SlowStartTime { text: quoted(wrong) };
            assert_eq!(from_annotation(wrong), Err(rule), "{wrong:?}");
        }
    }

    #[test]
    fn every_step_comes_once_and_in_time() {
        for during in [10, 11, 60, 3_599, 3_600] {
            let setting = Setting { during: Duration::from_secs(during) };
            let during = during.cast_signed();
            let (mut now, mut steps) = (1_000, vec![setting.step(1_000, 1_000)]);
            while let Some(next) = setting.next(1_000, now) {
                assert!(next > now, "{during}: {next}");
                assert_eq!(
                    setting.step(1_000, next - 1),
                    steps[steps.len() - 1],
                    "{during}: {next}"
                );
                now = next;
                steps.push(setting.step(1_000, now));
            }
            assert_eq!(steps, (0..=STEPS).collect::<Vec<_>>(), "{during}");
            assert_eq!(now, 1_000 + during, "{during}");
            // A clock that is late keeps it small for so much longer; one that is an hour off does not.
            assert_eq!(setting.step(1_000, 1_000 - during), 0);
            assert_eq!(setting.step(1_000, 1_000 - during - 1), STEPS);
            for extreme in [i64::MIN, i64::MAX] {
                let _ =
                    (setting.step(extreme, 0), setting.next(extreme, 0), setting.step(0, extreme));
            }
        }
    }
}
