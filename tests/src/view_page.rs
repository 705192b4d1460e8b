//! The page of `topo-lb view` in a browser: when it is complete.

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::browser::Browser;

/// The page has rates.
pub const COUNTED: &str = "document.getElementById('sum-all').textContent.includes('B/s') && \
                           document.getElementById('sum-all').textContent !== '0 B/s'";

/// Waits until the page has counts of all agents and Services, such as `1,000` and `10,000`.
///
/// # Errors
/// That does not happen in time.
pub fn complete(browser: &mut Browser, agents: &str, services: &str) -> Result<()> {
    browser.until(COUNTED)?;
    let all = json!(format!(
        "{agents} of {agents} nodes have an agent that counts · {services} Services"
    ));
    browser.until(&format!("document.getElementById('status').textContent.includes({all})"))?;
    browser.until("document.getElementById('sentences').children.length === 0")?;
    browser.until("document.getElementById('unknown').hidden")?;
    Ok(())
}

/// Opens the page anew. Returns the milliseconds until it has drawn all groups, nodes and rates.
///
/// # Errors
/// It cannot be opened, or draws nothing.
pub fn first_paint(browser: &mut Browser, url: &str) -> Result<f64> {
    browser.open("about:blank")?;
    browser.open(url)?;
    let painted = "performance.getEntriesByName('topo-lb painted')[0]?.startTime";
    browser.until(painted)?.as_f64().context("a time")
}
