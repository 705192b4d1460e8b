//! Policy *keys*: Kubernetes 1.17 Service Topology, over any node label.
//!
//! The keys are tried in turn, and the first one with a match decides. When none matches,
//! connections are refused: there is no silent fall-back.

use std::sync::Arc;

use super::candidate::Candidate;
use super::label::Here;
use super::validation::{ANY, MAX_KEYS, Rule, label_name, quoted};

/// The keys of annotation `topo-lb.io/topology-keys`: separated by commas, white space around
/// them ignored.
///
/// # Errors
/// The first rule that they break.
pub(super) fn from_annotation(text: &str, external_local: bool) -> Result<Vec<&str>, Rule> {
    if text.trim().is_empty() {
        return Err(Rule::Empty);
    }
    // Counted first: an annotation of a megabyte of commas is not worth a megabyte of keys.
    let count = text.bytes().filter(|&byte| byte == b',').count() + 1;
    if count > MAX_KEYS {
        return Err(Rule::TooManyKeys { count });
    }
    validated(text.split(',').map(str::trim).collect(), external_local)
}

/// The keys of field `spec.topologyKeys`, which is not empty.
///
/// # Errors
/// The first rule that they break.
pub(super) fn from_field(keys: &[Arc<str>], external_local: bool) -> Result<Vec<&str>, Rule> {
    if keys.len() > MAX_KEYS {
        return Err(Rule::TooManyKeys { count: keys.len() });
    }
    validated(keys.iter().map(|key| &**key).collect(), external_local)
}

fn validated(keys: Vec<&str>, external_local: bool) -> Result<Vec<&str>, Rule> {
    let count = keys.len();
    for (index, &key) in keys.iter().enumerate() {
        let position = index + 1;
        if key.is_empty() {
            return Err(Rule::EmptyKey { position, count });
        }
        if key == ANY && position < count {
            return Err(Rule::AnyNotLast { position, count });
        }
        if key != ANY
            && let Err(fault) = label_name(key)
        {
            return Err(Rule::NotALabel { position, key: quoted(key), fault });
        }
        if let Some(first) = keys[..index].iter().position(|&other| other == key) {
            let key = quoted(key);
            return Err(Rule::Duplicate { key, first: first + 1, second: position });
        }
    }
    if external_local {
        return Err(Rule::WithExternalLocal);
    }
    Ok(keys)
}

/// The first key that matches: its index, and the members of `usable` that it matches.
pub(super) fn choose(
    keys: &[&str],
    here: Here<'_>,
    candidates: &[Candidate<'_>],
    usable: &[usize],
) -> Option<(usize, Vec<usize>)> {
    keys.iter().enumerate().find_map(|(tier, key)| {
        let matches = matching(key, here, candidates, usable);
        (!matches.is_empty()).then_some((tier, matches))
    })
}

/// The members of `usable` that `key` matches.
pub(super) fn matching(
    key: &str,
    here: Here<'_>,
    candidates: &[Candidate<'_>],
    usable: &[usize],
) -> Vec<usize> {
    if key == ANY {
        return usable.to_vec();
    }
    let Some(own) = here.label(key) else { return Vec::new() };
    let shares = |index: &usize| candidates[*index].site.label(key) == Ok(own);
    usable.iter().copied().filter(shares).collect()
}
