//! `topo-lb.io/weights`: how new connections divide among the endpoints that may get them.
//!
//! * `"kubernetes.io/hostname: 80, topology.kubernetes.io/zone: 15, *: 5"` weighs **tiers**: the keys in
//!   force, each named once. A tier takes part if it has as many endpoints as
//!   `topo-lb.io/min-endpoints` asks for. Its endpoints are those that its key matches beyond the
//!   earlier tiers that take part.
//! * `"topology.kubernetes.io/zone: a=80, b=20"` weighs **values** of a label, among the endpoints that
//!   the policy chose, whichever it is. `*` stands for all other values, and for endpoints without
//!   one. A value that is not named has the weight 0.
//!
//! A part gets its weight ÷ the sum of the weights of all parts with endpoints; so the share of a part
//! without endpoints goes to the others in proportion. The endpoints of a part share alike. If no part
//! with endpoints has a weight, weights have no effect. So they never refuse, and reach no endpoint
//! that the keys do not allow.

use topo_lb_common::selection::SPILL_ONE;

use super::candidate::Candidate;
use super::keys::{Keys, matching};
use super::label::Here;
use super::label_name::{is_label_value, label_name};
use super::rules::Rules;
use super::spill::{Share, Spill};
use super::validation::{ANY, MAX_KEYS, MAX_WEIGHT, Rule, quoted};

/// Valid weights; at least one is above 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Weights<'a> {
    /// One for each key in force, in their order; none is 0.
    Tiers(Vec<u16>),
    /// By value of a label.
    Values {
        /// The label.
        label: &'a str,
        /// Distinct values, or `*`, and their weights.
        of: Vec<(&'a str, u16)>,
    },
}

/// Endpoints that get a share of new connections together, each as much as the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part<'a> {
    /// The key or the value; `*` for the rest.
    pub(super) name: &'a str,
    /// At least 1.
    pub(super) weight: u16,
    /// Indices of candidates, sorted; at least one.
    pub(super) members: Vec<usize>,
}

/// What weights are for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Weighs<'a> {
    /// The tiers of the keys.
    Tiers,
    /// Values of a label.
    Values {
        /// The label.
        label: &'a str,
        /// The values that are named; `*` for the others.
        named: Vec<&'a str>,
    },
}

/// A part's share of new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portion<'a> {
    /// The key or the value; `*` for the rest.
    pub name: &'a str,
    /// How many endpoints it has.
    pub endpoints: usize,
    /// What they get together.
    pub share: Share,
}

impl<'a> Portion<'a> {
    pub(super) fn all(parts: &[Part<'a>]) -> Vec<Self> {
        let sum = parts.iter().map(|part| u64::from(part.weight)).sum();
        let portion = |part: &Part<'a>| Self {
            name: part.name,
            endpoints: part.members.len(),
            share: Share::of(part.weight.into(), sum),
        };
        parts.iter().map(portion).collect()
    }

    /// The share of one endpoint, of 1.
    #[must_use]
    pub fn each(&self) -> f64 {
        f64::from(self.share.parts()) / f64::from(SPILL_ONE) / self.endpoints as f64
    }
}

impl<'a> Weights<'a> {
    /// The parts with endpoints and a weight: tiers in the order of their keys, values in the order of
    /// the annotation. Empty: weights have no effect. `usable` and `chosen`, the policy's choice among
    /// them, are sorted indices of `candidates`.
    pub(super) fn divide(
        &self,
        rules: &Rules<'a>,
        here: Here<'_>,
        candidates: &[Candidate<'_>],
        usable: &[usize],
        chosen: &[usize],
    ) -> Vec<Part<'a>> {
        let mut parts = match (self, rules) {
            (Self::Tiers(weights), Rules::Keys(keys)) => {
                tiers(weights, keys, here, candidates, usable)
            }
            // Only keys can have weights of tiers.
            (Self::Tiers(_), _) => Vec::new(),
            (Self::Values { label, of }, _) => values(label, of, candidates, chosen),
        };
        parts.retain(|part| part.weight > 0 && !part.members.is_empty());
        parts
    }

    /// What is weighed.
    pub(super) fn weighs(&self) -> Weighs<'a> {
        match self {
            Self::Tiers(_) => Weighs::Tiers,
            Self::Values { label, of } => {
                Weighs::Values { label, named: of.iter().map(|(value, _)| *value).collect() }
            }
        }
    }

    /// The label whose values are weighed.
    pub(super) const fn label(&self) -> Option<&'a str> {
        match self {
            Self::Tiers(_) => None,
            Self::Values { label, .. } => Some(label),
        }
    }
}

fn tiers<'a>(
    weights: &[u16],
    keys: &Keys<'a>,
    here: Here<'_>,
    candidates: &[Candidate<'_>],
    usable: &[usize],
) -> Vec<Part<'a>> {
    let mut is_taken = vec![false; candidates.len()];
    let with = keys.keys.iter().zip(&keys.min_endpoints).zip(weights);
    with.map(|((&name, &least), &weight)| {
        let mut members = matching(name, here, candidates, usable);
        if members.len() < least.of(usable.len()) {
            members.clear();
        }
        members.retain(|&one| !std::mem::replace(&mut is_taken[one], true));
        Part { name, weight, members }
    })
    .collect()
}

fn values<'a>(
    label: &str,
    of: &[(&'a str, u16)],
    candidates: &[Candidate<'_>],
    chosen: &[usize],
) -> Vec<Part<'a>> {
    let part = |&(name, weight)| Part { name, weight, members: Vec::new() };
    let mut parts: Vec<_> = of.iter().map(part).collect();
    for &one in chosen {
        // No value is `*`, as that is no label value.
        let value = candidates[one].site.label(label).unwrap_or(ANY);
        let place = |name: &str| of.iter().position(|(own, _)| *own == name);
        if let Some(place) = place(value).or_else(|| place(ANY)) {
            parts[place].members.push(one);
        }
    }
    parts
}

/// The weights in annotation `topo-lb.io/weights`, for the policy in force.
///
/// # Errors
/// The first rule that they break.
pub(super) fn from_annotation<'a>(text: &'a str, rules: &Rules<'_>) -> Result<Weights<'a>, Rule> {
    if text.trim().is_empty() {
        return Err(Rule::WeightsEmpty);
    }
    // Counts before it splits, like the keys.
    let count = text.bytes().filter(|&byte| byte == b',').count() + 1;
    if count > MAX_KEYS {
        return Err(Rule::TooManyWeights { count });
    }
    let keys = match rules {
        Rules::Keys(keys) => Some(keys),
        Rules::OpenYurt { .. } | Rules::None => None,
    };
    let weights = if text.contains('=') {
        of_values(text)?
    } else {
        of_tiers(text, keys.map(|keys| &keys.keys[..]))?
    };
    match keys {
        Some(keys) if keys.spill != Spill::NONE => Err(Rule::WeightsWithSpill),
        _ => Ok(weights),
    }
}

/// `keys`: `None` if none are in force.
fn of_tiers<'a>(text: &'a str, keys: Option<&[&str]>) -> Result<Weights<'a>, Rule> {
    let mut weights: Vec<(&str, u16)> = Vec::new();
    for (position, part) in (1..).zip(text.split(',')) {
        let form = || Rule::WeightForm { position, text: quoted(part.trim()) };
        let (key, weight) = part.rsplit_once(':').ok_or_else(form)?;
        let key = key.trim();
        match keys {
            Some(keys) if !keys.contains(&key) => {
                let keys = keys.join("`, `");
                return Err(Rule::WeightOfNoKey { position, key: quoted(key), keys });
            }
            None if key != ANY => label_name(key).map_err(|fault| {
                let key = quoted(key);
                Rule::NotALabel { position, key, fault }
            })?,
            _ => {}
        }
        if weights.iter().any(|(own, _)| *own == key) {
            return Err(Rule::DuplicateWeight { name: quoted(key) });
        }
        weights.push((key, number(weight, position, 1)?));
    }
    // What is wrong by itself is said first.
    let keys = keys.ok_or(Rule::WithoutKeys)?;
    let of = |key: &&str| {
        let weight = weights.iter().find(|(own, _)| own == key).map(|(_, weight)| *weight);
        weight.ok_or_else(|| Rule::KeyWithoutWeight { key: quoted(key) })
    };
    keys.iter().map(of).collect::<Result<_, _>>().map(Weights::Tiers)
}

fn of_values(text: &str) -> Result<Weights<'_>, Rule> {
    let form = |position, text: &str| Rule::WeightForm { position, text: quoted(text.trim()) };
    let (label, list) = text.split_once(':').ok_or_else(|| form(1, text))?;
    let label = label.trim();
    label_name(label).map_err(|fault| Rule::NotALabel {
        position: 1,
        key: quoted(label),
        fault,
    })?;
    let mut of: Vec<(&str, u16)> = Vec::new();
    for (position, part) in (1..).zip(list.split(',')) {
        let (value, weight) = part.split_once('=').ok_or_else(|| form(position, part))?;
        let value = value.trim();
        if value != ANY && !is_label_value(value) {
            return Err(Rule::NotAValue { position, value: quoted(value) });
        }
        if of.iter().any(|(own, _)| *own == value) {
            return Err(Rule::DuplicateWeight { name: quoted(value) });
        }
        of.push((value, number(weight, position, 0)?));
    }
    match of.iter().all(|(_, weight)| *weight == 0) {
        true => Err(Rule::WeightsOfNothing),
        false => Ok(Weights::Values { label, of }),
    }
}

/// A whole number from `least` to [`MAX_WEIGHT`].
fn number(text: &str, position: usize, least: u16) -> Result<u16, Rule> {
    let text = text.trim();
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|number| (least..=MAX_WEIGHT).contains(number));
    let error = || Rule::NotAWeight { position, text: quoted(text), least };
    number.filter(|_| digits).ok_or_else(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 3] = ["kubernetes.io/hostname", "topology.kubernetes.io/zone", ANY];

    fn keys() -> Rules<'static> {
        Rules::Keys(Keys::of(KEYS.to_vec()))
    }

    #[test]
    fn every_key_has_its_weight_in_any_order() {
        for text in [
            "kubernetes.io/hostname: 80, topology.kubernetes.io/zone: 15, *: 5",
            " *:5,topology.kubernetes.io/zone :15,\tkubernetes.io/hostname: 80 ",
        ] {
            assert_eq!(from_annotation(text, &keys()), Ok(Weights::Tiers(vec![80, 15, 5])));
        }
    }

    #[test]
    fn values_need_no_keys() {
        let of = vec![("a", 80), ("B_2.c", 0), (ANY, 1_000)];
        let wanted = Weights::Values { label: KEYS[1], of };
        for rules in [keys(), Rules::None] {
            for text in [
                "topology.kubernetes.io/zone: a=80, B_2.c=0, *=1000",
                " topology.kubernetes.io/zone:a = 080,B_2.c=0 ,* = 1000 ",
            ] {
                assert_eq!(from_annotation(text, &rules), Ok(wanted.clone()), "{text}");
            }
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let form = |position, text: &str| Rule::WeightForm { position, text: text.into() };
        let not = |position, text: &str, least| {
            let text = text.into();
            Rule::NotAWeight { position, text, least }
        };
        let long = ",".repeat(1 << 20);
        let (h, z) = (KEYS[0], KEYS[1]);
        let valid = format!("{h}: 1, {z}: 1, ");
        for (text, rule) in [
            ("", Rule::WeightsEmpty),
            (" \t", Rule::WeightsEmpty),
            (&long, Rule::TooManyWeights { count: (1 << 20) + 1 }),
            ("80, 15, 5", form(1, "`80`")),
            (&format!("{h}: 80,, *: 5"), form(2, "``")),
            (&format!("{h}: 80"), Rule::KeyWithoutWeight { key: format!("`{z}`") }),
            (&format!("{h}: 80, {h}: 1"), Rule::DuplicateWeight { name: format!("`{h}`") }),
            (
                "rack: 80",
                Rule::WeightOfNoKey { position: 1, key: "`rack`".into(), keys: KEYS.join("`, `") },
            ),
            (&format!("{valid}*: 0"), not(3, "`0`", 1)),
            (&format!("{valid}*: 1001"), not(3, "`1001`", 1)),
            (&format!("{valid}*: 99999999999999999999"), not(3, "`99999999999999999999`", 1)),
            (&format!("{valid}*: 5%"), not(3, "`5%`", 1)),
            (&format!("{valid}*: +5"), not(3, "`+5`", 1)),
            (&format!("{valid}*: ５"), not(3, "`５`", 1)),
            (&format!("{valid}*:"), not(3, "``", 1)),
            ("a=80, b=20", form(1, "`a=80, b=20`")),
            ("rack: a=80, b", form(2, "`b`")),
            ("rack: a=80, b=x", not(2, "`x`", 0)),
            ("rack: a=-1", not(1, "`-1`", 0)),
            ("rack: a=1=2", not(1, "`1=2`", 0)),
            ("rack: a=1, a=2", Rule::DuplicateWeight { name: "`a`".into() }),
            ("rack: =80", Rule::NotAValue { position: 1, value: "``".into() }),
            ("rack: a:b=80", Rule::NotAValue { position: 1, value: "`a:b`".into() }),
            ("rack: a=0, *=0", Rule::WeightsOfNothing),
        ] {
            assert_eq!(from_annotation(text, &keys()), Err(rule), "{text:.80}");
        }
        let label = from_annotation("-x: a=1", &keys());
        assert!(matches!(label, Err(Rule::NotALabel { position: 1, .. })), "{label:?}");
        for (text, rule) in [
            ("*: 5", Rule::WithoutKeys),
            ("rack: 80, *: 5", Rule::WithoutKeys),
            ("rack: 80, rack: 5", Rule::DuplicateWeight { name: "`rack`".into() }),
            ("80, 20", form(1, "`80`")),
            ("*: 0", not(1, "`0`", 1)),
        ] {
            assert_eq!(from_annotation(text, &Rules::None), Err(rule), "{text}");
        }
    }

    #[test]
    fn spill_and_weights_exclude_each_other() {
        let mut spilling = Keys::of(vec![ANY]);
        spilling.spill = Spill::Auto;
        for text in ["*: 5", "rack: a=1"] {
            let rules = Rules::Keys(spilling.clone());
            assert_eq!(from_annotation(text, &rules), Err(Rule::WeightsWithSpill), "{text}");
        }
    }
}
