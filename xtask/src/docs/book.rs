//! Our pages as the sources of a book: what mdbook makes the site of.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};

use super::links::Target;
use super::page::{Link, Page};
use crate::workspace::PLACE;

/// The page that the site begins with. Its table has all other pages.
const FIRST: &str = "README.md";
/// The name of such a page in the book: mdbook would rename the page, but not the links to it.
const INDEX: &str = "index.md";
/// The heading of that table.
const TABLE: &str = "## Where to go on";

/// The sources of the book.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// Texts by path. The paths are those of the repository, but for README.md, so links between pages stay.
    pub(super) texts: BTreeMap<String, String>,
    /// Files of the repository that the pages show.
    pub(super) pictures: BTreeSet<String>,
}

impl Book {
    pub(super) fn of(pages: &BTreeMap<String, Page>) -> Result<Self> {
        let parts = parts(pages)?;
        let mut book = Self::default();
        book.texts.insert("SUMMARY.md".to_owned(), summary(pages, &parts));
        let chosen: BTreeSet<&str> =
            parts.iter().flat_map(|part| &part.pages).copied().chain([FIRST]).collect();
        for page in chosen.iter().filter_map(|path| pages.get(*path)) {
            let text = book.rewritten(page, &chosen)?;
            book.texts.insert(page.path.replace(FIRST, INDEX), text);
        }
        Ok(book)
    }

    /// The text of a page. Links to files that the book does not have lead to the repository.
    fn rewritten(&mut self, page: &Page, chosen: &BTreeSet<&str>) -> Result<String> {
        let mut changes = Vec::new();
        for link in &page.links {
            let Ok(Target::Here(path, _)) = link.target(&page.path) else { continue };
            if link.is_picture {
                self.pictures.insert(path);
            } else if !chosen.contains(path.as_str()) {
                changes.push((target_in(page, link)?, format!("{PLACE}/blob/main/{path}")));
            } else if link.target.contains(FIRST) {
                changes.push((target_in(page, link)?, link.target.replace(FIRST, INDEX)));
            }
        }
        let mut text = page.text.clone();
        // From the last to the first, so that the places of others stay right.
        changes.sort_by_key(|(at, _)| at.start);
        for (at, target) in changes.into_iter().rev() {
            text.replace_range(at, &target);
        }
        Ok(text)
    }
}

/// Where the target of a link is in its page.
fn target_in(page: &Page, link: &Link) -> Result<std::ops::Range<usize>> {
    let whole = &page.text[link.place.clone()];
    let at = whole.rfind(&format!("({}", link.target)).with_context(|| {
        format!("{}:{}: write the link as [words](target)", page.path, link.line)
    })?;
    let start = link.place.start + at + 1;
    Ok(start..start + link.target.len())
}

/// A row of the table: the words before the pages, and the pages.
struct Part<'a> {
    title: String,
    pages: Vec<&'a str>,
}

/// The parts of the book. A `README.md` brings the other pages of its folder.
fn parts(pages: &BTreeMap<String, Page>) -> Result<Vec<Part<'_>>> {
    let first = pages.get(FIRST).context("there is no README.md")?;
    let mut seen = BTreeSet::from([FIRST]);
    let mut parts = Vec::new();
    let lines = first.text.lines().enumerate().skip_while(|(_, line)| *line != TABLE).skip(1);
    let rows = lines.skip_while(|(_, line)| !line.starts_with('|'));
    // The first two lines are the head.
    for (index, row) in rows.take_while(|(_, line)| line.starts_with('|')).skip(2) {
        let title = row.trim_matches('|').split('|').next().unwrap_or_default().trim();
        let mut part = Part { title: capitalized(title), pages: Vec::new() };
        for link in first.links.iter().filter(|link| link.line == index + 1) {
            let Ok(Target::Here(path, _)) = link.target(FIRST) else { continue };
            let Some((path, _)) = pages.get_key_value(&path) else { continue };
            let mut all = vec![path.as_str()];
            if let Some(folder) = path.strip_suffix(FIRST) {
                all.extend(pages.keys().map(String::as_str).filter(|it| it.starts_with(folder)));
            }
            part.pages.extend(all.into_iter().filter(|it| seen.insert(it)));
        }
        parts.push(part);
    }
    ensure!(!parts.is_empty(), "{FIRST} has no table after `{TABLE}`");
    Ok(parts)
}

/// mdbook's list of chapters (rust-lang.github.io/mdBook/format/summary.html).
fn summary(pages: &BTreeMap<String, Page>, parts: &[Part<'_>]) -> String {
    let entry = |path: &str| {
        let title = pages.get(path).map_or("", |page| page.title.as_str());
        format!("[{title}]({})\n", path.replace(FIRST, INDEX))
    };
    let mut text = format!("# Summary\n\n{}", entry(FIRST));
    for part in parts {
        text += &format!("\n# {}\n\n", part.title);
        // Pages of a folder are below its README.md.
        let mut folder = None;
        for path in &part.pages {
            let is_below = folder.is_some_and(|folder| path.starts_with(folder));
            text += &format!("{}- {}", if is_below { "  " } else { "" }, entry(path));
            folder = path.strip_suffix(FIRST).or(folder);
        }
    }
    text
}

fn capitalized(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::super::{links, page};
    use super::*;
    use crate::workspace::Workspace;

    #[test]
    fn every_page_of_the_documentation_is_in_the_book() {
        let pages = page::all(&Workspace::find().unwrap()).unwrap();
        let book = Book::of(&pages).unwrap();
        let wanted = ["SECURITY.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];
        let is_wanted = |path: &str| {
            path.starts_with("docs/") || path.starts_with("deploy/helm/") || wanted.contains(&path)
        };
        let summary = &book.texts["SUMMARY.md"];
        for path in pages.keys().filter(|path| is_wanted(path)) {
            let path = path.replace(FIRST, INDEX);
            assert_eq!(summary.matches(&format!("]({path})")).count(), 1, "{path}: {summary}");
        }
        let page = |(path, text): (&String, &String)| {
            (path.clone(), Page::parse(path.clone(), text.clone()))
        };
        let texts = book.texts.iter().map(page).collect();
        let files: Vec<_> = book.texts.keys().chain(&book.pictures).cloned().collect();
        let broken = links::broken(&texts, &files);
        assert!(broken.is_empty(), "{}", broken.join("\n"));
        assert!(book.pictures.contains("docs/pictures/view-light.png"), "{:?}", book.pictures);
    }

    #[test]
    fn only_links_that_leave_the_book_are_rewritten() {
        let page = |path: &str, text: &str| {
            (path.to_owned(), Page::parse(path.to_owned(), text.to_owned()))
        };
        let table = "# It\n[x](LICENSE) [`x`](docs/a.md#one)\n## Where to go on\n\n| you | read |\n|---|---|\n\
                     | see `more` | [a](docs/a.md), [b](docs/b/README.md) |\n";
        let pages = BTreeMap::from([
            page("README.md", table),
            page(
                "docs/a.md",
                "# A\n## One\n[![p](p.png)](../x/y.rs#L3) [up](../README.md) <https://a.b>\n",
            ),
            page("docs/b/README.md", "# B\n"),
            page("docs/b/one.md", "# B one\n"),
            page("other.md", "# Other\n"),
        ]);
        let book = Book::of(&pages).unwrap();
        let summary = "# Summary\n\n[It](index.md)\n\n# See `more`\n\n- [A](docs/a.md)\n\
                       - [B](docs/b/index.md)\n  - [B one](docs/b/one.md)\n";
        assert_eq!(book.texts["SUMMARY.md"], summary);
        assert!(
            book.texts["index.md"]
                .contains(&format!("[x]({PLACE}/blob/main/LICENSE) [`x`](docs/a.md#one)"))
        );
        let a =
            format!("[![p](p.png)]({PLACE}/blob/main/x/y.rs) [up](../index.md) <https://a.b>\n");
        assert!(book.texts["docs/a.md"].ends_with(&a), "{}", book.texts["docs/a.md"]);
        assert_eq!(book.pictures, BTreeSet::from(["docs/p.png".to_owned()]));
        assert!(!book.texts.contains_key("other.md"));
    }
}
