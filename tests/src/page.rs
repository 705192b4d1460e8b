//! Commands that our pages show, run as they stand there.
//!
//! A comment on the line before a block names the test that runs it: `<!-- run: SUITE::TEST -->`. A unit
//! test of xtask checks that there is this test, and that it takes the block.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use fs_err::os::unix::fs::symlink;

use crate::binary::Binary;
use crate::folder::Folder;
use crate::prefix::Prefix;
use crate::process::printed;
use crate::requirements;

/// What a page shows under one mark.
#[derive(Debug, PartialEq, Eq)]
pub struct Shown {
    /// What a reader types.
    pub commands: String,
    /// What it prints, of blocks of the language `console`, without lines that say only `…`.
    pub output: Vec<String>,
}

/// All blocks of a page (below the root of the repository) that are marked with this test.
///
/// # Errors
/// The page has none.
pub fn marked(page: &str, test: &str) -> Result<Shown> {
    let shown = taken(&text(page)?, test);
    ensure!(!shown.commands.is_empty(), "{page} has no block after <!-- run: {test} -->");
    Ok(shown)
}

fn taken(page: &str, test: &str) -> Shown {
    let mark = format!("<!-- run: {test} -->");
    let mut shown = Shown { commands: String::new(), output: Vec::new() };
    let mut lines = page.lines().map(str::trim_start);
    while lines.by_ref().any(|line| line == mark) {
        let is_console = lines.next().is_some_and(|fence| fence == "```console");
        for line in lines.by_ref().take_while(|line| *line != "```") {
            let typed = line.strip_prefix("$ ").or_else(|| line.strip_prefix("# "));
            match typed.filter(|_| is_console) {
                None if is_console => shown.output.extend((line != "…").then(|| line.to_owned())),
                typed => shown.commands += &format!("{}\n", typed.unwrap_or(line)),
            }
        }
    }
    shown
}

/// The first block of a page after these words.
///
/// # Errors
/// The page has none.
pub fn block_after(page: &str, words: &str) -> Result<String> {
    let text = text(page)?;
    let after = text.split_once(words).map(|(_, after)| after);
    let block =
        after.and_then(|after| after.split_once("```")?.1.split_once('\n')?.1.split_once("```"));
    let (block, _) = block.with_context(|| format!("{page} has no block after `{words}`"))?;
    Ok(block.to_owned())
}

fn text(page: &str) -> Result<String> {
    Ok(fs::read_to_string(repository().join(page))?)
}

/// The root of the repository.
#[must_use]
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A folder that a reader could be in, with `topo-lb` on the path.
#[derive(Debug)]
pub struct Reader {
    folder: Folder,
    environment: Vec<(&'static str, PathBuf)>,
    /// Whether its shells have a network of their own.
    is_alone: bool,
}

impl Reader {
    /// A reader in an empty folder, who has nothing but the program.
    pub fn new() -> Result<Self> {
        let folder = Folder::make(Prefix::new().folder())?;
        fs::create_dir(folder.path().join("bin"))?;
        let reader = Self { folder, environment: Vec::new(), is_alone: false };
        reader.install("topo-lb", &requirements::agent()?)?;
        Ok(reader)
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Puts a program on the reader's path.
    pub fn install(&self, name: &str, program: &Path) -> Result<()> {
        Ok(symlink(program, self.folder().join("bin").join(name))?)
    }

    /// Sets a variable of the reader's shell.
    pub fn set(&mut self, name: &'static str, value: PathBuf) {
        self.environment.push((name, value));
    }

    /// Gives each shell from now on a network of its own, with nothing but the loopback device.
    pub fn go_alone(&mut self) {
        self.is_alone = true;
    }

    /// Types these commands into a shell, after replacing words by others. Returns what they print on
    /// standard output.
    ///
    /// # Errors
    /// One of them fails, or there is nothing to replace.
    pub fn types(&self, commands: &str, replaced: &[(&str, &str)]) -> Result<String> {
        // What a block starts in the background ends with it.
        let mut script = "trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n".to_owned();
        if self.is_alone {
            script += "ip link set lo up\n";
        }
        script += &format!("set -xeuo pipefail\n{commands}");
        for (from, to) in replaced {
            ensure!(script.contains(from), "the page no longer says `{from}`:\n{commands}");
            script = script.replace(from, to);
        }
        let mut bash = match self.is_alone {
            true => Binary::new("unshare".into()).command(&["--net", "bash", "-c", &script]),
            false => Binary::new("bash".into()).command(&["-c", &script]),
        };
        let mut path = self.folder().join("bin").into_os_string();
        path.push(":");
        path.push(env::var_os("PATH").context("there is no PATH")?);
        bash.current_dir(self.folder()).env("PATH", path).env("HOME", self.folder());
        printed(bash.envs(self.environment.iter().map(|(name, value)| (name, value))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_marked_blocks_are_taken_and_output_is_told_from_commands() {
        let page = "<!-- run: a::b -->\n```console\n$ one \\\n# two\nsaid\n…\n```\n```sh\nother\n```\n\
                    1. x\n\n   <!-- run: a::b -->\n   ```sh\n   # three\n   ```\n<!-- run: a::c -->\n";
        let shown = taken(page, "a::b");
        assert_eq!(shown.commands, "one \\\ntwo\n# three\n");
        assert_eq!(shown.output, ["said"]);
        assert_eq!(taken(page, "a::c").commands, "");
    }
}
