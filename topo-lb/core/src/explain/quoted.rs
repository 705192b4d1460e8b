//! Text from the cluster, made safe to repeat in a sentence.

use crate::cluster::ServiceId;
use crate::topology::validation::ANY;

/// Most characters that a sentence repeats.
const SHOWN: usize = 80;

/// The text in printable characters, on one line and not too long.
pub fn shown(text: &str) -> String {
    let plain = |byte: u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'\\' | b'"' | b'\'');
    if text.len() <= SHOWN && text.bytes().all(plain) {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN).is_some() {
        short.push('…');
    }
    short
}

/// A sentence of topo-lb with names from the cluster in it, on one line. It is not shortened: its end is what
/// it says.
pub(super) fn sentence(text: &str) -> String {
    let shown = |one: char| match one {
        ' '..='~' => one.to_string(),
        _ => one.escape_debug().to_string(),
    };
    text.chars().map(shown).collect()
}

/// `namespace/name`.
pub fn shown_id(id: &ServiceId) -> String {
    format!("{}/{}", shown(&id.namespace), shown(&id.name))
}

/// A topology key.
pub(super) fn key_name(key: &str) -> String {
    if key == ANY { format!("`{ANY}`") } else { shown(key) }
}

/// `key=value`.
pub(crate) fn label(key: &str, value: &str) -> String {
    format!("{}={}", shown(key), shown(value))
}

/// The first `most` names, and how many more there are.
pub fn some<'a>(
    names: impl IntoIterator<Item = &'a str, IntoIter: ExactSizeIterator>,
    most: usize,
) -> String {
    let names = names.into_iter();
    let more = names.len().saturating_sub(most);
    let first = names.take(most).map(shown).collect::<Vec<_>>().join(", ");
    if more == 0 { first } else { format!("{first} and {more} more") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_is_whole_and_on_one_line_and_a_name_is_short() {
        let long = format!("its ramp is 50%, {}and this node is at 70.19%\n", "x".repeat(SHOWN));
        let (whole, short) = (sentence(&long), shown(&long));
        assert!(whole.ends_with("at 70.19%\\n"), "{whole}");
        assert!(short.ends_with('…') && short.chars().count() == SHOWN + 1, "{short}");
        assert_eq!(sentence("node's “a”\u{202e}"), "node's “a”\\u{202e}");
    }
}
