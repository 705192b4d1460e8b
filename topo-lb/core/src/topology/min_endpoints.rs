//! `topo-lb.io/min-endpoints`: the least number of usable endpoints for a tier to be chosen, so
//! that all clients of a node do not overload one local Pod.
//!
//! `"2"` applies to every label key, `"2,3"` to one each. `"20%"` is of all usable endpoints of the Service
//! port, in whatever tier they are. `*` takes every endpoint.

use super::validation::{ANY, MAX_KEYS, Rule, quoted};

/// The least number of usable endpoints of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Least {
    /// At least 1.
    Number(u16),
    /// Of all usable endpoints of the Service port, rounded up: 1–100.
    Percent(u8),
}

impl Least {
    /// The number, if so many endpoints of the Service port are usable.
    pub(super) fn of(self, usable: usize) -> usize {
        match self {
            Self::Number(number) => number.into(),
            Self::Percent(percent) => (usable * usize::from(percent)).div_ceil(100).max(1),
        }
    }
}

/// The least number of endpoints for each of `keys`, in their order; `None`: no keys are in force.
///
/// # Errors
/// The first rule that `text` breaks.
pub(super) fn from_annotation(text: &str, keys: Option<&[&str]>) -> Result<Vec<Least>, Rule> {
    let all = keys.map_or(MAX_KEYS, <[_]>::len);
    let has_any = keys.is_some_and(|keys| keys.last() == Some(&ANY));
    let labels = all - usize::from(has_any);
    // Counts before it splits, like the keys.
    let count = text.bytes().filter(|&byte| byte == b',').count() + 1;
    let fits = if keys.is_some() { count == labels || count == all } else { count <= all };
    if count != 1 && !fits {
        return Err(Rule::LeastCount { numbers: count, labels });
    }
    let mut numbers = Vec::with_capacity(all);
    for (position, part) in (1..).zip(text.split(',').map(str::trim)) {
        let least = number(part, position)?;
        if position > labels && count > 1 && least != Least::Number(1) {
            return Err(Rule::LeastOfAny { text: quoted(part) });
        }
        numbers.push(least);
    }
    // What is wrong by itself is said first.
    if keys.is_none() {
        return Err(Rule::WithoutKeys);
    }
    if count == 1 {
        numbers.resize(labels, numbers[0]);
    }
    numbers.resize(all, Least::Number(1));
    Ok(numbers)
}

fn number(text: &str, position: usize) -> Result<Least, Rule> {
    let percent = text.strip_suffix('%').map(str::trim_end);
    let digits = percent.unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Rule::LeastNotANumber { position, text: quoted(text) });
    }
    let least = match percent {
        None => digits.parse().ok().filter(|number| *number > 0).map(Least::Number),
        Some(_) => digits.parse().ok().filter(|it| (1..=100).contains(it)).map(Least::Percent),
    };
    least.ok_or_else(|| Rule::LeastOutOfRange { position, text: quoted(text) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 3] = ["node", "zone", ANY];

    fn from_annotation(text: &str, keys: &[&str]) -> Result<Vec<Least>, Rule> {
        super::from_annotation(text, Some(keys))
    }

    fn numbers(numbers: &[u16]) -> Vec<Least> {
        numbers.iter().copied().map(Least::Number).collect()
    }

    #[test]
    fn one_number_is_for_every_label_and_never_for_the_star() {
        assert_eq!(from_annotation("2", &KEYS), Ok(numbers(&[2, 2, 1])));
        assert_eq!(from_annotation(" 2 ", &["node"]), Ok(numbers(&[2])));
        assert_eq!(from_annotation("65535", &[ANY]), Ok(numbers(&[1])));
    }

    #[test]
    fn a_list_has_a_number_for_each_key() {
        assert_eq!(from_annotation("2,3", &KEYS), Ok(numbers(&[2, 3, 1])));
        assert_eq!(from_annotation("2 , 3,1", &KEYS), Ok(numbers(&[2, 3, 1])));
        assert_eq!(from_annotation("1,4", &["node", "zone"]), Ok(numbers(&[1, 4])));
    }

    #[test]
    fn a_percentage_is_of_all_usable_endpoints_rounded_up_and_at_least_one() {
        let [percent, of_one] = [Least::Percent(20), Least::Percent(1)];
        assert_eq!(from_annotation("20%", &["node"]), Ok(vec![percent]));
        let both = vec![of_one, Least::Number(3), Least::Number(1)];
        assert_eq!(from_annotation("1 %, 3", &KEYS), Ok(both));
        assert_eq!([0, 1, 5, 6, 10, 11].map(|usable| percent.of(usable)), [1, 1, 1, 2, 2, 3]);
        assert_eq!([of_one.of(100), of_one.of(101), Least::Percent(100).of(7)], [1, 2, 7]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let not = |position, text: &str| Rule::LeastNotANumber { position, text: text.into() };
        let out = |position, text: &str| Rule::LeastOutOfRange { position, text: text.into() };
        for (text, rule) in [
            ("", not(1, "``")),
            ("two", not(1, "`two`")),
            ("2,", not(2, "``")),
            ("2,x", not(2, "`x`")),
            ("-1", not(1, "`-1`")),
            ("+1", not(1, "`+1`")),
            ("1.5", not(1, "`1.5`")),
            ("２", not(1, "`２`")),
            ("0", out(1, "`0`")),
            ("2,0", out(2, "`0`")),
            ("65536", out(1, "`65536`")),
            ("99999999999999999999999", out(1, "`99999999999999999999999`")),
            ("0%", out(1, "`0%`")),
            ("101%", out(1, "`101%`")),
            ("%", not(1, "`%`")),
            ("1.5%", not(1, "`1.5%`")),
            ("2,3,2", Rule::LeastOfAny { text: "`2`".into() }),
            ("2,3,1%", Rule::LeastOfAny { text: "`1%`".into() }),
            ("1,2,3,4", Rule::LeastCount { numbers: 4, labels: 2 }),
        ] {
            assert_eq!(from_annotation(text, &KEYS), Err(rule), "{text:?}");
        }
        assert_eq!(
            from_annotation("1,2,3", &["node", "zone"]),
            Err(Rule::LeastCount { numbers: 3, labels: 2 })
        );
        let long = ",".repeat(1 << 20);
        assert_eq!(
            from_annotation(&long, &KEYS),
            Err(Rule::LeastCount { numbers: (1 << 20) + 1, labels: 2 })
        );
    }
    #[test]
    fn without_keys_what_is_wrong_by_itself_is_still_said() {
        for (text, rule) in [
            ("2", Rule::WithoutKeys),
            ("2, 30%", Rule::WithoutKeys),
            ("two", Rule::LeastNotANumber { position: 1, text: "`two`".into() }),
            ("2,0", Rule::LeastOutOfRange { position: 2, text: "`0`".into() }),
            (&["1"; 16].join(","), Rule::WithoutKeys),
            (&["1"; 17].join(","), Rule::LeastCount { numbers: 17, labels: 16 }),
        ] {
            assert_eq!(super::from_annotation(text, None), Err(rule), "{text:?}");
        }
    }
}
