//! `topo-lb view` in a real browser, with agents that count what real decisions would make them count.

mod shop;

use std::env;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use serde_json::json;
use topo_lb_tests::binary::Binary;
use topo_lb_tests::browser::Browser;
use topo_lb_tests::requirements;

/// The command, serving; dropping this ends it.
struct View {
    child: Child,
    url: String,
}

impl View {
    fn start(arguments: &[&str]) -> Result<Self> {
        let mut all = vec!["view", "--listen", "127.0.0.1:0"];
        all.extend(arguments);
        let mut command = Binary::new(requirements::agent()?).command(&all);
        let mut child = command.stdout(Stdio::piped()).spawn().context("cannot start view")?;
        let stdout = child.stdout.take().context("its output")?;
        let mut view = Self { child, url: String::new() };
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let url = line.strip_prefix("The page is at ").and_then(|it| it.split_once(". "));
        view.url = url.with_context(|| format!("it said {line:?}"))?.0.to_owned();
        Ok(view)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The page with rates.
const COUNTED: &str = "document.querySelectorAll('.lines path').length > 2 && \
                       document.getElementById('sum-all').textContent.includes('B/s')";

/// Where pictures go: into the documentation if `TOPO_LB_WRITE_PICTURES` names its folder.
fn keep(name: &str, picture: &[u8]) -> Result<()> {
    ensure!(picture.starts_with(b"\x89PNG"), "{name} is no PNG");
    ensure!((20_000..200_000).contains(&picture.len()), "{name} has {} bytes", picture.len());
    if let Some(folder) = env::var_os("TOPO_LB_WRITE_PICTURES") {
        fs::write(PathBuf::from(folder).join(name), picture)?;
    }
    Ok(())
}

#[test]
fn pictures_for_the_documentation() -> Result<()> {
    let api = shop::start()?;
    let view = View::start(&["--api-server", &api.url(), "--interval", "0.5"])?;
    let mut browser = Browser::start(1480, 900)?;
    browser.prefer("light")?;
    browser.open(&view.url)?;
    browser.until(COUNTED)?;
    keep("view-light.png", &browser.picture()?)?;
    browser.run("document.querySelector('[data-name=\"data/postgres\"]').click()")?;
    browser.prefer("dark")?;
    browser.until("document.querySelectorAll('.waterfall li').length > 2")?;
    browser.until(COUNTED)?;
    keep("view-dark.png", &browser.picture()?)?;
    ensure!(browser.complaints().is_empty(), "{:?}", browser.complaints());
    let _ = json!({});
    Ok(())
}
