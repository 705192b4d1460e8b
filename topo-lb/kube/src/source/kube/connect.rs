//! An API server that requests can be sent to.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::error::KubeError;
use super::session::Session;
use super::target::{KubeTarget, config, url};
use super::timing::Timing;
use super::upstream::Upstream;
use topo_lb_core::cluster::Update;

/// Identifies a cluster as far as possible without a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The URL of the API server; of several, all.
    pub server: String,
    /// CRC-32 of each trusted authority's certificate; empty without TLS or with the system's.
    pub authorities: Vec<u32>,
}

impl Identity {
    /// Whether they share an authority, which no two clusters do; if either has none, the URL.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        if self.authorities.is_empty() || other.authorities.is_empty() {
            return self.server == other.server;
        }
        // One common authority suffices: they are renewed one by one.
        self.authorities.iter().any(|one| other.authorities.contains(one))
    }
}

/// An API server. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct Server {
    client: ::kube::Client,
    pub(super) session: Session,
    identity: Identity,
}

impl Server {
    /// A client for other requests to the same server.
    #[must_use]
    pub fn client(&self) -> ::kube::Client {
        self.client.clone()
    }

    /// Its URL, for messages.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.identity.server
    }

    /// The identity of its cluster.
    #[must_use]
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Updates the routes to the server from saved objects: `default/kubernetes` and its slices.
    pub fn observe(&self, update: &Update) {
        self.session.observe(update);
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Server").field(&self.url()).finish()
    }
}

/// Prepares requests to an API server; sends nothing yet.
///
/// # Errors
/// The server's address is unknown, or the credentials or settings are unusable.
pub async fn connect(target: &KubeTarget) -> Result<Server, KubeError> {
    connect_with(target, Timing::DEFAULT).await
}

/// The same for somebody who waits: refusals that may pass are told within 2 s, and not after 20 s.
///
/// # Errors
/// As [`connect`].
pub async fn connect_to_show(target: &KubeTarget) -> Result<Server, KubeError> {
    connect_with(target, Timing::SHOWN).await
}

pub(super) async fn connect_with(target: &KubeTarget, timing: Timing) -> Result<Server, KubeError> {
    let (mut upstreams, mut urls, mut authorities) = (Vec::new(), Vec::new(), Vec::new());
    for target in target.each() {
        let config = config(target).await?;
        urls.push(url(&config));
        authorities.extend(config.root_cert.iter().flatten().map(|one| crc32fast::hash(one)));
        upstreams.push(Upstream::new(target.clone(), timing, config)?);
    }
    let identity = Identity { server: urls.join(", "), authorities };
    let session = Session::new(upstreams, timing);
    Ok(Server { client: session.client(), session, identity })
}
