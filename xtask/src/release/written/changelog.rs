//! The changelog's section of this version.

use std::sync::LazyLock;

use regex::Regex;

use super::placeholders::unfinished;
use super::{Read, Texts};

const PAGE: &str = "CHANGELOG.md";

/// `## 0.1.0`, or `## 0.1.0 – 2026-12-24`.
static HEADING: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^## \d+\.\d+\.\d+(?: [–-] (\d{4})-(\d\d)-(\d\d))?$")
        .expect("a constant expression")
});
/// What users type: a flag, or an annotation. Only its name.
static TYPED: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"`(--[a-z-]+|topo-lb\.io/[a-z-]+)").expect("a constant expression")
});

pub(super) fn read(texts: &Texts) -> Read {
    let mut faults = Vec::new();
    let lines: Vec<_> = texts.lines(|path| path == PAGE).map(|(_, at, line)| (at, line)).collect();
    let mut fault = |at: usize, what: &str| faults.push(format!("{PAGE}:{at}: {what}"));
    for (at, line) in &lines {
        if line.starts_with('#') && line.to_lowercase().contains("unreleased") {
            fault(*at, "nothing of a release is unreleased: give the section its version");
        }
    }
    let headings: Vec<_> = lines.iter().filter(|(_, line)| line.starts_with("## ")).collect();
    let from = headings.first().map_or(0, |(at, _)| *at);
    let to = headings.get(1).map_or(usize::MAX, |(at, _)| *at);
    let section: Vec<_> = lines.iter().filter(|(at, _)| *at >= from && *at < to).collect();
    match headings.first() {
        None => fault(1, "there is no section"),
        Some((at, heading)) => match HEADING.captures(heading) {
            None => {
                fault(*at, "the heading is no version, or a version and a date such as 2026-12-24")
            }
            Some(parts) if parts.get(1).is_some() => {
                let number = |part: usize| parts[part].parse::<u32>().unwrap_or(0);
                if !is_a_day(number(1), number(2), number(3)) {
                    fault(*at, "the heading's date is no day");
                }
            }
            Some(_) => {}
        },
    }
    let items = section.iter().filter(|(_, line)| line.starts_with("* ")).count();
    if items == 0 {
        fault(from, "the section says nothing");
    }
    let mut names = 0;
    for (at, line) in section {
        if let Some(word) = unfinished(line) {
            fault(*at, &format!("`{word}` is not finished"));
        }
        for typed in TYPED.captures_iter(line) {
            names += 1;
            let mut pages = texts.lines(|path| path.starts_with("docs/"));
            if !pages.any(|(_, _, line)| line.contains(&typed[1])) {
                fault(*at, &format!("no page explains `{}`", &typed[1]));
            }
        }
    }
    let how = format!(
        "the first section has {items} items; its {names} flags and annotations are on our pages"
    );
    Read { promise: "changelog", how, faults }
}

/// Whether the Gregorian calendar has this day.
fn is_a_day(year: u32, month: u32, day: u32) -> bool {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = match month {
        2 => 28 + u32::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => 0,
    };
    (1..=days).contains(&day)
}
