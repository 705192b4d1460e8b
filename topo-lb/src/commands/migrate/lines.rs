//! The migration of a Service as a change of lines, which keeps comments and order. It knows block style
//! with plain names; whether the result is right is for the caller to see.

use super::service::{KEYS, OPENYURT};

/// How the lines of a text end: as a line of it ends with CRLF, or with LF.
pub(super) fn line_end(text: &str) -> &'static str {
    if text.contains("\r\n") { "\r\n" } else { "\n" }
}

/// The document with topo-lb's annotation `keys`, unless that is empty or there, and without what it
/// replaces.
pub(super) fn edited(text: &str, keys: &str) -> String {
    let end = line_end(text);
    let entry = |indent: usize| format!("{:indent$}{KEYS}: \"{keys}\"{end}", "");
    let mut lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
    if let Some(spec) = field(&lines, 0, "spec:")
        && let Some(list) = field(&lines, spec + 1, "topologyKeys:")
    {
        lines.drain(list..end_of_list(&lines, list));
    }
    let Some(metadata) = field(&lines, 0, "metadata:") else { return lines.concat() };
    if let Some(annotations) = field(&lines, metadata + 1, "annotations:") {
        let has = |lines: &[String], name| field(lines, annotations + 1, &format!("{name}:"));
        let is_there = has(&lines, KEYS).is_some();
        if let Some(old) = has(&lines, OPENYURT) {
            let line = if is_there { String::new() } else { entry(indentation(&lines[old])) };
            lines[old] = line;
        } else if !is_there && !keys.is_empty() {
            let next = lines.get(annotations + 1).map_or(4, |line| indentation(line));
            lines.insert(annotations + 1, entry(next));
        }
    } else if !keys.is_empty() {
        let inner = lines.get(metadata + 1).map_or(2, |line| indentation(line));
        let block = format!("{:inner$}annotations:{end}{}", "", entry(inner + 2));
        lines.insert(metadata + 1, block);
    }
    lines.concat()
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The line of a field of the block that begins at line `from`.
fn field(lines: &[String], from: usize, name: &str) -> Option<usize> {
    let is_content = |line: &str| {
        let text = line.trim();
        !text.is_empty() && !text.starts_with('#') && !text.starts_with("---")
    };
    let first = lines.iter().skip(from).find(|line| is_content(line))?;
    let inner = indentation(first);
    let all = lines.iter().enumerate().skip(from).filter(|(_, line)| is_content(line));
    all.take_while(|(_, line)| indentation(line) >= inner)
        .find(|(_, line)| indentation(line) == inner && line.trim_start().starts_with(name))
        .map(|(at, _)| at)
}

/// The line after the last item of the list whose name is in line `at`.
fn end_of_list(lines: &[String], at: usize) -> usize {
    let outer = indentation(&lines[at]);
    let is_item = |line: &String| {
        let inner = indentation(line);
        !line.trim().is_empty() && (inner > outer || inner == outer && line.trim().starts_with('-'))
    };
    let is_comment = |line: &String| line.trim().starts_with('#');
    let below = &lines[at + 1..];
    let block = below.iter().take_while(|line| is_item(line) || is_comment(line)).count();
    // Comments after the last item are the next field's.
    at + 1 + below[..block].iter().rposition(is_item).map_or(0, |last| last + 1)
}
