//! Where the links of our pages lead. Links out of the repository are checked only for their form.

use std::collections::{BTreeMap, BTreeSet};

use http::Uri;

use super::page::{Link, Page, UNDEFINED};

/// What a link leads to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Target<'a> {
    /// Another host.
    Outside(&'a str),
    /// A path below the root of the repository, without a slash at its end, and an anchor.
    Here(String, Option<&'a str>),
}

impl Link {
    /// Where a link of this page leads.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn target<'a>(&'a self, page: &str) -> Result<Target<'a>, String> {
        let target = self.target.as_str();
        if target == UNDEFINED {
            return Err("the page does not define its reference".to_owned());
        }
        if target.contains(':') {
            return if is_url(target) {
                Ok(Target::Outside(target))
            } else {
                Err(format!("{target} is no URL that begins with https://"))
            };
        }
        let (path, anchor) = match target.split_once('#') {
            Some((path, anchor)) => (path, Some(anchor)),
            None => (target, None),
        };
        if path.is_empty() {
            return Ok(Target::Here(page.to_owned(), anchor));
        }
        let outside = || format!("{target} leads out of the repository");
        let mut parts: Vec<&str> = page.split('/').collect();
        parts.pop();
        if path.starts_with('/') {
            return Err(outside());
        }
        for part in path.trim_end_matches('/').split('/') {
            match part {
                "." => {}
                ".." => drop(parts.pop().ok_or_else(outside)?),
                _ => parts.push(part),
            }
        }
        Ok(Target::Here(parts.join("/"), anchor))
    }
}

/// A sentence for each link that leads nowhere. `files` are all files of the repository.
pub(super) fn broken(pages: &BTreeMap<String, Page>, files: &[String]) -> Vec<String> {
    let files: BTreeSet<&str> = files.iter().map(String::as_str).collect();
    let folders: BTreeSet<&str> =
        files.iter().flat_map(|path| path.match_indices('/').map(|(at, _)| &path[..at])).collect();
    let fault = |page: &Page, link: &Link| {
        let (path, anchor) = match link.target(&page.path) {
            Ok(Target::Outside(_)) => return None,
            Ok(Target::Here(path, anchor)) => (path, anchor),
            Err(fault) => return Some(fault),
        };
        if !files.contains(path.as_str()) && !folders.contains(path.as_str()) {
            return Some(format!("{} does not exist in the repository", link.target));
        }
        let anchor = anchor?;
        let known = pages.get(&path).is_some_and(|page| page.anchors.contains(anchor));
        (!known).then(|| format!("{path} has no heading for #{anchor}"))
    };
    let in_page = |page| {
        let all = |page: &Page| -> Vec<String> {
            let sentence =
                |link: &Link| Some(format!("{}:{}: {}", page.path, link.line, fault(page, link)?));
            page.links.iter().filter_map(sentence).collect()
        };
        all(page)
    };
    pages.values().flat_map(in_page).collect()
}

/// The URLs of other hosts, each with the pages that name it.
pub(super) fn outside(pages: &BTreeMap<String, Page>) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut all: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for page in pages.values() {
        for link in &page.links {
            if let Ok(Target::Outside(url)) = link.target(&page.path) {
                all.entry(url).or_default().insert(page.path.as_str());
            }
        }
    }
    all
}

/// Whether it has the form of an address of the web.
fn is_url(text: &str) -> bool {
    let Ok(uri) = text.parse::<Uri>() else { return false };
    uri.scheme_str() == Some("https") && uri.host().is_some_and(|host| host.contains('.'))
}

#[cfg(test)]
mod tests {
    use super::super::page;
    use super::*;
    use crate::workspace::Workspace;

    fn pages(texts: &[(&str, &str)]) -> BTreeMap<String, Page> {
        let page = |(path, text): &(&str, &str)| {
            ((*path).to_owned(), Page::parse((*path).to_owned(), (*text).to_owned()))
        };
        texts.iter().map(page).collect()
    }

    #[test]
    fn every_link_of_our_pages_leads_somewhere() {
        let workspace = Workspace::find().unwrap();
        let pages = page::all(&workspace).unwrap();
        assert!(pages.len() > 40 && pages.contains_key("README.md"), "{:?}", pages.keys());
        let broken = broken(&pages, &page::tracked(&workspace).unwrap());
        assert!(broken.is_empty(), "{}", broken.join("\n"));
    }

    #[test]
    fn a_link_that_leads_nowhere_is_named_with_its_line() {
        let pages = pages(&[
            (
                "README.md",
                "# It\n[a](docs/a.md#good) [b](docs) [c](#it) [d](https://example.com/x#y)\n",
            ),
            (
                "docs/a.md",
                "## Good\n[up](../README.md#it)\n\n[1](../../x.md) [2](b.md)\n[3](#bad) [4][none]\n\
                 ![5](p.png)\n<http://example.com>\n[6](/README.md) [7](mailto:a) [words]\n",
            ),
        ]);
        let files = ["README.md".to_owned(), "docs/a.md".to_owned()];
        let wanted = [
            "docs/a.md:4: ../../x.md leads out of the repository",
            "docs/a.md:4: b.md does not exist in the repository",
            "docs/a.md:5: docs/a.md has no heading for #bad",
            "docs/a.md:5: the page does not define its reference",
            "docs/a.md:6: p.png does not exist in the repository",
            "docs/a.md:7: http://example.com is no URL that begins with https://",
            "docs/a.md:8: /README.md leads out of the repository",
            "docs/a.md:8: mailto:a is no URL that begins with https://",
        ];
        assert_eq!(broken(&pages, &files), wanted);
        assert_eq!(outside(&pages).keys().collect::<Vec<_>>(), [&"https://example.com/x#y"]);
    }
}
