//! Commands that our pages show: each block says by a comment which test runs it, or why none does.

use std::collections::BTreeMap;

use anyhow::Result;
use fs_err as fs;
use walkdir::WalkDir;

use super::page::{Block, Page};
use crate::workspace::Workspace;

/// Pages with commands that a reader is to type.
fn has_commands(page: &str) -> bool {
    let is_doc = page.starts_with("docs/") && page.matches('/').count() == 1;
    is_doc || ["README.md", "CONTRIBUTING.md", "deploy/helm/topo-lb/README.md"].contains(&page)
}

/// A sentence for each block of commands that is not marked, or whose test does not run it.
pub(super) fn faults(
    pages: &BTreeMap<String, Page>,
    suites: &BTreeMap<String, String>,
) -> Vec<String> {
    let is_commands = |block: &&Block| ["sh", "console"].contains(&block.language.as_str());
    let all = |page: &Page| -> Vec<String> {
        let sentence = |block: &Block| {
            let fault = fault(&page.path, block, suites)?;
            Some(format!("{}:{}: {fault}", page.path, block.line))
        };
        page.blocks.iter().filter(is_commands).filter_map(sentence).collect()
    };
    pages.values().filter(|page| has_commands(&page.path)).flat_map(all).collect()
}

/// What is wrong with the comment of a block.
fn fault(page: &str, block: &Block, suites: &BTreeMap<String, String>) -> Option<String> {
    let comment = block.comment.as_deref().unwrap_or_default();
    if let Some(reason) = comment.strip_prefix("not run: ") {
        return reason.is_empty().then(|| "there is no reason after `not run:`".to_owned());
    }
    let Some(mark) = comment.strip_prefix("run: ") else {
        return Some(
            "say before the block who runs it: <!-- run: SUITE::TEST -->, or <!-- not run: REASON -->"
                .to_owned(),
        );
    };
    let Some((suite, test)) = mark.split_once("::") else {
        return Some(format!("`{mark}` is no SUITE::TEST"));
    };
    let Some(source) = suites.get(suite) else {
        return Some(format!("there is no suite {suite}"));
    };
    if !source.contains(&format!("#[test]fn{test}(")) {
        return Some(format!("the suite {suite} has no test {test}"));
    }
    let takes = source.contains(&format!("marked(\"{page}\",\"{mark}\")"));
    (!takes).then(|| format!("nothing calls marked(\"{page}\", \"{mark}\") in the suite {suite}"))
}

/// The source of each suite of the lab, without white space: a line may break anywhere.
pub(crate) fn suites(workspace: &Workspace) -> Result<BTreeMap<String, String>> {
    let folder = workspace.root.join("tests/tests");
    let mut all = BTreeMap::<String, String>::new();
    for entry in WalkDir::new(&folder).sort_by_file_name() {
        let entry = entry?;
        let within = entry.path().strip_prefix(&folder)?;
        let first = within.components().nth(1).map(|it| it.as_os_str().to_string_lossy());
        if let Some(name) = first.filter(|_| entry.file_type().is_file()) {
            let text = fs::read_to_string(entry.path())?;
            let suite = all.entry(name.trim_end_matches(".rs").to_owned()).or_default();
            // A comma at the end of a list that is broken into lines does not matter.
            *suite += &text.split_whitespace().collect::<String>().replace(",)", ")");
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::super::page;
    use super::*;

    #[test]
    fn every_block_of_commands_is_run_by_a_test_or_says_why_not() {
        let workspace = Workspace::find().unwrap();
        let faults = faults(&page::all(&workspace).unwrap(), &suites(&workspace).unwrap());
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    #[test]
    fn a_mark_must_name_a_test_that_takes_the_block() {
        let sources = "#[test]fngood(){marked(\"README.md\",\"try_out::good\")}#[test]fnbad(){}";
        let suites = BTreeMap::from([("try_out".to_owned(), sources.to_owned())]);
        let said = |comment: &str| {
            let text = format!("{comment}\n```sh\nls\n```\n```yaml\na: 1\n```\n");
            let page = Page::parse("README.md".to_owned(), text);
            faults(&BTreeMap::from([("README.md".to_owned(), page)]), &suites).join("\n")
        };
        assert_eq!(said("<!-- run: try_out::good -->"), "");
        assert_eq!(said("<!-- not run: it needs a registry -->"), "");
        for (comment, wanted) in [
            ("", "README.md:2: say before the block who runs it"),
            ("<!-- other -->", "say before the block who runs it"),
            ("<!-- not run: -->", "say before the block who runs it"),
            ("<!-- run: try_out -->", "`try_out` is no SUITE::TEST"),
            ("<!-- run: gone::good -->", "there is no suite gone"),
            ("<!-- run: try_out::goo -->", "the suite try_out has no test goo"),
            ("<!-- run: try_out::bad -->", "nothing calls marked(\"README.md\", \"try_out::bad\")"),
        ] {
            assert!(said(comment).contains(wanted), "{comment}: {}", said(comment));
        }
    }
}
