//! Outcomes of cells, and their form as JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use rustix::io::Errno;
use serde_json::Value;

use crate::dial::Dialled;
use crate::traffic::Failure;

use super::cell::{Cell, Variant};

/// What came of a cell, in words:
///
/// * `a:caller b:here` — who answered, and which source addresses each has seen;
/// * `one of a:caller b:caller` — always the same one of these (session affinity);
/// * `refused`, `forbidden`, `unanswered` within [`LIMIT`](crate::dial::LIMIT), `unreachable`, or another failure;
///   after answers, if some exchanges succeeded.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outcome(pub String);

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<String> for Outcome {
    fn from(words: String) -> Self {
        Self(words)
    }
}

/// A client that connected was refused.
pub const REFUSED: &str = "refused";
/// The kernel sent nothing: a rule of the client's own node forbids it.
pub const FORBIDDEN: &str = "forbidden";
/// No answer came in time.
pub const UNANSWERED: &str = "unanswered";

impl Outcome {
    /// `named` gives addresses that a server has seen their names.
    pub fn new(dialled: &Dialled, named: impl Fn(&str, IpAddr) -> String) -> Self {
        let mut words: Vec<_> = dialled
            .answers
            .iter()
            .map(|(server, sources)| {
                let sources: BTreeSet<_> = sources.iter().map(|it| named(server, *it)).collect();
                let sources: Vec<_> = sources.into_iter().collect();
                format!("{server}:{}", sources.join(","))
            })
            .collect();
        words.extend(dialled.failure.map(failure));
        Self(words.join(" "))
    }

    /// Its words.
    pub fn words(&self) -> impl Iterator<Item = &str> + Clone {
        self.0.split(' ')
    }

    /// The servers that answered, each with the sources that it has seen.
    pub fn answers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.words().filter_map(|word| word.split_once(':'))
    }
}

fn failure(failure: Failure) -> String {
    match Errno::from_raw_os_error(failure.errno) {
        Errno::CONNREFUSED => REFUSED.to_owned(),
        Errno::TIMEDOUT => UNANSWERED.to_owned(),
        Errno::HOSTUNREACH | Errno::NETUNREACH => "unreachable".to_owned(),
        Errno::CONNRESET => "reset".to_owned(),
        Errno::PERM => FORBIDDEN.to_owned(),
        _ => format!("error {}", failure.errno),
    }
}

/// Outcomes of cells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table(pub BTreeMap<Cell, Outcome>);

impl Table {
    /// With session affinity, one endpoint answers, and chance says which. Replaces what it was by the
    /// set that it is of: the endpoints that answer without affinity.
    pub fn level(&mut self) {
        let affine: Vec<Cell> = self.0.keys().copied().filter(is_affine).collect();
        for cell in affine {
            let Some(plain) = self.0.get(&cell.plain()).cloned() else { continue };
            let Some(own) = self.0.get_mut(&cell) else { continue };
            let mut of = plain.words();
            if own.words().count() == 1 && of.clone().count() > 1 && of.any(|it| it == own.0) {
                own.0 = format!("one of {plain}");
            }
        }
    }

    /// Nested objects by the names of a cell. An object whose values are all the same is that value.
    #[must_use]
    pub fn json(&self) -> Value {
        let mut root = Value::Null;
        for (cell, outcome) in &self.0 {
            let leaf = cell.names().into_iter().fold(&mut root, |at, name| &mut at[name]);
            *leaf = outcome.0.clone().into();
        }
        fold(&mut root);
        root
    }

    /// Reads what [`json`](Self::json) has made of a whole table.
    ///
    /// # Errors
    /// A cell has no outcome.
    pub fn parse(json: &Value) -> Result<Self> {
        let outcome = |cell: Cell| -> Result<(Cell, Outcome)> {
            // What is the same for all names of a property is not nested by them.
            let deeper = |at, name| Value::get(at, name).unwrap_or(at);
            let text = cell.names().into_iter().fold(json, deeper).as_str();
            let text =
                text.with_context(|| format!("there is no outcome of {:?}", cell.names()))?;
            Ok((cell, Outcome(text.to_owned())))
        };
        Ok(Self(Cell::all().map(outcome).collect::<Result<_>>()?))
    }

    /// Checks that this has every cell of `expected`, with its outcome.
    ///
    /// # Errors
    /// Cells differ: the error has the first of them.
    pub fn check(&self, expected: &Self) -> Result<()> {
        let other = |(cell, expected): (&Cell, &Outcome)| {
            let is = self.0.get(cell).map_or("nothing", |it| &it.0);
            (is != expected.0).then(|| format!("{}: {is}, not {expected}", cell.names().join(" ")))
        };
        let others: Vec<_> = expected.0.iter().filter_map(other).collect();
        ensure!(
            others.is_empty(),
            "{} of {} cells:\n{}",
            others.len(),
            expected.0.len(),
            others.iter().take(100).map(String::as_str).collect::<Vec<_>>().join("\n")
        );
        Ok(())
    }
}

fn is_affine(cell: &Cell) -> bool {
    cell.service.variant == Variant::Affinity
}

fn fold(value: &mut Value) {
    let Some(object) = value.as_object_mut() else { return };
    object.values_mut().for_each(fold);
    let mut values = object.values();
    if let Some(first) = values.next()
        && values.all(|other| other == first)
    {
        *value = first.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Family;

    fn table() -> Table {
        let outcome = |cell: Cell| {
            let word = match cell.family {
                Family::V6 if cell.service.variant == Variant::Plain => UNANSWERED,
                _ if cell.service.variant == Variant::Affinity => "a:caller",
                _ => "a:caller b:here,there",
            };
            (cell, Outcome(word.to_owned()))
        };
        Table(Cell::all().map(outcome).collect())
    }

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let json = table().json();
        assert_eq!(Table::parse(&json).unwrap(), table());
        assert_eq!(json["denied"], "a:caller b:here,there");
        assert_eq!(json["plain"]["UDP IPv6"], UNANSWERED);
    }

    #[test]
    fn affinity_is_of_the_endpoints_that_answer_without_it() {
        let mut table = table();
        table.level();
        let of = |family| {
            let is = |cell: &&Cell| is_affine(cell) && cell.family == family;
            table.0[table.0.keys().find(is).unwrap()].0.clone()
        };
        assert_eq!(of(Family::V4), "one of a:caller b:here,there");
        assert_eq!(of(Family::V6), "a:caller");
    }

    #[test]
    fn a_cell_that_differs_is_told() {
        let mut other = table();
        *other.0.values_mut().next().unwrap() = Outcome(REFUSED.into());
        let error = other.check(&table()).unwrap_err().to_string();
        assert!(
            error.starts_with("1 of 9216 cells:\nCluster here cluster-ip outside plain TCP IPv4")
        );
        table().check(&table()).unwrap();
    }
}
