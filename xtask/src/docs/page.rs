//! A page in Markdown: its title, anchors, links and blocks of code.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::LazyLock;

use anyhow::{Context as _, Result};
use fs_err as fs;
use pulldown_cmark::{CodeBlockKind, CowStr, Event, LinkType, Options, Parser, Tag, TagEnd};
use regex::Regex;

use crate::process::output_of;
use crate::workspace::Workspace;

#[derive(Debug, Default)]
pub(super) struct Page {
    /// Below the root of the workspace.
    pub(super) path: String,
    pub(super) text: String,
    /// The text of the first heading.
    pub(super) title: String,
    /// What can follow `#` in a link to this page.
    pub(super) anchors: BTreeSet<String>,
    pub(super) links: Vec<Link>,
    pub(super) blocks: Vec<Block>,
    /// Spans of code, and their lines.
    pub(super) spans: Vec<(String, usize)>,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) target: String,
    /// Where the whole link is in the text.
    pub(super) place: Range<usize>,
    pub(super) line: usize,
    pub(super) is_picture: bool,
}

/// A fenced block of code.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) language: String,
    pub(super) line: usize,
    /// The comment on the line before it, without `<!--` and `-->`.
    pub(super) comment: Option<String>,
}

/// All pages of the workspace, by path: those that git knows, and new ones that it would.
pub(super) fn all(workspace: &Workspace) -> Result<BTreeMap<String, Page>> {
    let pages = tracked(workspace)?.into_iter().filter(|path| path.ends_with(".md"));
    pages
        .map(|path| {
            let text = fs::read_to_string(workspace.root.join(&path))?;
            Ok((path.clone(), Page::parse(path, text)))
        })
        .collect()
}

/// The files of the workspace that are or can be committed.
pub(crate) fn tracked(workspace: &Workspace) -> Result<Vec<String>> {
    let mut git = workspace.command("git");
    git.args(["ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"]);
    let said = output_of(git.current_dir(&workspace.root));
    let said = said.context("`git ls-files` failed: the pages are looked for in a git checkout")?;
    let is_there = |path: &&str| workspace.root.join(path).exists();
    Ok(said.lines().filter(is_there).map(str::to_owned).collect())
}

impl Page {
    pub(super) fn parse(path: String, text: String) -> Self {
        let mut page = Self { path, ..Self::default() };
        let line = |at: usize| text[..at].matches('\n').count() + 1;
        let mut times = BTreeMap::new();
        // The words of the heading that is being read.
        let mut heading = None::<String>;
        // The comment that was read last, and where it ends.
        let mut comment = (String::new(), 0);
        let undefined = |link: pulldown_cmark::BrokenLink<'_>| {
            // `[x]` alone may be words in brackets.
            let is_link = !matches!(link.link_type, LinkType::ShortcutUnknown | LinkType::Shortcut);
            is_link.then(|| (CowStr::from(UNDEFINED), CowStr::from("")))
        };
        let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH;
        let parser = Parser::new_with_broken_link_callback(&text, options, Some(undefined));
        for (event, place) in parser.into_offset_iter() {
            if let Event::Code(span) = &event {
                page.spans.push((span.to_string(), line(place.start)));
            }
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let words = heading.take().unwrap_or_default();
                    page.anchors.insert(numbered(&slug(&words), &mut times));
                    if page.title.is_empty() {
                        page.title = words;
                    }
                }
                Event::Start(Tag::Link { ref dest_url, .. } | Tag::Image { ref dest_url, .. }) => {
                    let (target, line) = (dest_url.to_string(), line(place.start));
                    let is_picture = matches!(event, Event::Start(Tag::Image { .. }));
                    page.links.push(Link { target, place, line, is_picture });
                }
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))) => {
                    let is_before = text[comment.1..place.start].trim().is_empty();
                    let comment = (is_before && !comment.0.is_empty()).then(|| comment.0.clone());
                    let (language, line) = (language.to_string(), line(place.start));
                    page.blocks.push(Block { language, line, comment });
                }
                Event::Text(words) | Event::Code(words) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&words);
                    }
                }
                Event::Html(html) | Event::InlineHtml(html) => {
                    page.anchors.extend(ids(&html));
                    let inner =
                        html.trim().strip_prefix("<!--").and_then(|it| it.strip_suffix("-->"));
                    if let Some(inner) = inner {
                        comment = (inner.trim().to_owned(), place.end);
                    }
                }
                _ => {}
            }
        }
        page.text = text;
        page
    }
}

/// The target of a link to a reference that the page does not define.
pub(super) const UNDEFINED: &str = "#undefined-reference";

/// How GitHub makes an anchor of a heading.
fn slug(heading: &str) -> String {
    static OTHERS: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"[^\w\- ]").expect("a constant expression"));
    OTHERS.replace_all(&heading.to_lowercase(), "").replace(' ', "-")
}

/// The second heading of the same words gets `-1`, the third `-2`.
fn numbered(slug: &str, times: &mut BTreeMap<String, usize>) -> String {
    let before = times.entry(slug.to_owned()).or_default();
    *before += 1;
    if *before == 1 { slug.to_owned() } else { format!("{slug}-{}", *before - 1) }
}

/// The anchors that HTML sets.
fn ids(html: &str) -> Vec<String> {
    static ID: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r#"<[^>]*\s(?:id|name)="([^"]+)""#).expect("a constant expression")
    });
    ID.captures_iter(html).map(|it| it[1].to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_those_of_github() {
        let text = "# What `topo-lb` *does*, and [why](x.md)?\n## A_b – c: 5 %\n## Twice\n## Twice\n\
                    <a id=\"by-hand\"></a>\n## `spec.topologyKeys`\n```\n# no heading\n```\n## Größe\n";
        let page = Page::parse("it.md".into(), text.into());
        let wanted = [
            "a_b--c-5-",
            "by-hand",
            "größe",
            "spectopologykeys",
            "twice",
            "twice-1",
            "what-topo-lb-does-and-why",
        ];
        assert_eq!(page.anchors.iter().collect::<Vec<_>>(), wanted);
        assert_eq!(page.title, "What topo-lb does, and why?");
    }

    #[test]
    fn a_block_has_the_comment_directly_before_it() {
        let text = "<!-- one -->\n```sh\nls -l\n```\nWords.\n\n```console\n$ ls\n```\n\
                    <!-- far -->\n\nWords.\n```sh\nls\n```\n1. In a list:\n\n   <!-- two -->\n   ```sh\n   ls\n   ```\n";
        let page = Page::parse("it.md".into(), text.into());
        let found: Vec<_> = page
            .blocks
            .iter()
            .map(|it| (it.line, it.language.as_str(), it.comment.as_deref()))
            .collect();
        let wanted = [
            (2, "sh", Some("one")),
            (7, "console", None),
            (13, "sh", None),
            (19, "sh", Some("two")),
        ];
        assert_eq!(found, wanted);
    }
}
