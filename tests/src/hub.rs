//! A proxy with plain HTTP to agents and TLS to the API server, like `YurtHub` on OpenYurt nodes. A
//! test can break its responses in the middle of an event.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::body::{Body, BodyDataStream, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use fs_err::File;
use futures::{StreamExt as _, stream};
use kube::Client;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::sync::watch;

use crate::cluster::Cluster;
use crate::control_plane::client;
use crate::wiring::fabric4;

/// The port, on the lab's fabric.
const PORT: u16 = 8001;

/// What happens to the next event of a watch after its first half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// The connection ends.
    Cut,
    /// The connection stays; the rest follows after [`Hub::go_on`].
    Stall,
}

/// The test's orders.
#[derive(Clone, Debug, Default)]
struct Orders {
    /// For the next event of a watch of this resource (`services`, for example).
    next: Option<(&'static str, Break)>,
    /// The number of broken events.
    broken: usize,
    /// How often [`Hub::go_on`] was called.
    released: usize,
    /// Cuts watches, and answers nothing.
    shut: bool,
    /// The hub must end.
    over: bool,
}

type OrderSender = watch::Sender<Orders>;

/// The hub, on its own thread. Dropping it ends it.
#[derive(Debug)]
pub struct Hub {
    sender: OrderSender,
    thread: Option<JoinHandle<()>>,
}

impl Hub {
    /// Starts the hub on the fabric of a lab. It uses a kubeconfig for the API server.
    pub fn start(cluster: &Cluster, kubeconfig: &Path) -> Result<Self> {
        let address = SocketAddr::from((fabric4(), PORT));
        let listener = cluster.fabric().run(|| Ok(TcpListener::bind(address)?));
        let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
        let netns = cluster.fabric().file().try_clone().context("a file can be duplicated")?;
        let sender = OrderSender::default();
        let (kubeconfig, orders) = (kubeconfig.to_owned(), sender.clone());
        let thread = thread::Builder::new().name("hub".into()).spawn(move || {
            let served = enter(&netns)
                .and_then(|runtime| runtime.block_on(serve(&kubeconfig, listener, orders)));
            if let Err(error) = served {
                // Its clients fail now.
                eprintln!("the hub: {error:#}");
            }
        });
        Ok(Self { sender, thread: Some(thread.context("cannot start the hub's thread")?) })
    }

    /// The hub's URL, for `--api-server`.
    #[must_use]
    pub fn url() -> String {
        format!("http://{}:{PORT}", fabric4())
    }

    /// Breaks the next event of a watch of `resource` (`services`, for example).
    pub fn break_next(&self, resource: &'static str, how: Break) {
        self.sender.send_modify(|orders| orders.next = Some((resource, how)));
    }

    /// The number of events broken so far.
    #[must_use]
    pub fn broken(&self) -> usize {
        self.sender.borrow().broken
    }

    /// Releases the stalled events.
    pub fn go_on(&self) {
        self.sender.send_modify(|orders| orders.released += 1);
    }

    /// Cuts every watch, and answers no request until [`open`](Self::open).
    pub fn shut(&self) {
        self.sender.send_modify(|orders| orders.shut = true);
    }

    /// Answers requests again.
    pub fn open(&self) {
        self.sender.send_modify(|orders| orders.shut = false);
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.sender.send_modify(|orders| orders.over = true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("the hub has panicked");
        }
    }
}

fn enter(netns: &File) -> Result<tokio::runtime::Runtime> {
    move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))
        .context("cannot enter the fabric")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot make a runtime")
}

async fn serve(kubeconfig: &Path, listener: TcpListener, sender: OrderSender) -> Result<()> {
    let client = client(kubeconfig).await?;
    listener.set_nonblocking(true).context("cannot listen")?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut orders = sender.subscribe();
    let router = Router::new().fallback(forward).with_state((client, sender));
    tokio::select! {
        outcome = axum::serve(listener, router) => outcome.context("the hub has failed"),
        _ = orders.wait_for(|orders| orders.over) => Ok(()),
    }
}

async fn forward(
    State((client, sender)): State<(Client, OrderSender)>,
    request: Request,
) -> Response {
    if sender.borrow().shut {
        return (StatusCode::SERVICE_UNAVAILABLE, "the hub is shut").into_response();
    }
    let resource = watched(&request);
    match ask(client, request).await {
        Ok(answer) => match resource {
            Some(resource) => answer.map(|body| broken(body, resource, &sender)),
            None => answer,
        },
        Err(error) => (StatusCode::BAD_GATEWAY, format!("{error:#}")).into_response(),
    }
}

async fn ask(client: Client, request: Request) -> Result<Response> {
    let (mut head, body) = request.into_parts();
    // The client sets host and token itself; without compression frames pass unchanged.
    for name in [header::HOST, header::AUTHORIZATION, header::ACCEPT_ENCODING] {
        head.headers.remove(name);
    }
    let body = to_bytes(body, usize::MAX).await.context("the request breaks off")?;
    let request = Request::from_parts(head, kube::client::Body::from(body));
    let answer = client.send(request).await.context("the API server does not answer")?;
    Ok(answer.map(Body::new))
}

/// The resource that this request watches, if it is a watch.
fn watched(request: &Request) -> Option<String> {
    let mut query = request.uri().query()?.split('&');
    let resource = request.uri().path().rsplit('/').next()?;
    query.any(|it| it == "watch=true").then(|| resource.to_owned())
}

/// The response of a watch.
struct Flow {
    resource: String,
    sender: OrderSender,
    orders: watch::Receiver<Orders>,
    body: BodyDataStream,
    /// The second half of an event, what happens to it, and how often [`Hub::go_on`] was called
    /// before.
    rest: Option<(Bytes, Break, usize)>,
}

fn broken(body: Body, resource: String, sender: &OrderSender) -> Body {
    let (sender, orders) = (sender.clone(), sender.subscribe());
    let flow = Flow { resource, sender, orders, body: body.into_data_stream(), rest: None };
    Body::from_stream(stream::unfold(flow, async |mut flow| {
        let frame = flow.next().await?;
        Some((frame, flow))
    }))
}

impl Flow {
    async fn next(&mut self) -> Option<Result<Bytes, axum::Error>> {
        let mut orders = self.orders.clone();
        tokio::select! {
            _ = orders.wait_for(|orders| orders.shut) => Some(Err(axum::Error::new("shut"))),
            frame = self.frame() => frame,
        }
    }

    async fn frame(&mut self) -> Option<Result<Bytes, axum::Error>> {
        match self.rest.take() {
            Some((_, Break::Cut, _)) => {
                // Data still in a buffer would be lost with the connection.
                tokio::time::sleep(Duration::from_millis(100)).await;
                return Some(Err(axum::Error::new("cut")));
            }
            Some((rest, Break::Stall, before)) => {
                // The sender lives as long as this flow.
                let _ = self.orders.wait_for(|orders| orders.released > before).await;
                return Some(Ok(rest));
            }
            None => {}
        }
        let mut frame = match self.body.next().await? {
            Ok(frame) => frame,
            Err(error) => return Some(Err(error)),
        };
        if let Some((how, before)) = self.order() {
            let rest = frame.split_off(middle_of_last_line(&frame));
            self.rest = Some((rest, how, before));
        }
        Some(Ok(frame))
    }

    /// Takes the order for this watch, if any.
    fn order(&self) -> Option<(Break, usize)> {
        let mut taken = None;
        self.sender.send_if_modified(|orders| {
            let mine = orders.next.filter(|(resource, _)| *resource == self.resource);
            let Some((_, how)) = mine else { return false };
            taken = Some((how, orders.released));
            orders.next = None;
            orders.broken += 1;
            true
        });
        taken
    }
}

/// A frame has whole events, one per line.
fn middle_of_last_line(frame: &[u8]) -> usize {
    let end = frame.len() - usize::from(frame.ends_with(b"\n"));
    let start = frame[..end].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    usize::midpoint(start, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_broken_in_its_middle() {
        assert_eq!(middle_of_last_line(b"{12345}\n"), 3);
        assert_eq!(middle_of_last_line(b"{1}\n{12345}\n"), 7);
        assert_eq!(middle_of_last_line(b"{1}\n{12345}"), 7);
        assert_eq!(middle_of_last_line(b""), 0);
    }
}
