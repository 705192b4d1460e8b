//! Connections to the API server by the first working route.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use tokio::time::timeout;
use tower::{BoxError, Service, ServiceExt as _};

use super::bootstrap::{ApiRoute, Routes};

/// Time limit for a connection by one of several routes.
const ONE_ROUTE: Duration = Duration::from_secs(3);
/// Time limit for a connection by the only route. SYNs are sent after 0, 1, 3, 7 and 15 s: a
/// network that drops packets until it is up gets the third one in time.
const ONLY_ROUTE: Duration = Duration::from_secs(5);
/// TCP keepalive: idle time, interval and number of probes. Without it, a peer without power, or a
/// NAT that forgot the connection, would go unnoticed forever.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(10), 3);

/// Connects by the first working route. TLS above it always asks for the name in the URL.
#[derive(Clone, Debug)]
pub(super) struct Dial {
    http: HttpConnector,
    routes: Routes,
}

impl Dial {
    pub(super) fn new(routes: Routes) -> Self {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        let (silence, interval, retries) = KEEPALIVE;
        http.set_keepalive(Some(silence));
        http.set_keepalive_interval(Some(interval));
        http.set_keepalive_retries(Some(retries));
        // Unacknowledged data needs a limit of its own.
        http.set_tcp_user_timeout(Some(silence + interval * retries));
        Self { http, routes }
    }
}

type Connection = <HttpConnector as Service<Uri>>::Response;

impl Service<Uri> for Dial {
    type Response = Connection;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Connection, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let Self { http, routes } = self.clone();
        Box::pin(async move {
            let order = routes.in_order();
            let several = order.len() > 1;
            let mut failure = BoxError::from("there is no route to it");
            for route in order {
                let connecting = http.clone().oneshot(address(&url, route)?);
                let longest = if several { ONE_ROUTE } else { ONLY_ROUTE };
                match timeout(longest, connecting).await.map_err(BoxError::from) {
                    Ok(Ok(connection)) => {
                        routes.connected(route);
                        return Ok(connection);
                    }
                    Ok(Err(error)) => failure = error.into(),
                    Err(late) => failure = late,
                }
            }
            Err(failure)
        })
    }
}

fn address(url: &Uri, route: ApiRoute) -> Result<Uri, BoxError> {
    match route {
        ApiRoute::Url => Ok(url.clone()),
        ApiRoute::Endpoint(endpoint) => {
            let scheme = url.scheme_str().unwrap_or("https");
            Ok(Uri::builder()
                .scheme(scheme)
                .authority(endpoint.to_string())
                .path_and_query("/")
                .build()?)
        }
    }
}
