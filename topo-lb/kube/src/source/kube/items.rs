//! Splits the text of a list into its objects as it arrives. A list of 10,000 objects has 15 MB: it
//! is parsed while the server still sends it, and never in memory as a whole.

use memchr::memchr2;

#[derive(Debug, Default)]
pub(super) struct Items {
    /// The list's text without its objects.
    rest: Vec<u8>,
    /// The begin of an object that has not arrived as a whole.
    open: Vec<u8>,
    depth: u32,
    inside: bool,
    string: Quote,
    /// Range in `rest` of the last string of the outermost object.
    key: (usize, usize),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Quote {
    #[default]
    Closed,
    Open,
    /// After a backslash.
    Escaped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoList;

impl Items {
    /// Processes the next piece, and calls `each` with every object that ends in it.
    pub(super) fn feed(&mut self, text: &[u8], mut each: impl FnMut(&[u8])) -> Result<(), NoList> {
        let (mut begun, mut next) = (0, 0);
        while next < text.len() {
            if self.string == Quote::Open {
                // Most of a list is inside strings: `memchr2` skips many bytes at a time.
                let end =
                    memchr2(b'"', b'\\', &text[next..]).map_or(text.len(), |found| next + found);
                if !self.inside {
                    self.rest.extend_from_slice(&text[next..end]);
                }
                next = end;
                if next == text.len() {
                    break;
                }
            }
            if self.inside && self.depth > 0 && self.string == Quote::Closed {
                // Between the strings of an object only quotes and brackets matter.
                let matters = |byte: &u8| matches!(byte, b'"' | b'{' | b'[' | b'}' | b']');
                next += text[next..].iter().position(matters).unwrap_or(text.len() - next);
                if next == text.len() {
                    break;
                }
            }
            let (at, byte) = (next, text[next]);
            next += 1;
            match (self.string, byte) {
                (Quote::Escaped, _) => self.string = Quote::Open,
                (Quote::Open, b'\\') => self.string = Quote::Escaped,
                (Quote::Open, b'"') => {
                    self.string = Quote::Closed;
                    if self.depth == 1 && !self.inside {
                        self.key.1 = self.rest.len();
                    }
                }
                (Quote::Open, _) => {}
                (Quote::Closed, b'"') => {
                    if self.inside && self.depth == 0 {
                        return Err(NoList);
                    }
                    self.string = Quote::Open;
                    if self.depth == 1 && !self.inside {
                        self.key.0 = self.rest.len() + 1;
                    }
                }
                (Quote::Closed, b'{' | b'[') => {
                    if self.inside && self.depth == 0 {
                        begun = at;
                    }
                    if !self.inside && byte == b'[' && self.depth == 1 && self.key() == b"items" {
                        // From here on, `depth` counts within an object.
                        (self.inside, self.depth) = (true, 0);
                        self.rest.push(byte);
                        continue;
                    }
                    self.depth += 1;
                }
                (Quote::Closed, b'}' | b']') => {
                    if self.inside && self.depth == 0 {
                        // The end of the list.
                        if byte == b'}' {
                            return Err(NoList);
                        }
                        (self.inside, self.depth) = (false, 1);
                        self.rest.push(byte);
                        continue;
                    }
                    self.depth = self.depth.checked_sub(1).ok_or(NoList)?;
                    if self.inside && self.depth == 0 {
                        if self.open.is_empty() {
                            each(&text[begun..=at]);
                        } else {
                            self.open.extend_from_slice(&text[..=at]);
                            each(&self.open);
                            self.open.clear();
                        }
                        continue;
                    }
                }
                (Quote::Closed, _) => {
                    let between = byte == b',' || byte.is_ascii_whitespace();
                    if self.inside && self.depth == 0 && !between {
                        return Err(NoList);
                    }
                }
            }
            if !self.inside {
                self.rest.push(byte);
            }
        }
        if self.inside && self.depth > 0 {
            let begun = if self.open.is_empty() { begun } else { 0 };
            self.open.extend_from_slice(&text[begun..]);
        }
        Ok(())
    }

    fn key(&self) -> &[u8] {
        self.rest.get(self.key.0..self.key.1).unwrap_or_default()
    }

    /// Returns the list's text without its objects, after the last piece.
    pub(super) fn finish(self) -> Result<Vec<u8>, NoList> {
        let whole = !self.inside && self.depth == 0 && self.string == Quote::Closed;
        whole.then_some(self.rest).ok_or(NoList)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// The objects and the rest, fed in pieces of these lengths.
    fn cut(text: &str, lengths: &[usize]) -> Result<(Vec<Value>, Value), NoList> {
        let (mut items, mut objects) = (Items::default(), Vec::new());
        let (mut left, mut lengths) = (text.as_bytes(), lengths.iter().cycle());
        while !left.is_empty() {
            let length = lengths.next().copied().unwrap_or(left.len()).clamp(1, left.len());
            let (piece, rest) = left.split_at(length);
            items.feed(piece, |object| objects.push(serde_json::from_slice(object).unwrap()))?;
            left = rest;
        }
        let rest = items.finish()?;
        Ok((objects, serde_json::from_slice(&rest).map_err(|_| NoList)?))
    }

    fn value() -> impl Strategy<Value = Value> {
        let text = prop::sample::select(vec!["", "items", "a\"b", "\\", "[{", "}]", "\u{1f600}\n"]);
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i32>().prop_map(Value::from),
            text.clone().prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 24, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::hash_map(text.clone().prop_map(str::to_owned), inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn however_it_arrives_it_is_the_same_list(
            objects in prop::collection::vec(
                prop::collection::hash_map("[a-z\"\\\\]{1,5}", value(), 0..4), 0..6),
            other in value(),
            pretty in any::<bool>(),
            lengths in prop::collection::vec(1_usize..20, 1..8),
        ) {
            let objects: Vec<Value> = objects
                .into_iter()
                .map(|map| Value::Object(map.into_iter().collect()))
                .collect();
            let list = json!({"a": other, "items": objects, "kind": "items", "z": {"items": [1]}});
            let text = if pretty { format!("{list:#}") } else { list.to_string() };
            let rest = json!({"a": other, "items": [], "kind": "items", "z": {"items": [1]}});
            prop_assert_eq!(cut(&text, &lengths), Ok((objects, rest)));
        }
    }

    #[test]
    fn a_list_may_be_null_or_absent() {
        for text in [r#"{"items":null,"metadata":{}}"#, r#"{"metadata":{}}"#] {
            let (objects, rest) = cut(text, &[1]).unwrap();
            assert_eq!((objects.len(), &rest["metadata"]), (0, &json!({})), "{text}");
        }
    }

    #[test]
    fn what_is_no_list_of_objects_is_refused() {
        for text in [
            r#"{"items":[{}"#,
            r#"{"items":[{}]"#,
            r#"{"items":["a"]}"#,
            r#"{"items":[5]}"#,
            r#"{"items":[}"#,
            "}",
            r#"{"items":[{"a":"#,
            "<html>",
        ] {
            assert_eq!(cut(text, &[3]), Err(NoList), "{text}");
        }
    }
}
