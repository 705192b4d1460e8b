//! `topo-lb view` under test: the command, and what it serves as JSON.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::binary::Binary;
use crate::http;
use crate::requirements;

/// The command, serving; dropping this ends it.
#[derive(Debug)]
pub struct View {
    child: Child,
    /// The page's URL.
    pub url: String,
}

impl View {
    /// Serves at a free port of this machine.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(arguments: &[&str]) -> Result<Self> {
        Self::start_with(arguments, |_| Ok(()))
    }

    /// The same, after `prepare` has changed where the command runs.
    ///
    /// # Errors
    /// As [`start`](Self::start), and those of `prepare`.
    pub fn start_with(
        arguments: &[&str],
        prepare: impl FnOnce(&mut Command) -> Result<()>,
    ) -> Result<Self> {
        let mut all = vec!["view", "--listen", "127.0.0.1:0"];
        all.extend(arguments);
        let mut command = Binary::new(requirements::agent()?).command(&all);
        prepare(&mut command)?;
        let mut child = command.stdout(Stdio::piped()).spawn().context("cannot start view")?;
        let stdout = child.stdout.take().context("its output")?;
        let mut view = Self { child, url: String::new() };
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let url = line.strip_prefix("The page is at ").and_then(|it| it.split_once(". "));
        view.url = url.with_context(|| format!("it said {line:?}"))?.0.to_owned();
        Ok(view)
    }

    /// The address and port of the page.
    ///
    /// # Errors
    /// The URL has none.
    pub fn address(&self) -> Result<SocketAddr> {
        let address = self.url.trim_start_matches("http://").trim_end_matches('/');
        address.parse().with_context(|| format!("{} has no address", self.url))
    }

    /// What a page shows now, from this thread's network namespace. `query` is empty, or begins with `?`.
    ///
    /// # Errors
    /// There is no answer, or none in JSON.
    pub fn picture(&self, query: &str) -> Result<Value> {
        let answer = http::get_here(self.address()?, &format!("/picture{query}"))?;
        serde_json::from_str(&answer.body).with_context(|| answer.to_string())
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
