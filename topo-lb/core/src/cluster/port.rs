//! A port of a Service, or of an EndpointSlice.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::protocol::Protocol;

/// One entry of `ports`, of a Service or of a slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "(Arc<str>, u16, Protocol)", into = "(Arc<str>, u16, Protocol)")]
pub struct Port {
    /// `name`; empty if absent.
    pub name: Arc<str>,
    /// `port`, 1–65535.
    pub port: u16,
    /// `protocol`, TCP if absent.
    pub protocol: Protocol,
}

impl Port {
    /// Whether a slice's port belongs to this Service port: name and protocol are equal, as in
    /// kube-proxy. The numbers may differ.
    #[must_use]
    pub fn matches(&self, slice_port: &Self) -> bool {
        self.name == slice_port.name && self.protocol == slice_port.protocol
    }
}

impl From<(Arc<str>, u16, Protocol)> for Port {
    fn from((name, port, protocol): (Arc<str>, u16, Protocol)) -> Self {
        Self { name, port, protocol }
    }
}

impl From<Port> for (Arc<str>, u16, Protocol) {
    fn from(port: Port) -> Self {
        (port.name, port.port, port.protocol)
    }
}
