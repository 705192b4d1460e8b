//! What an evacuation does, as text.

use k8s_openapi::jiff::Timestamp;
use topo_lb_common::selection::SPILL_ONE;

use super::quoted::{key_name, label};
use crate::topology::Origin;
use crate::topology::evacuation::Evacuation;
use crate::topology::spill::Share;

/// What leaves, until when, and on which share of nodes.
pub(super) fn sentence((origin, evacuation, share): &(Origin, Evacuation<'_>, Share)) -> String {
    let labels = evacuation.labels.iter().map(|(key, value)| label(key, value));
    let mut text = format!("{} by {origin}", labels.collect::<Vec<_>>().join(", "));
    let until = evacuation.until.and_then(|it| Timestamp::from_second(it).ok());
    if let Some(until) = until {
        text += &format!(", until {until}");
    }
    if share.parts() < SPILL_ONE {
        text += &format!(", on {share} of the nodes now");
    }
    if let Some(key) = evacuation.allow_strict {
        text += &format!("; strict policies take {}", key_name(key));
    }
    if evacuation.force {
        text += "; also where no endpoint is left";
    }
    text
}
