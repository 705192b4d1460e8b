//! The objects of one file's text: documents, and the items of lists in them.

use serde_json::Value;
use serde_json::value::RawValue;

use crate::source::object::{
    Content, Names, Object, ObjectError, Written, content, parse_kind, parse_with,
};

/// Takes what was read at a document's number, from 1, and an item's index.
pub(super) trait Found<E> {
    fn found(
        &mut self,
        document: usize,
        item: Option<usize>,
        object: Result<Object, ObjectError>,
    ) -> Result<(), E>;
}

/// How a file's text is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syntax {
    Json,
    Yaml,
}

impl Syntax {
    /// By the file's extension; where that says nothing, by the first character. YAML may begin
    /// with a brace as well, but hardly ever does.
    pub(super) fn of(extension: Option<&str>, text: &str) -> Self {
        match extension {
            Some("json") => Self::Json,
            Some("yaml" | "yml") => Self::Yaml,
            _ if text.trim_start().starts_with('{') => Self::Json,
            _ => Self::Yaml,
        }
    }
}

/// Reads all documents of `text`.
///
/// # Errors
/// The inner error is where and why the text is not of this syntax, the outer one what `found`
/// says.
pub(super) fn read<E>(
    text: &str,
    syntax: Syntax,
    names: &mut Names,
    found: &mut impl Found<E>,
) -> Result<Result<(), String>, E> {
    match syntax {
        Syntax::Json => {
            let documents = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
            for (index, document) in documents.enumerate() {
                match document {
                    Ok(document) if document.get() == "null" => {}
                    Ok(document) => read_document(document, index + 1, names, found)?,
                    Err(error) => return Ok(Err(error.to_string())),
                }
            }
        }
        Syntax::Yaml => {
            let documents = match serde_saphyr::from_multiple_with_options(text, options(text)) {
                Ok(documents) => documents,
                Err(error) => return Ok(Err(error.to_string())),
            };
            for (index, document) in documents.iter().enumerate() {
                read_document::<_, _>(document as &Value, index + 1, names, found)?;
            }
        }
    }
    Ok(Ok(()))
}

fn read_document<W: Written, E>(
    document: W,
    number: usize,
    names: &mut Names,
    found: &mut impl Found<E>,
) -> Result<(), E> {
    match content(document) {
        Err(error) => found.found(number, None, Err(error)),
        Ok(Content::Object) => found.found(number, None, parse_with(document, names)),
        Ok(Content::List(items)) => items.into_iter().enumerate().try_for_each(|(index, item)| {
            found.found(number, Some(index), parse_with(item, names))
        }),
        Ok(Content::Typed(kind, items)) => {
            items.into_iter().enumerate().try_for_each(|(index, item)| {
                found.found(number, Some(index), parse_kind(kind, item, names))
            })
        }
    }
}

/// As much as the text itself can hold, but not what aliases make of it.
fn options(text: &str) -> serde_saphyr::Options {
    /// Events and nodes that a byte of text can make, at most: `[` begins and ends a list that
    /// holds a `null`, within a document that begins and ends.
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
