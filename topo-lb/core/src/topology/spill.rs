//! `topo-lb.io/spill`: a share of new connections goes to the next wider tier while the chosen one
//! is healthy, so that the fall-back stays warm and tested.

use std::fmt;

use topo_lb_common::selection::SPILL_ONE;

use super::validation::{Rule, quoted};
use crate::cluster::service::AUTO;

/// A share of new connections, in parts of [`SPILL_ONE`]: hundredths of a percent, 0–10,000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share(u16);

impl Share {
    /// The share in parts of [`SPILL_ONE`].
    #[must_use]
    pub const fn parts(self) -> u16 {
        self.0
    }

    /// `part` ÷ `whole`, to the nearest part of [`SPILL_ONE`]; at most 1. 0 of nothing.
    #[must_use]
    pub fn of(part: u64, whole: u64) -> Self {
        let (one, whole) = (u64::from(SPILL_ONE), whole.max(1));
        Self(((part * one * 2 + whole) / (whole * 2)).min(one) as u16)
    }

    /// Whether the share is 0.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// What `topo-lb.io/spill` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spill {
    /// This share.
    Share(Share),
    /// A share that follows from how crowded the tier is (`crowding`).
    Auto,
}

impl Spill {
    /// Nothing spills.
    pub(super) const NONE: Self = Self::Share(Share(0));

    /// `auto`, or a share.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub(super) fn from_annotation(text: &str) -> Result<Self, Rule> {
        match text.trim() {
            AUTO => Ok(Self::Auto),
            _ => from_annotation(text).map(Self::Share),
        }
    }
}

impl fmt::Display for Spill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Share(share) => share.fmt(f),
            Self::Auto => f.write_str(AUTO),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 100, self.0 % 100) {
            (percent, 0) => write!(f, "{percent}%"),
            (percent, tenths) if tenths % 10 == 0 => write!(f, "{percent}.{}%", tenths / 10),
            (percent, hundredths) => write!(f, "{percent}.{hundredths:02}%"),
        }
    }
}

/// The share in annotation `topo-lb.io/spill` or `topo-lb.io/ramp`: a percentage of at most two decimals.
///
/// # Errors
/// The rule that it breaks.
pub(super) fn from_annotation(text: &str) -> Result<Share, Rule> {
    let not_a_share = || Rule::SpillNotAShare { text: quoted(text) };
    let number = text.trim().strip_suffix('%').ok_or_else(not_a_share)?.trim_end();
    let (percent, decimals) = match number.split_once('.') {
        None => (number, "0"),
        Some((_, decimals)) if decimals.len() > 2 || decimals.is_empty() => {
            return Err(not_a_share());
        }
        Some(parts) => parts,
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if percent.is_empty() || !digits(percent) || !digits(decimals) {
        return Err(not_a_share());
    }
    // Only digits, so a parse error means too large.
    let percent: u16 = percent.parse().unwrap_or(u16::MAX);
    let decimals: u16 = format!("{decimals:0<2}").parse().unwrap_or_default();
    match percent.checked_mul(100).and_then(|share| share.checked_add(decimals)) {
        Some(share) if share <= SPILL_ONE => Ok(Share(share)),
        _ => Err(Rule::SpillAbove { text: quoted(text) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_of_up_to_two_decimals_are_shares() {
        for (text, share, shown) in [
            ("0%", 0, "0%"),
            ("5%", 500, "5%"),
            (" 5 % ", 500, "5%"),
            ("100%", 10_000, "100%"),
            ("100.00%", 10_000, "100%"),
            ("0.5%", 50, "0.5%"),
            ("0.05%", 5, "0.05%"),
            ("12.34%", 1_234, "12.34%"),
            ("012.3%", 1_230, "12.3%"),
        ] {
            let parsed = from_annotation(text).unwrap();
            assert_eq!((parsed.0, &*parsed.to_string()), (share, shown), "{text:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for text in ["100.01%", "101%", "65536%", "99999999999999999999%"] {
            let text = text.to_owned();
            let rule = Rule::SpillAbove { text: quoted(&text) };
            assert_eq!(from_annotation(&text), Err(rule), "{text:?}");
        }
        let long = "9".repeat(1 << 20);
        for text in [
            "",
            "%",
            "5",
            "5.%",
            ".5%",
            "5.123%",
            "-5%",
            "+5%",
            "5e1%",
            "5%%",
            "five%",
            "5,5%",
            "٥%",
            "0.\u{0}1%",
            &long,
        ] {
            let rule = Rule::SpillNotAShare { text: quoted(text) };
            assert_eq!(from_annotation(text), Err(rule), "{text:?}");
        }
    }
}
