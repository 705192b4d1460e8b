//! Metrics of agents: from files, from folders of files, or from the agents themselves.

use std::fs;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Context as _;

use crate::commands::top;

mod text;

pub(crate) use text::DIRECT;
use text::Scraped;
pub use text::{NoMetrics, figures};

/// What a file of metrics may be called after its node's name.
const ENDINGS: [&str; 3] = [".txt", ".prom", ".metrics"];

/// Where metrics are: `[NODE=]PATH|URL`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    node: Option<Arc<str>>,
    place: String,
}

impl FromStr for Origin {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (node, place) = match text.split_once('=') {
            // A name of a Node has no slash, but a path or a URL may have `=`.
            Some((node, place)) if !node.contains('/') => (Some(node), place),
            _ => (None, text),
        };
        if place.is_empty() || node == Some("") {
            return Err("write it as PATH, URL, NODE=PATH or NODE=URL");
        }
        Ok(Self { node: node.map(Into::into), place: place.to_owned() })
    }
}

/// Reads all of them. The files of a folder have the names of their nodes, as they are or with `.txt`,
/// `.prom` or `.metrics` after them.
///
/// # Errors
/// One cannot be read.
pub async fn read(origins: &[Origin]) -> anyhow::Result<Vec<Scraped>> {
    let mut all = Vec::new();
    for Origin { node, place } in origins {
        let path = Path::new(place);
        if ["http://", "https://"].iter().any(|scheme| place.starts_with(scheme)) {
            let url = place.trim_end_matches('/').trim_end_matches("/metrics");
            let text = top::metrics(url).await.with_context(|| place.clone())?;
            all.push(Scraped { node: node.clone(), place: place.clone(), text });
        } else if path.is_dir() {
            for entry in fs::read_dir(path).with_context(|| format!("the folder {place}"))? {
                let entry = entry.with_context(|| format!("the folder {place}"))?;
                let name = entry.file_name();
                let name = name.to_string_lossy();
                if name.starts_with('.') || !entry.file_type()?.is_file() {
                    continue;
                }
                all.push(file(&entry.path(), Some(node_of(&name).into()))?);
            }
        } else {
            all.push(file(path, node.clone())?);
        }
    }
    Ok(all)
}

fn file(path: &Path, node: Option<Arc<str>>) -> anyhow::Result<Scraped> {
    let place = path.display().to_string();
    let text = fs::read_to_string(path).with_context(|| format!("the file {place}"))?;
    Ok(Scraped { node, place, text })
}

/// The node of a file.
fn node_of(name: &str) -> &str {
    ENDINGS.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_comes_before_its_place() {
        for (text, node, place) in [
            ("metrics.txt", None, "metrics.txt"),
            ("n1=metrics.txt", Some("n1"), "metrics.txt"),
            ("n1=http://10.0.0.7:19876", Some("n1"), "http://10.0.0.7:19876"),
            ("http://10.0.0.7:19876/a=b", None, "http://10.0.0.7:19876/a=b"),
            ("./a=b", None, "./a=b"),
        ] {
            let wanted = Origin { node: node.map(Into::into), place: place.into() };
            assert_eq!(text.parse(), Ok(wanted), "{text}");
        }
        for wrong in ["", "=x", "n1="] {
            assert!(wrong.parse::<Origin>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_file_is_named_after_its_node() {
        for name in ["ip-10.ec2.internal", "ip-10.ec2.internal.txt", "ip-10.ec2.internal.prom"] {
            assert_eq!(node_of(name), "ip-10.ec2.internal");
        }
    }
}
