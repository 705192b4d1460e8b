//! Asks one agent for its metrics.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use http::Request;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use tokio::time::timeout;

use super::scraped::{self, Scraped};
use topo_lb_kube::source::kube::{KubeTarget, Server, connect, in_words, refusal};

/// How long an agent may take.
pub(super) const LIMIT: Duration = Duration::from_secs(5);
/// Most bytes of an agent's metrics. Series of 10,000 Service ports have some 25 MB.
const LARGEST: usize = 32_000_000;
/// Most bytes of a refusal, which becomes a sentence.
const LARGEST_REFUSAL: usize = 4_000;

/// When an agent began to answer and what it has counted, or why it could not be asked.
pub(super) type Answer = Result<(Instant, Scraped), String>;

/// An agent that answers at a path of a server.
#[derive(Clone)]
pub(crate) struct Agent {
    /// Its node, or its URL.
    pub(super) name: Arc<str>,
    pub(super) server: Server,
    pub(super) path: String,
}

impl Agent {
    /// The agent with this URL.
    pub(super) async fn at(url: &str) -> anyhow::Result<Self> {
        let server = connect(&KubeTarget::Server(url.to_owned())).await;
        let server = server.with_context(|| format!("the agent {url}"))?;
        Ok(Self { name: url.into(), server, path: "/metrics".to_owned() })
    }

    pub(super) async fn answer(&self) -> Answer {
        let (when, text) = self.text().await?;
        Ok((when, scraped::answer(&text)?))
    }

    async fn text(&self) -> Result<(Instant, String), String> {
        let answer = timeout(LIMIT, self.read()).await;
        answer.unwrap_or_else(|_| Err(format!("no answer within {} s", LIMIT.as_secs())))
    }

    async fn read(&self) -> Result<(Instant, String), String> {
        let request = Request::get(&self.path).body(Vec::new()).map_err(|it| it.to_string())?;
        let response = self.server.client().send(request.map(Into::into)).await;
        let response = response.map_err(|error| in_words(&error))?;
        // An agent reads its counters before it sends the first byte.
        let when = Instant::now();
        let status = response.status();
        let most = if status.is_success() { LARGEST } else { LARGEST_REFUSAL };
        let body = Limited::new(response.into_body(), most).collect().await;
        let body = body.map_err(|error| {
            if error.is::<LengthLimitError>() {
                format!("its answer ({status}) has more than {most} bytes")
            } else {
                error.to_string()
            }
        })?;
        if !status.is_success() {
            return Err(in_words(&refusal(status, &body.to_bytes())));
        }
        let text = String::from_utf8(body.to_bytes().into()).map_err(|error| error.to_string())?;
        Ok((when, text))
    }
}

/// The metrics of the agent with this URL, such as `http://127.0.0.1:19876`.
///
/// # Errors
/// It does not answer, or with more than 32 MB.
pub async fn metrics(url: &str) -> anyhow::Result<String> {
    get(url, "/metrics").await
}

/// What the agent with this URL answers at this path.
///
/// # Errors
/// As [`metrics`].
pub async fn get(url: &str, path: &str) -> anyhow::Result<String> {
    let agent = Agent { path: path.to_owned(), ..Agent::at(url).await? };
    let answer = agent.text().await;
    answer.map(|(_, text)| text).map_err(anyhow::Error::msg)
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::{Body, Bytes};
    use futures::{StreamExt as _, stream};
    use http::{Response, StatusCode};
    use tokio::net::TcpListener;

    use super::*;

    /// What is said of an agent that answers with chunks of 1 MB without end.
    async fn endless(status: StatusCode) -> String {
        let answer = async move || {
            let chunk = Bytes::from_static(&[b'#'; 1_000_000]);
            let chunks = stream::repeat(chunk).map(Ok::<_, std::convert::Infallible>);
            Response::builder().status(status).body(Body::from_stream(chunks)).expect("a response")
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let router = Router::new().fallback(answer);
        tokio::spawn(axum::serve(listener, router).into_future());
        metrics(&url).await.expect_err("an end").to_string()
    }

    #[tokio::test]
    async fn an_answer_without_end_is_refused() {
        let told = endless(StatusCode::OK).await;
        assert_eq!(told, "its answer (200 OK) has more than 32000000 bytes");
        let told = endless(StatusCode::NOT_FOUND).await;
        assert_eq!(told, "its answer (404 Not Found) has more than 4000 bytes");
    }
}
