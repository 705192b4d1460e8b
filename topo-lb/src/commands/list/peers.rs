//! `topo-lb list peers`: to which other nodes packets of clients outside are sent on, and why to others not.

use std::path::Path;

use serde::{Deserialize, Serialize};
use topo_lb_common::hop::{PROVED, Peer};
use topo_lb_common::members::node_tag;

use super::Listed;
use topo_lb_core::cluster::Family;
use topo_lb_core::peers::status::{Cause, PeerState, ethernet};
use topo_lb_kernel::datapath::maps::error::ReadError;
use topo_lb_kernel::datapath::maps::peers::PeerMap;

/// Another node, and a version of IP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerRow {
    /// Its name; none if no agent says it.
    pub node: Option<String>,
    /// The version of IP.
    pub family: Family,
    /// What the agent says, or else the map.
    pub state: PeerState,
    /// Its Ethernet address, if the map has one.
    pub ethernet: Option<String>,
    /// Why it is not proved.
    pub reason: Option<String>,
    /// The kind of the reason.
    pub cause: Option<Cause>,
}

/// The map, and what the agent of this host says at `/peers`: null without direct return. A sentence if it says nothing.
///
/// # Errors
/// The map cannot be read.
pub fn list_peers(pin_dir: &Path, said: anyhow::Result<String>) -> Result<Listed, ReadError> {
    let entries = entries(pin_dir)?;
    let said = said.and_then(|said| Ok(serde_json::from_str::<Option<Vec<PeerRow>>>(&said)?));
    let (said, trouble) = match said {
        Ok(Some(said)) => (said, None),
        Ok(None) => (Vec::new(), Some("the agent of this host has no direct return".to_owned())),
        Err(error) => {
            let trouble =
                format!("names and reasons are missing, as the agent does not say them: {error:#}");
            (Vec::new(), Some(trouble))
        }
    };
    Ok(Listed::Peers { peers: rows(&entries, said), trouble })
}

pub(super) fn entries(pin_dir: &Path) -> Result<Vec<(Peer, u32)>, ReadError> {
    Ok(PeerMap::open(pin_dir)?.read()?)
}

pub(super) fn rows(entries: &[(Peer, u32)], mut rows: Vec<PeerRow>) -> Vec<PeerRow> {
    for &(peer, value) in entries {
        let family = if peer.version == 4 { Family::V4 } else { Family::V6 };
        let address = ethernet(peer.ethernet);
        let is_of = |row: &&mut PeerRow| {
            let node = row.node.as_deref().unwrap_or_default();
            row.family == family && u32::from(node_tag(node.as_bytes())) == value & !PROVED
        };
        match rows.iter_mut().find(is_of) {
            Some(row) => row.ethernet = Some(address),
            None => rows.push(PeerRow {
                node: None,
                family,
                state: if value & PROVED == 0 { PeerState::Known } else { PeerState::Proved },
                ethernet: Some(address),
                reason: None,
                cause: None,
            }),
        }
    }
    rows.sort_by(|a, b| (&a.node, &a.family, &a.ethernet).cmp(&(&b.node, &b.family, &b.ethernet)));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_belongs_to_the_node_that_the_agent_names_or_stands_alone() {
        let tag = |node: &str| u32::from(node_tag(node.as_bytes()));
        let peer = |last, version| Peer { ethernet: [2, 0, 0, 0, 0, last], version, reserved: 0 };
        let row = |node: Option<&str>, family, state, last: Option<&str>| PeerRow {
            node: node.map(str::to_owned),
            family,
            state,
            ethernet: last.map(|last| format!("02:00:00:00:00:{last}")),
            reason: None,
            cause: None,
        };
        let said = vec![
            row(Some("b"), Family::V4, PeerState::Proved, None),
            row(Some("b"), Family::V6, PeerState::Unproved, None),
            row(Some("c"), Family::V4, PeerState::Unproved, None),
        ];
        let entries = vec![
            (peer(2, 4), tag("b") | PROVED),
            (peer(2, 6), tag("b")),
            (peer(9, 4), tag("z") | PROVED),
            (peer(8, 4), tag("y")),
        ];
        let wanted = [
            row(None, Family::V4, PeerState::Known, Some("08")),
            row(None, Family::V4, PeerState::Proved, Some("09")),
            row(Some("b"), Family::V4, PeerState::Proved, Some("02")),
            row(Some("b"), Family::V6, PeerState::Unproved, Some("02")),
            row(Some("c"), Family::V4, PeerState::Unproved, None),
        ];
        assert_eq!(rows(&entries, said), wanted);
    }
}
