//! Reads facts about clients from Namespaces and Pods, for `lint` only.

use serde::Deserialize;

use super::field::{Loose, Metadata};
use super::written::Written;
use topo_lb_core::cluster::client::Client;

/// A Pod or a Namespace as it is written; `None` if it is unreadable.
pub(super) fn client(is_pod: bool, object: impl Written) -> Option<Client> {
    #[derive(Deserialize)]
    struct Fields {
        metadata: Metadata<Loose, Loose>,
    }
    let Fields { metadata } = object.read().ok()?;
    let (Loose(labels), Loose(annotations)) = (&metadata.labels, &metadata.annotations);
    Some(match is_pod {
        true => Client::new(metadata.namespace(), Some(&metadata.name), labels, annotations),
        false => Client::new(&metadata.name, None, labels, annotations),
    })
}
