//! One reading of all files: all or nothing.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::FileError;
use super::document::{self, Found};
use crate::cluster::{Node, Service, Slice, Update};
use crate::source::object::{Kind, Names, Object, ObjectError};

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which file.
    pub path: PathBuf,
    /// Which document in it, from 1; empty ones do not count.
    pub document: usize,
    /// Which of the document's `items`, from 0.
    pub item: Option<usize>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, document {}", self.path.display(), self.document)?;
        match self.item {
            Some(item) => write!(f, ", items[{item}]"),
            None => Ok(()),
        }
    }
}

/// All objects of all files.
#[derive(Debug, Default)]
pub(super) struct Reading {
    services: Vec<Service>,
    slices: Vec<Slice>,
    nodes: Vec<Node>,
    /// What is wrong but costs no whole object, one sentence each.
    pub(super) warnings: Vec<String>,
}

impl Reading {
    pub(super) fn of(files: &[PathBuf], names: &mut Names) -> Result<Self, FileError> {
        let mut collector = Collector::new(files);
        for path in files {
            let bytes = fs::read(path)
                .map_err(|source| FileError::Unreadable { path: path.clone(), source })?;
            collector.take(&bytes, names)?;
        }
        Ok(collector.all)
    }

    pub(super) fn of_bytes(path: PathBuf, bytes: &[u8]) -> Result<Self, FileError> {
        let files = [path];
        let mut collector = Collector::new(&files);
        collector.take(bytes, &mut Names::default())?;
        Ok(collector.all)
    }

    /// Nodes come first and Services last: whoever acts on each at once never sees a Service whose
    /// endpoints, or an endpoint whose node, is yet to come.
    pub(super) fn updates(self) -> [Update; 3] {
        [
            Update::AllNodes(self.nodes),
            Update::AllSlices(self.slices),
            Update::AllServices(self.services),
        ]
    }
}

fn text<'a>(path: &Path, bytes: &'a [u8]) -> Result<&'a str, FileError> {
    let text = std::str::from_utf8(bytes).map_err(|error| FileError::Encoding {
        path: path.to_owned(),
        byte: error.valid_up_to(),
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim().is_empty() {
        return Err(FileError::Empty(path.to_owned()));
    }
    Ok(text)
}

/// Kind, namespace and name.
type Key = (Kind, Arc<str>, Arc<str>);
/// File, document and item.
type Spot = (usize, usize, Option<usize>);

struct Collector<'a> {
    files: &'a [PathBuf],
    /// The one that is read next, or now.
    file: usize,
    seen: HashMap<Key, Spot>,
    all: Reading,
}

impl<'a> Collector<'a> {
    fn new(files: &'a [PathBuf]) -> Self {
        Self { files, file: 0, seen: HashMap::new(), all: Reading::default() }
    }

    fn take(&mut self, bytes: &[u8], names: &mut Names) -> Result<(), FileError> {
        let path = &self.files[self.file];
        document::read(path, text(path, bytes)?, names, self)?;
        self.file += 1;
        Ok(())
    }

    fn place(&self, (file, document, item): Spot) -> Place {
        Place { path: self.files[file].clone(), document, item }
    }

    fn claim(&mut self, key: Key, spot: Spot) -> Result<(), FileError> {
        let first = match self.seen.entry(key.clone()) {
            Entry::Vacant(free) => {
                free.insert(spot);
                return Ok(());
            }
            Entry::Occupied(taken) => *taken.get(),
        };
        let (kind, namespace, name) = key;
        let object = match kind {
            Kind::Node => format!("{} {name}", kind.name()),
            Kind::Service | Kind::Slice => format!("{} {namespace}/{name}", kind.name()),
        };
        Err(FileError::Twice { object, first: self.place(first), second: self.place(spot) })
    }
}

impl Found for Collector<'_> {
    fn found(
        &mut self,
        document: usize,
        item: Option<usize>,
        object: Result<Object, ObjectError>,
    ) -> Result<(), FileError> {
        let spot = (self.file, document, item);
        let object = match object {
            Ok(object) => object,
            Err(error) => return Err(FileError::Object { place: self.place(spot), error }),
        };
        match object {
            Object::Service(service) => {
                let (namespace, name) = (&service.id.namespace, &service.id.name);
                self.claim((Kind::Service, namespace.clone(), name.clone()), spot)?;
                self.all.services.push(service);
            }
            Object::Slice(slice, left_out) => {
                let (namespace, name) = (&slice.id.namespace, &slice.id.name);
                self.claim((Kind::Slice, namespace.clone(), name.clone()), spot)?;
                self.all.slices.push(slice);
                if let Some(left_out) = left_out {
                    self.all.warnings.push(format!("{}: {left_out}", self.place(spot)));
                }
            }
            Object::Node(node) => {
                self.claim((Kind::Node, Arc::default(), node.name.clone()), spot)?;
                self.all.nodes.push(node);
            }
            Object::Other => {}
        }
        Ok(())
    }
}
