//! Rules for annotations and fields. One that breaks a rule is ignored as a whole.

use std::fmt;

use super::field::Field;
use super::label_name::LabelFault;
use super::origin::Origin;
use crate::cluster::Annotation;
use crate::cluster::service::TOO_LONG;

/// Most keys of a policy, as in Kubernetes 1.17 (`MaxTopologyKeys`).
pub const MAX_KEYS: usize = 16;
/// The largest weight.
pub const MAX_WEIGHT: u16 = 1_000;
/// The key that matches every endpoint.
pub const ANY: &str = "*";

/// An annotation or field that is ignored, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ignored {
    /// The object that has it.
    pub origin: Origin,
    /// What was ignored.
    pub what: Field,
    /// The rule that it broke.
    pub rule: Rule,
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::Service => {}
            origin => write!(f, "{origin}: ")?,
        }
        let Self { what, rule, .. } = self;
        match &self.origin {
            Origin::Service | Origin::Namespace(_) => write!(f, "{what}")?,
            Origin::Policy(_) => write!(f, "field {}", what.names().1)?,
        }
        match what {
            Field::Of(Annotation::Mode | Annotation::Ramp) => {
                write!(f, " is wrong, so nothing here holds: {rule}")
            }
            _ => write!(f, " is ignored: {rule}"),
        }
    }
}

impl std::error::Error for Ignored {}

/// A broken rule. Its message says how to fix it. Positions count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rule {
    /// More than [`MAX_KEYS`].
    #[error("it has {count} keys, at most {MAX_KEYS} are allowed; remove {}", count - MAX_KEYS)]
    TooManyKeys {
        /// How many there are.
        count: usize,
    },
    /// The text is empty.
    #[error("it is empty; name at least one node label, or `*` for every endpoint, or remove it")]
    Empty,
    /// No text between two commas.
    #[error("key {position} of {count} is empty; write a node label there or remove a comma")]
    EmptyKey {
        /// Which.
        position: usize,
        /// Of how many.
        count: usize,
    },
    /// Not a qualified name.
    #[error("key {position}, {key}, is no label name: {fault}")]
    NotALabel {
        /// Which.
        position: usize,
        /// Quoted.
        key: String,
        /// What is wrong with it.
        fault: LabelFault,
    },
    /// `*` before another key.
    #[error(
        "`*` is key {position} of {count}, but nothing after it could ever match; move it to the \
         end or remove it"
    )]
    AnyNotLast {
        /// Which.
        position: usize,
        /// Of how many.
        count: usize,
    },
    /// A repeated key.
    #[error("key {second}, {key}, is the same as key {first}; remove one of them")]
    Duplicate {
        /// Quoted.
        key: String,
        /// Position of the first.
        first: usize,
        /// Position of the second.
        second: usize,
    },
    /// Kubernetes 1.17 forbids the two together.
    #[error(
        "topology keys and `externalTrafficPolicy: Local` exclude each other; remove the keys or \
         set `externalTrafficPolicy: Cluster`"
    )]
    WithExternalLocal,
    /// OpenYurt accepts one value.
    #[error(
        "{value} is a list, OpenYurt takes one value: {OPENYURT_VALUES}; for a list of labels use \
         annotation topo-lb.io/topology-keys"
    )]
    OpenYurtList {
        /// Quoted.
        value: String,
    },
    /// OpenYurt knows three values.
    #[error(
        "OpenYurt does not know {value}, only {OPENYURT_VALUES}; for any other label use \
         annotation topo-lb.io/topology-keys"
    )]
    OpenYurtUnknown {
        /// Quoted.
        value: String,
    },
    /// OpenYurt's annotation without a value.
    #[error("it is empty; write {OPENYURT_VALUES}, or remove it")]
    OpenYurtEmpty,
    /// It refines keys, but no keys are in force.
    #[error(
        "it refines topology keys, and none are in force here; write annotation \
         topo-lb.io/topology-keys, or remove this one"
    )]
    WithoutKeys,
    /// Not a number.
    #[error(
        "number {position}, {text}, is not a number; write one such as `2`, or a percentage \
         such as `20%`"
    )]
    LeastNotANumber {
        /// Which.
        position: usize,
        /// Quoted.
        text: String,
    },
    /// A number outside 1–65535, or a percentage outside 1–100.
    #[error(
        "number {position}, {text}, is out of range; write one from 1 to 65535, or from 1% to 100%"
    )]
    LeastOutOfRange {
        /// Which.
        position: usize,
        /// Quoted.
        text: String,
    },
    /// Neither one number, nor one per key.
    #[error(
        "it has {numbers} numbers for {labels} label keys; write one for all of them, or one for \
         each"
    )]
    LeastCount {
        /// How many there are.
        numbers: usize,
        /// Keys other than `*`.
        labels: usize,
    },
    /// `*` takes every endpoint and has no minimum.
    #[error("`*` takes every endpoint there is, it cannot ask for {text}; leave its number out")]
    LeastOfAny {
        /// Quoted: what was asked for.
        text: String,
    },
    /// Not a percentage.
    #[error(
        "{text} is not a percentage; write one of at most two decimals, such as `5%` or `0.5%`"
    )]
    SpillNotAShare {
        /// Quoted.
        text: String,
    },
    /// More than 100 %.
    #[error("{text} is more than `100%`; write at most that")]
    SpillAbove {
        /// Quoted.
        text: String,
    },
    /// Weights without text.
    #[error("it is empty; {WEIGHT_FORMS}, or remove it")]
    WeightsEmpty,
    /// More weights than [`MAX_KEYS`].
    #[error("it has {count} weights, at most {MAX_KEYS} are allowed; remove {}", count - MAX_KEYS)]
    TooManyWeights {
        /// How many there are.
        count: usize,
    },
    /// Not a name and a weight.
    #[error("part {position}, {text}, is no weight; {WEIGHT_FORMS}")]
    WeightForm {
        /// Which.
        position: usize,
        /// Quoted.
        text: String,
    },
    /// A weight for a key that is not in force.
    #[error(
        "weight {position} is for {key}, which is no topology key in force; name each of these once: \
         `{keys}`"
    )]
    WeightOfNoKey {
        /// Which.
        position: usize,
        /// Quoted.
        key: String,
        /// The keys in force.
        keys: String,
    },
    /// A key without a weight.
    #[error("the topology key {key} has no weight; give each key in force one, or remove the key")]
    KeyWithoutWeight {
        /// Quoted.
        key: String,
    },
    /// A key or value with two weights.
    #[error("{name} has two weights; remove one")]
    DuplicateWeight {
        /// Quoted.
        name: String,
    },
    /// Neither `*` nor a label value.
    #[error(
        "value {position}, {value}, is no label value; write up to 63 letters, digits, `-`, `_` and \
         `.`, with a letter or digit at both ends, or `*` for all other values"
    )]
    NotAValue {
        /// Which.
        position: usize,
        /// Quoted.
        value: String,
    },
    /// Not a number, or out of range.
    #[error(
        "weight {position}, {text}, is no whole number from {least} to {MAX_WEIGHT}; write one"
    )]
    NotAWeight {
        /// Which.
        position: usize,
        /// Quoted.
        text: String,
        /// The smallest that is allowed here.
        least: u16,
    },
    /// All weights are 0.
    #[error("all weights are 0, so no connection has a place to go; write one above 0")]
    WeightsOfNothing,
    /// Both divide the connections among tiers.
    #[error(
        "weights and topo-lb.io/spill both divide new connections; remove one of them. Weights of \
         the keys can do what `spill` does"
    )]
    WeightsWithSpill,
    /// More than failures, first time, and most of a tier.
    #[error("it has {count} parts, at most 3 are allowed; write it such as `3, 30s, 50%`")]
    EjectionParts {
        /// How many there are.
        count: usize,
    },
    /// Not a number of failures.
    #[error(
        "{text} is not a number of failed connects in a row; write one from 1 to {}, such as `3`",
        topo_lb_common::failing::MOST_FAILURES
    )]
    EjectionFailures {
        /// Quoted.
        text: String,
    },
    /// Not a time.
    #[error("{text} is not a time from 1s to 10m; write whole seconds or minutes, such as `30s`")]
    EjectionTime {
        /// Quoted.
        text: String,
    },
    /// Not a share.
    #[error("{text} is not a share of a tier; write one from 1% to 100%, such as `50%`")]
    EjectionMost {
        /// Quoted.
        text: String,
    },
    /// Only TCP connects are seen to fail.
    #[error("the Service has no TCP port, and connects are seen to fail only over TCP; remove it")]
    EjectionWithoutTcp,
    /// This node cannot see that connects fail.
    #[error("this node does not see that connects fail: {why}")]
    EjectionUnseen {
        /// Why.
        why: String,
    },
    /// Not a label and its value.
    #[error(
        "{text} is no label with a value; write such as `topology.kubernetes.io/zone=b`, and options after a `;`"
    )]
    EvacuateForm {
        /// Quoted.
        text: String,
    },
    /// Not an option of an evacuation.
    #[error(
        "{text} is no option; there are `until=2026-12-01T06:00:00Z`, `ramp=5m`, `allow-strict=KEY` and \
         `force=true`, each after a `;`"
    )]
    EvacuateOption {
        /// Quoted.
        text: String,
    },
    /// Not a time by RFC 3339.
    #[error("{text} is no time; write one such as `2026-12-01T06:00:00Z`")]
    EvacuateUntil {
        /// Quoted.
        text: String,
    },
    /// Not a time of the ramp.
    #[error(
        "{text} is no time from 0s to 24h; write whole seconds, minutes or hours, such as `5m`"
    )]
    EvacuateRamp {
        /// Quoted.
        text: String,
    },
    /// Not a time.
    #[error(
        "{text} is not a time from 5s to 24h; write whole seconds, minutes or hours, such as `10m`, or `off`"
    )]
    ReturnTime {
        /// Quoted.
        text: String,
    },
    /// Only TCP sockets return.
    #[error(
        "the Service has no TCP port, and only TCP connections return to a nearer tier; remove it"
    )]
    ReturnWithoutTcp,
    /// Without a policy, no endpoint is nearer.
    #[error(
        "it has connections return to a nearer tier, and without a policy there is none; write topology \
         keys, or remove this one"
    )]
    ReturnWithoutPolicy,
    /// Not a time of a slow start.
    #[error(
        "{text} is not a time from 10s to 1h; write whole seconds, minutes or hours, such as `60s`, or `off`"
    )]
    SlowStartTime {
        /// Quoted.
        text: String,
    },
    /// Both divide new connections.
    #[error("`topo-lb.io/spill` divides new connections already; remove one of them")]
    SlowStartWithSpill,
    /// Not `intended`, the only valid value.
    #[error(
        "{text} is not `intended`, which is the only value; write it, or remove the annotation"
    )]
    RefusalUnknown {
        /// Quoted.
        text: String,
    },
    /// `topo-lb.io/direct` is none of its values.
    #[error("{text} is none of `steer`, `refuse` and `allow`; write one of them, or remove it")]
    DirectUnknown {
        /// Quoted.
        text: String,
    },
    /// No policy leaves an endpoint out for good.
    #[error(
        "it has a strict policy hold for clients that dial endpoints, and none is in force here; write \
         topology keys that do not end with `*`, or remove this one"
    )]
    DirectWithoutStrict,
    /// No policy chooses endpoints.
    #[error(
        "it steers clients that dial endpoints to those that a policy chooses, and none is in force here; \
         write topology keys, or remove this one"
    )]
    DirectWithoutPolicy,
    /// `topo-lb.io/direct-return` is neither `true` nor `false`.
    #[error(
        "{text} is neither `true` nor `false`; write `false` to have no packet of the Service sent on as it is"
    )]
    DirectReturnNotABool {
        /// Quoted.
        text: String,
    },
    /// `topo-lb.io/choice` is none of its values.
    #[error("{text} is neither `consistent` nor `random`; write one of them, or remove it")]
    ChoiceUnknown {
        /// Quoted.
        text: String,
    },
    /// `topo-lb.io/mode` is neither `observe` nor `enforce`.
    #[error("{text} is neither `observe` nor `enforce`; write one of them, or remove it")]
    ModeUnknown {
        /// Quoted.
        text: String,
    },
    /// `topo-lb.io/handle` is neither `true` nor `false`.
    #[error(
        "{text} is neither `true` nor `false`; write `false` to have topo-lb leave the Service alone"
    )]
    HandleNotABool {
        /// What is written.
        text: String,
    },
    /// Not kept when the object was read.
    #[error("it is longer than any valid value, so it is not read; shorten it")]
    TooLong,
}

/// The text, if it was kept.
pub(super) fn kept(text: &str) -> Result<&str, Rule> {
    if text == TOO_LONG { Err(Rule::TooLong) } else { Ok(text) }
}

const OPENYURT_VALUES: &str =
    "`kubernetes.io/hostname`, `openyurt.io/nodepool` or `kubernetes.io/zone`";

const WEIGHT_FORMS: &str = "write `KEY: WEIGHT` for each topology key, such as \
    `kubernetes.io/hostname: 80, *: 20`, or `LABEL: VALUE=WEIGHT`, such as \
    `topology.kubernetes.io/zone: a=80, b=20`";

/// Most characters of foreign text that a message quotes.
const QUOTED: usize = 80;

/// Foreign text in backquotes: one line, printable, at most [`QUOTED`] characters of it.
pub(super) fn quoted(text: &str) -> String {
    let mut shown: String = text.chars().take(QUOTED).flat_map(char::escape_debug).collect();
    shown = shown.replace("\\\"", "\"").replace("\\'", "'");
    match text.chars().count().saturating_sub(QUOTED) {
        0 => format!("`{shown}`"),
        more => format!("`{shown}…` (and {more} more characters)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quote_is_one_short_line_whatever_the_text() {
        assert_eq!(quoted("a b"), "`a b`");
        assert_eq!(quoted("say \"x\" isn't"), "`say \"x\" isn't`");
        assert_eq!(quoted("a\nb\u{1b}[31m"), "`a\\nb\\u{1b}[31m`");
        let long = quoted(&"ä".repeat(1_000_000));
        assert!(long.starts_with("`ää") && long.ends_with("…` (and 999920 more characters)"));
        assert!(long.len() < 250);
    }
}
