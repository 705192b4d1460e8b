//! `cargo xtask docs`: a site of our pages, by mdbook. It and unit tests refuse links that lead nowhere, names of
//! files and folders that are not there, and commands that no test runs and that do not say why.

mod book;
mod commands;
mod folders;
mod links;
mod page;
mod paths;
mod runs;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;

use crate::install;
use crate::needs::Need;
use crate::oci::copy;
use crate::process::run_logged;
use crate::progress;
use crate::workspace::{Workspace, find_cargo_program};
use book::Book;
pub(crate) use commands::suites;
use page::Page;
pub(crate) use page::tracked;
pub(crate) use runs::{is_there, named, without_a_run};

/// Makes a site of README.md, docs/ and the pages beside them, in target/docs/book.
///
/// mdbook makes it, from copies in target/docs/src. Links to files that the site does not have lead to the
/// repository. target/docs/outside.txt lists the links to other hosts: nobody tries them.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask docs     then open target/docs/book/index.html")]
pub(crate) struct Args {}

/// The settings of mdbook: only what differs from its defaults.
const SETTINGS: &str = "[book]\ntitle = \"topo-lb\"\nlanguage = \"en\"\n";

pub(crate) fn run(workspace: &Workspace, Args {}: &Args) -> Result<()> {
    install::ready(workspace, &[Need::Book].into())?;
    let mdbook = find_cargo_program("mdbook").context("no mdbook")?;
    let pages = page::all(workspace)?;
    let faults = faults(workspace, &pages)?;
    ensure!(faults.is_empty(), "the pages have faults:\n  {}", faults.join("\n  "));
    let folder = workspace.target.join("docs");
    write(workspace, &pages, &folder)?;
    let mut make = workspace.command(mdbook);
    make.arg("build").arg(&folder);
    run_logged("making the site, by mdbook", &mut make, &workspace.log("mdbook"))?;
    progress::note(&folder.join("book/index.html").display().to_string());
    Ok(())
}

/// What is wrong with the pages.
fn faults(workspace: &Workspace, pages: &BTreeMap<String, Page>) -> Result<Vec<String>> {
    let files = tracked(workspace)?;
    let mut faults = links::broken(pages, &files);
    faults.extend(paths::missing(pages, &files));
    faults.extend(folders::faults(pages, &files));
    let suites = suites(workspace)?;
    faults.extend(commands::faults(pages, &suites));
    for page in runs::PAGES {
        faults.extend(runs::faults(page, &pages[page].text, &suites));
    }
    Ok(faults)
}

/// What is wrong with the pages that are there; and how many there are.
///
/// # Errors
/// They cannot be read.
pub(crate) fn check(workspace: &Workspace) -> Result<(usize, Vec<String>)> {
    let pages = page::all(workspace)?;
    Ok((pages.len(), faults(workspace, &pages)?))
}

/// Writes what mdbook reads, in place of what an earlier call has left.
fn write(workspace: &Workspace, pages: &BTreeMap<String, Page>, folder: &Path) -> Result<()> {
    let book = Book::of(pages)?;
    let sources = folder.join("src");
    if sources.exists() {
        fs::remove_dir_all(&sources)?;
    }
    for (path, text) in &book.texts {
        let place = sources.join(path);
        fs::create_dir_all(place.parent().unwrap_or(&sources))?;
        fs::write(place, text)?;
    }
    for path in &book.pictures {
        copy(&workspace.root.join(path), &sources.join(path))?;
    }
    fs::write(folder.join("book.toml"), SETTINGS)?;
    let list = |pages: BTreeSet<&str>| pages.into_iter().collect::<Vec<_>>().join(" ");
    let outside = links::outside(pages).into_iter();
    let lines = outside.map(|(url, pages)| format!("{url}  {}\n", list(pages)));
    Ok(fs::write(folder.join("outside.txt"), lines.collect::<String>())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mdbook_gets_every_file_that_it_needs() {
        let workspace = Workspace::find().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let pages = page::all(&workspace).unwrap();
        // The second time replaces the first.
        fs::create_dir_all(folder.path().join("src/docs")).unwrap();
        fs::write(folder.path().join("src/docs/gone.md"), "").unwrap();
        write(&workspace, &pages, folder.path()).unwrap();
        let there = |path: &str| folder.path().join(path).is_file();
        for path in
            ["book.toml", "src/SUMMARY.md", "src/index.md", "src/docs/pictures/view-light.png"]
        {
            assert!(there(path), "{path}");
        }
        assert!(!there("src/docs/gone.md"));
        let outside = fs::read_to_string(folder.path().join("outside.txt")).unwrap();
        assert!(outside.contains("https://rustup.rs  README.md\n"), "{outside}");
    }

    #[test]
    fn a_row_of_the_compatibility_page_that_is_unknown_does_not_say_yes() {
        let pages = page::all(&Workspace::find().unwrap()).unwrap();
        let rows = pages["docs/compatibility.md"].text.lines();
        let unknown: Vec<_> = rows.filter(|row| row.contains("| *unknown*")).collect();
        assert!(
            unknown.len() > 8 && unknown.iter().all(|row| row.contains("| expected")),
            "{unknown:#?}"
        );
    }
}
