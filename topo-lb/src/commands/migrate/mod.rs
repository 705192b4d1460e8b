//! Manifests with `spec.topologyKeys`, OpenYurt's annotation, or `spec.trafficDistribution` where zones are
//! node pools, written anew with topo-lb's annotation: the command `migrate`. Pure.

mod lines;
mod service;

use serde_json::Value;

use service::{Outcome, migrated};

/// What became of one document of a YAML stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The document, which begins with its separator.
    pub text: String,
    /// Whether it is another one than before.
    pub is_changed: bool,
    /// A sentence for each Service that has changed, or that should and cannot.
    pub sentences: Vec<String>,
}

/// The documents of a stream after the migration. Those without such Services stay as they are, byte for
/// byte. A List becomes a document for each of its items if one of them changes. `zones_are_pools`: Services
/// that prefer their zone are to be closed in it.
///
/// # Errors
/// A document is no YAML.
pub fn stream(text: &str, zones_are_pools: bool) -> Result<Vec<Document>, NotYaml> {
    let mut all = Vec::new();
    for (index, text) in split(text).into_iter().enumerate() {
        let wrong =
            |error: serde_saphyr::Error| NotYaml { number: index + 1, reason: error.to_string() };
        let is_empty =
            text.lines().all(|line| matches!(line.trim().bytes().next(), None | Some(b'#' | b'-')));
        let object =
            if is_empty { Value::Null } else { serde_saphyr::from_str(&text).map_err(wrong)? };
        all.extend(document(text, &object, zones_are_pools));
    }
    Ok(all)
}

/// A document that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error(
    "document {number} is not YAML: {reason}. Templates must be rendered first, by `helm template` for \
     example"
)]
pub struct NotYaml {
    /// Its place, from 1 on.
    number: usize,
    reason: String,
}

/// The documents of a stream. All but the first begin with their separator.
fn split(text: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    for line in text.split_inclusive('\n') {
        let is_separator = line.trim_end() == "---" || line.starts_with("--- ");
        match all.last_mut() {
            Some(last) if !is_separator || last.trim().is_empty() => last.push_str(line),
            _ => all.push(line.to_owned()),
        }
    }
    all
}

fn document(text: String, object: &Value, zones_are_pools: bool) -> Vec<Document> {
    let migrated = |object| migrated(object, zones_are_pools);
    let items = object["items"].as_array().filter(|_| is_list(object));
    let outcomes: Vec<_> = match items {
        Some(items) => items.iter().map(|item| (item, migrated(item))).collect(),
        None => vec![(object, migrated(object))],
    };
    if !outcomes.iter().any(|(_, outcome)| matches!(outcome, Outcome::Changed { .. })) {
        let sentences =
            outcomes.into_iter().filter_map(|(_, outcome)| outcome.sentence()).collect();
        return vec![Document { text, is_changed: false, sentences }];
    }
    let is_whole = items.is_none();
    outcomes.into_iter().map(|(item, outcome)| one(&text, is_whole, item, outcome)).collect()
}

fn is_list(object: &Value) -> bool {
    object["kind"].as_str().is_some_and(|kind| kind.ends_with("List"))
}

/// An object of a document, which it may fill alone.
fn one(text: &str, is_whole: bool, object: &Value, outcome: Outcome) -> Document {
    let (wanted, sentence, edited) = match outcome {
        Outcome::Changed { service, keys, sentence } => {
            let edited = is_whole.then(|| lines::edited(text, &keys));
            (service, Some(sentence), edited)
        }
        outcome => (object.clone(), outcome.sentence(), None),
    };
    let is_changed = wanted != *object;
    // The lines are right if they say what the object should be.
    let right =
        edited.filter(|text| serde_saphyr::from_str(text).is_ok_and(|it: Value| it == wanted));
    let mut sentences = Vec::from_iter(sentence);
    let end = lines::line_end(text);
    let body = right.unwrap_or_else(|| {
        if is_changed && text.contains('#') {
            sentences
                .push("its comments are lost: it is not written in plain block style".to_owned());
        }
        let body = serde_saphyr::to_string(&wanted);
        body.unwrap_or_else(|_| wanted.to_string() + "\n").replace('\n', end)
    });
    let separator =
        if body.trim_start().starts_with("---") { String::new() } else { format!("---{end}") };
    Document { text: separator + &body, is_changed, sentences }
}

#[cfg(test)]
mod tests;
