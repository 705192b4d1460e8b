//! Rules in CEL about several fields of a policy, or about what no regular expression says.
//!
//! The API server refuses a definition whose rules may cost too much. It knows the longest text and the longest
//! list of a field from their limits, but nothing of a text that a rule has made: so no rule looks into one.

use kube::core::Rule;

/// A policy without a rule is a mistake.
pub(super) fn says_something() -> Rule {
    Rule::new(
        "has(self.topologyKeys) || has(self.externalTopologyKeys) || has(self.minEndpoints) || \
         has(self.spill) || has(self.weights) || has(self.ejection) || has(self.return) || \
         has(self.slowStart) || has(self.evacuate) || has(self.refusal) || has(self.direct) || \
         has(self.handle)",
    )
    .message("it says nothing: write topologyKeys, what refines keys, or evacuate")
}

/// `*` takes every endpoint, so nothing after it could ever match.
pub(super) fn star_is_last(field: &str) -> Rule {
    Rule::new(format!(
        "!has(self.{field}) || !self.{field}.exists(key, key == '*') || \
         self.{field}[self.{field}.size() - 1] == '*'"
    ))
    .message("`*` must be the last key: nothing after it could ever match")
}

/// One number for all keys, or one for each, with or without `*`, which needs one endpoint only.
pub(super) fn numbers_fit() -> Rule {
    Rule::new(
        "!has(self.minEndpoints) || !has(self.topologyKeys) || \
         !self.minEndpoints.contains(',') || \
         self.minEndpoints.split(',').size() == \
         self.topologyKeys.filter(key, key != '*').size() || \
         self.minEndpoints.split(',').size() == self.topologyKeys.size() && \
         self.minEndpoints.matches(', *1$')",
    )
    .message(
        "minEndpoints has neither one number nor one for each of topologyKeys; `*` can have none but 1",
    )
}

/// A DNS name has at most 253 characters.
pub(super) fn prefixes_fit(field: &str) -> Rule {
    Rule::new(format!(
        "!has(self.{field}) || !self.{field}.exists(key, key.matches('[-a-z0-9.]{{254}}/'))"
    ))
    .message("the part of a key before its `/` has at most 253 characters")
}

/// The same for the labels of weights.
pub(super) fn prefixes_of_weights_fit() -> Rule {
    Rule::new("!has(self.weights) || !self.weights.matches('[-a-z0-9.]{254}/')")
        .message("the part of a label before its `/` has at most 253 characters")
}

/// As many as a policy may have keys; of a label's values, one above 0.
pub(super) fn weights_count() -> Rule {
    Rule::new(
        "!has(self.weights) || self.weights.split(',').size() <= 16 && \
         (!self.weights.contains('=') || self.weights.matches('= *[1-9]'))",
    )
    .message("weights has more than 16 weights, or all of them are 0")
}

/// Each key has one weight. That a key is the whole of a name cannot be said within the API server's limits
/// of what a rule may cost.
pub(super) fn each_key_has_a_weight() -> Rule {
    Rule::new(
        "!has(self.weights) || !has(self.topologyKeys) || self.weights.contains('=') || \
         self.weights.split(',').size() == self.topologyKeys.size() && \
         self.topologyKeys.all(key, self.weights.contains(key))",
    )
    .message("weights of keys name each of topologyKeys once, and no other")
}

/// Both divide new connections.
pub(super) fn weights_or_spill() -> Rule {
    Rule::new("!has(self.weights) || !has(self.spill) || self.spill.matches('^[0.]+%$')")
        .message("weights and spill both divide new connections; remove one of them")
}
