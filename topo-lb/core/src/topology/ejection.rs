//! `topo-lb.io/ejection`: endpoints to which this node's connects fail are ejected for a while. The
//! decision is made as without; what is ejected is then taken from its tier, never all of it.

use std::fmt;
use std::time::Duration;

use topo_lb_common::failing::MOST_FAILURES;

use super::candidate::Candidate;
use super::validation::{Rule, quoted};
use crate::cluster::ServiceEjections;
use crate::cluster::ejection::most_ejected;

/// The longest time that an endpoint is ejected before it is probed.
pub const LONGEST: Duration = Duration::from_secs(600);

/// When endpoints of a Service are ejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// After how many failed connects in a row: 1–15.
    pub failures: u8,
    /// For how long the first time: from a second to [`LONGEST`].
    pub first: Duration,
    /// Most of a tier, in percent: 1–100.
    pub most: u8,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { failures, first, most } = self;
        let in_a_row = if *failures == 1 { "connect" } else { "connects in a row" };
        let seconds = first.as_secs();
        write!(
            f,
            "after {failures} failed {in_a_row}, for {seconds} s at first, at most {most}% of a tier"
        )
    }
}

/// The setting in annotation `topo-lb.io/ejection`: failures, first time, most of a tier. The last two
/// have defaults: 30 s and 50 %.
///
/// # Errors
/// The rule that it breaks.
pub(super) fn from_annotation(text: &str) -> Result<Setting, Rule> {
    // Counts before it splits, like the keys.
    let count = text.bytes().filter(|&byte| byte == b',').count() + 1;
    if count > 3 {
        return Err(Rule::EjectionParts { count });
    }
    let mut setting = Setting { failures: 0, first: Duration::from_secs(30), most: 50 };
    let mut parts = text.split(',').map(str::trim);
    let failures = parts.next().unwrap_or_default();
    setting.failures = within(failures, 1, MOST_FAILURES.into())
        .and_then(|number| u8::try_from(number).ok())
        .ok_or_else(|| Rule::EjectionFailures { text: quoted(failures) })?;
    if let Some(time) = parts.next() {
        setting.first =
            self::time(time).ok_or_else(|| Rule::EjectionTime { text: quoted(time) })?;
    }
    if let Some(most) = parts.next() {
        setting.most = most
            .strip_suffix('%')
            .and_then(|number| within(number.trim_end(), 1, 100))
            .and_then(|number| u8::try_from(number).ok())
            .ok_or_else(|| Rule::EjectionMost { text: quoted(most) })?;
    }
    Ok(setting)
}

/// A time of whole seconds (`s`) or minutes (`m`).
fn time(text: &str) -> Option<Duration> {
    span(text, Duration::from_secs(1), LONGEST)
}

/// A time of whole seconds (`s`), minutes (`m`) or hours (`h`), if it is within these limits.
pub(super) fn span(text: &str, least: Duration, most: Duration) -> Option<Duration> {
    let mut units = [('s', 1), ('m', 60), ('h', 3600)].into_iter();
    let (number, unit) =
        units.find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, unit)))?;
    let number = within(number.trim_end(), 0, most.as_secs() / unit)?;
    Some(Duration::from_secs(number * unit)).filter(|span| *span >= least)
}

/// A time within these limits, or `off`: `Some(None)`.
pub(super) fn span_or_off(text: &str, least: Duration, most: Duration) -> Option<Option<Duration>> {
    match text.trim() {
        "off" => Some(None),
        text => span(text, least, most).map(Some),
    }
}

/// A whole number in decimal digits, if it is within these limits.
fn within(text: &str, least: u64, most: u64) -> Option<u64> {
    // `parse` takes a sign, too.
    let digits = Some(text).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    digits.parse().ok().filter(|number| (least..=most).contains(number))
}

/// Those of the members of a tier that are ejected. Members are indices of `candidates`; both are sorted
/// by address.
pub(super) fn leave_out(
    ejections: &ServiceEjections,
    candidates: &[Candidate<'_>],
    members: Vec<usize>,
) -> Vec<usize> {
    let place = |endpoint| members.binary_search_by_key(&endpoint, |&it| candidates[it].address);
    let found = ejections.endpoints.iter().filter_map(|it| place(it.endpoint).ok());
    let room = most_ejected(members.len(), ejections.most);
    found.map(|place| members[place]).take(room).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(failures: u8, first: u64, most: u8) -> Setting {
        Setting { failures, first: Duration::from_secs(first), most }
    }

    #[test]
    fn failures_may_be_followed_by_the_first_time_and_the_most_of_a_tier() {
        for (text, wanted) in [
            ("3", setting(3, 30, 50)),
            (" 15 ", setting(15, 30, 50)),
            ("1,5s", setting(1, 5, 50)),
            ("3, 2m, 100%", setting(3, 120, 100)),
            ("3 , 600 s , 1 %", setting(3, 600, 1)),
        ] {
            assert_eq!(from_annotation(text), Ok(wanted), "{text:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let text = |text: &str| quoted(text);
        for wrong in ["", "0", "16", "three", "-1", "+3", "3.0", "٣", "99999999999999999999"] {
            let rule = Rule::EjectionFailures { text: text(wrong) };
            assert_eq!(from_annotation(wrong), Err(rule), "{wrong:?}");
        }
        for wrong in ["", "30", "0s", "601s", "11m", "1h", "1.5s", "s", "ms", "5 00s"] {
            let rule = Rule::EjectionTime { text: text(wrong) };
            assert_eq!(from_annotation(&format!("3,{wrong}")), Err(rule), "{wrong:?}");
        }
        for wrong in ["", "50", "0%", "101%", "half", "%", "5%%"] {
            let rule = Rule::EjectionMost { text: text(wrong) };
            assert_eq!(from_annotation(&format!("3,30s,{wrong}")), Err(rule), "{wrong:?}");
        }
        let long = ",".repeat(1 << 20);
        let rule = Rule::EjectionParts { count: (1 << 20) + 1 };
        assert_eq!(from_annotation(&long), Err(rule));
    }
}
