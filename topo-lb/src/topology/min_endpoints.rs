//! `topo-lb.io/min-endpoints`: the least number of usable endpoints for a tier to be chosen, so
//! that all clients of a node do not overload one local Pod.
//!
//! `"2"` applies to every label key, `"2,3"` to one each. `*` takes every endpoint.

use super::validation::{ANY, Rule, quoted};

/// The least number of endpoints for each of `keys`, in their order.
///
/// # Errors
/// The first rule that `text` breaks.
pub(super) fn from_annotation(text: &str, keys: &[&str]) -> Result<Vec<u16>, Rule> {
    let labels = keys.len() - usize::from(keys.last() == Some(&ANY));
    // Counts before it splits, like the keys.
    let count = text.bytes().filter(|&byte| byte == b',').count() + 1;
    if count != 1 && count != labels && count != keys.len() {
        return Err(Rule::LeastCount { numbers: count, labels });
    }
    let mut numbers = Vec::with_capacity(keys.len());
    for (at, part) in text.split(',').enumerate() {
        numbers.push(number(part.trim(), at + 1)?);
    }
    if count == 1 {
        numbers.resize(labels, numbers[0]);
    } else if let Some(&number) = numbers.get(labels)
        && number != 1
    {
        return Err(Rule::LeastOfAny { number });
    }
    numbers.resize(keys.len(), 1);
    Ok(numbers)
}

fn number(text: &str, position: usize) -> Result<u16, Rule> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Rule::LeastNotANumber { position, text: quoted(text) });
    }
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(Rule::LeastOutOfRange { position, text: quoted(text) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 3] = ["node", "zone", ANY];

    #[test]
    fn one_number_is_for_every_label_and_never_for_the_star() {
        assert_eq!(from_annotation("2", &KEYS), Ok(vec![2, 2, 1]));
        assert_eq!(from_annotation(" 2 ", &["node"]), Ok(vec![2]));
        assert_eq!(from_annotation("65535", &[ANY]), Ok(vec![1]));
    }

    #[test]
    fn a_list_has_a_number_for_each_key() {
        assert_eq!(from_annotation("2,3", &KEYS), Ok(vec![2, 3, 1]));
        assert_eq!(from_annotation("2 , 3,1", &KEYS), Ok(vec![2, 3, 1]));
        assert_eq!(from_annotation("1,4", &["node", "zone"]), Ok(vec![1, 4]));
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
            ("2,3,2", Rule::LeastOfAny { number: 2 }),
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
}
