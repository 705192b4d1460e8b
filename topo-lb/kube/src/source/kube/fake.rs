//! A fake API server, connections to it, and its answers without it.

use std::net::TcpListener;
use std::ops::Deref;
use std::time::Duration;

use ::kube::core::Status;
use topo_lb_fake_api::FakeApi;

use super::connect::Server;
use super::connect::connect_with;
use super::target::KubeTarget;
use super::timing::Timing;

/// Shorter than [`Timing::DEFAULT`].
pub(super) const TIMING: Timing = Timing {
    connect: Duration::from_secs(2),
    read: Duration::from_secs(1),
    settling: Duration::from_millis(300),
    grace: Duration::from_millis(600),
    back: Duration::from_millis(100),
    renewal: Duration::ZERO,
    absent: Timing::DEFAULT.absent,
    deletion: Duration::from_millis(100),
};

/// For long silences.
pub(super) const PATIENT: Timing = Timing { read: Timing::DEFAULT.read, ..TIMING };

pub(super) struct Fake {
    api: FakeApi,
    pub(super) server: Server,
}

impl Fake {
    /// A server with these paths and no objects.
    pub(super) async fn new(paths: &[&str]) -> Self {
        let api = FakeApi::start(TcpListener::bind("127.0.0.1:0").unwrap(), paths).unwrap();
        let server = connect_to(&api, PATIENT).await;
        Self { api, server }
    }

    /// Another connection, with this timing.
    pub(super) async fn connect(&self, timing: Timing) -> Server {
        connect_to(&self.api, timing).await
    }
}

async fn connect_to(api: &FakeApi, timing: Timing) -> Server {
    connect_with(&KubeTarget::Server(api.url()), timing).await.unwrap()
}

impl Deref for Fake {
    type Target = FakeApi;

    fn deref(&self) -> &FakeApi {
        &self.api
    }
}

/// A server that nothing is sent to.
pub(super) async fn nowhere() -> Server {
    let target = KubeTarget::Server("http://127.0.0.1:1".to_owned());
    connect_with(&target, Timing::DEFAULT).await.unwrap()
}

/// An answer with this status, and a message that differs by `number`.
pub(super) fn refused(code: u16, number: usize) -> ::kube::Error {
    let status = Status::failure(&format!("not now, request {number}"), "Test").with_code(code);
    ::kube::Error::Api(Box::new(status))
}
