//! `topo-lb.io/return`: idle connections that a fail-over has left in a wider tier end, once a nearer one has
//! been in force for a while. Here: the setting, and which endpoints are wider than those in force.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::cause::Cause;
use super::ejection::span_or_off;
use super::evaluation::{CandidateStatus, Evaluation};
use super::keys;
use super::label::Here;
use super::rules::Rules;
use super::validation::{MAX_KEYS, Rule, quoted};

/// The limits of the time.
const SHORTEST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// When connections return to a nearer tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// How long it has to be in force: from 5 s to 24 h.
    pub after: Duration,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.after.as_secs();
        write!(
            f,
            "idle connections to a wider tier end when a nearer one is in force for {seconds} s"
        )
    }
}

/// What annotation `topo-lb.io/return` asks for: whole seconds, minutes or hours; `None` for `off`.
///
/// # Errors
/// The rule that it breaks.
pub(super) fn from_annotation(text: &str) -> Result<Option<Setting>, Rule> {
    let after = span_or_off(text, SHORTEST, LONGEST);
    let after = after.ok_or_else(|| Rule::ReturnTime { text: quoted(text.trim()) })?;
    Ok(after.map(|after| Setting { after }))
}

/// What a Service port's route says about connections that are to return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Homeward {
    /// How long what is in force now has to be so.
    pub after: Duration,
    /// The widest tier that new connections get, 0 for the nearest; below [`RANKS`]. `None` while they are refused.
    pub rank: Option<u8>,
    /// Endpoints that serve, that no new connection gets, and that are in a wider tier. Sorted.
    pub wide: Arc<[SocketAddr]>,
}

/// How many tiers there are at most.
pub const RANKS: usize = MAX_KEYS;

impl Homeward {
    pub(super) fn of(
        setting: Setting,
        rules: &Rules<'_>,
        done: &Evaluation<'_>,
        here: Here<'_>,
    ) -> Self {
        let mut wide = done.of_status(|status| status == CandidateStatus::Passed);
        let in_force = match rules {
            Rules::Keys(keys) => {
                let tier = done.tier().unwrap_or_default();
                // A nearer tier that lacks endpoints is passed over, too, and is not wider.
                for key in keys.keys.iter().take(tier.into()) {
                    let nearer = keys::matching(key, here, &done.candidates, &wide);
                    wide.retain(|one| !nearer.contains(one));
                }
                let widest = done.wider.and_then(|(index, ..)| u8::try_from(index).ok());
                widest.unwrap_or(tier)
            }
            Rules::OpenYurt { .. } => 0,
            // Every usable endpoint, as no policy is in force, or as nobody follows the hints.
            Rules::None => {
                u8::from(!matches!(done.cause, Cause::HintedNode | Cause::HintedZone(_)))
            }
        };
        let is_served = done.chosen > 0;
        let wide = wide.into_iter().filter(|_| is_served);
        let most = u8::try_from(RANKS - 1).unwrap_or(u8::MAX);
        Self {
            after: setting.after,
            rank: is_served.then(|| in_force.min(most)),
            wide: wide.map(|one| done.candidates[one].address).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_whole_seconds_minutes_or_hours() {
        for (text, seconds) in
            [("5s", 5), (" 10m ", 600), ("24h", 86_400), ("86400 s", 86_400), ("1440m", 86_400)]
        {
            let after = Duration::from_secs(seconds);
            assert_eq!(from_annotation(text), Ok(Some(Setting { after })), "{text:?}");
        }
        assert_eq!(from_annotation(" off "), Ok(None));
        for wrong in [
            "",
            "4s",
            "0m",
            "25h",
            "86401s",
            "10",
            "m",
            "-5m",
            "+5m",
            "1.5h",
            "5d",
            "٥m",
            "1h30m",
            "99999999999999999999h",
            "18446744073709551615h",
            "Off",
        ] {
            let rule = Rule::ReturnTime { text: quoted(wrong) };
            assert_eq!(from_annotation(wrong), Err(rule), "{wrong:?}");
        }
    }
}
