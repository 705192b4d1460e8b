//! Foreign text in messages: one line, without control characters, and short.

/// Characters kept at the beginning and at the end.
const HEAD: usize = 160;
const TAIL: usize = 80;

/// `text`, escaped and cut in the middle: errors have the subject first and the expectation last.
pub(in crate::source) fn plain(text: &str) -> String {
    let count = text.chars().count();
    if count <= HEAD + TAIL {
        return text.chars().map(escaped).collect();
    }
    let head = text.chars().take(HEAD).map(escaped);
    let tail = text.chars().skip(count - TAIL).map(escaped);
    head.chain(["…".to_owned()]).chain(tail).collect()
}

fn escaped(one: char) -> String {
    match one {
        '"' | '\'' | '\\' => one.to_string(),
        _ => one.escape_debug().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_short_line_whatever_it_quotes() {
        assert_eq!(plain(r#"say "it's" \ 1–2"#), r#"say "it's" \ 1–2"#);
        assert_eq!(plain("a\n\u{1b}[31m\u{202e}"), r"a\n\u{1b}[31m\u{202e}");
        let long = plain(&format!("unknown variant `{}`, expected `TCP`", "x".repeat(1 << 20)));
        assert!(long.starts_with("unknown variant `xxx") && long.ends_with("x`, expected `TCP`"));
        assert_eq!(long.chars().count(), HEAD + 1 + TAIL);
    }
}
