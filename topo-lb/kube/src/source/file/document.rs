//! The objects in a file's text: documents, and items of lists.

use std::path::Path;

use serde_json::Value;
use serde_json::value::RawValue;

use super::error::FileError;
use crate::source::object::{
    Content, Names, Object, ObjectError, Written, content, parse_kind, parse_with, plain, unread,
};
use topo_lb_core::cluster::unread::Unread;

/// An object or its error, and a way to tell what of it nobody reads.
pub(super) type ReadObject<'a> = (Result<Object, ObjectError>, &'a dyn Fn() -> Vec<Unread>);

/// Takes each object, with the number of its document (from 1) and its index in a list.
pub(super) type Found<'a> =
    &'a mut dyn FnMut(usize, Option<usize>, ReadObject<'_>) -> Result<(), FileError>;

enum Syntax {
    Json,
    Yaml,
}

impl Syntax {
    /// By the file's extension, else by the first character: YAML seldom begins with a brace.
    fn of(extension: Option<&str>, text: &str) -> Self {
        match extension {
            Some("json") => Self::Json,
            Some("yaml" | "yml") => Self::Yaml,
            _ if text.trim_start().starts_with('{') => Self::Json,
            _ => Self::Yaml,
        }
    }
}

pub(super) fn read(
    path: &Path,
    text: &str,
    names: &mut Names,
    found: Found<'_>,
) -> Result<(), FileError> {
    let wrong =
        |reason: String| FileError::Syntax { path: path.to_owned(), reason: plain(&reason) };
    match Syntax::of(path.extension().and_then(|extension| extension.to_str()), text) {
        Syntax::Json => {
            let documents = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
            for (index, document) in documents.enumerate() {
                let document = document.map_err(|error| wrong(error.to_string()))?;
                if document.get() != "null" {
                    read_document(document, index + 1, names, &mut *found)?;
                }
            }
        }
        Syntax::Yaml => {
            let documents: Vec<Value> =
                serde_saphyr::from_multiple_with_options(text, options(text)).map_err(|error| {
                    wrong(error.render_with_formatter(&serde_saphyr::UserMessageFormatter))
                })?;
            for (index, document) in documents.iter().enumerate() {
                read_document(document, index + 1, names, &mut *found)?;
            }
        }
    }
    Ok(())
}

fn read_document(
    document: impl Written,
    number: usize,
    names: &mut Names,
    found: Found<'_>,
) -> Result<(), FileError> {
    match content(document) {
        Err(error) => found(number, None, (Err(error), &Vec::new)),
        Ok(Content::Object) => {
            let parsed = parse_with(document, names);
            found(number, None, (parsed, &|| unread(None, document)))
        }
        Ok(Content::List(items)) => items.into_iter().enumerate().try_for_each(|(index, item)| {
            let parsed = parse_with(item, names);
            found(number, Some(index), (parsed, &|| unread(None, item)))
        }),
        Ok(Content::Typed(kind, items)) => {
            items.into_iter().enumerate().try_for_each(|(index, item)| {
                let parsed = parse_kind(kind, item, names);
                found(number, Some(index), (parsed, &|| unread(Some(kind), item)))
            })
        }
    }
}

/// A budget that any text of this length keeps, unless aliases multiply its content.
fn options(text: &str) -> serde_saphyr::Options {
    /// Most events and nodes that a byte of text makes: `[` begins and ends a list with a `null`,
    /// in a document that begins and ends.
    const PER_BYTE: usize = 8;
    let most = text.len().saturating_add(1).saturating_mul(PER_BYTE);
    serde_saphyr::options! {
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_events: most,
            max_nodes: most,
            max_documents: most,
            max_total_scalar_bytes: most,
        },
    }
}
