//! Connections to the API server, by whatever route leads to it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use tokio::time::timeout;
use tower::{BoxError, Service, ServiceExt as _};

use super::bootstrap::{ApiRoute, Routes};

/// Longest wait for a connection by one of several routes.
const ONE_ROUTE: Duration = Duration::from_secs(3);
/// Longest wait for a connection by the only route. A network that drops packets until it is up hears
/// the third one after 3 s; the next one would come only 4 s later, and the one after that 8 s later.
const ONLY_ROUTE: Duration = Duration::from_secs(5);
/// A peer is asked whether it is still there after so much silence, so often, and so many times:
/// without it, a host that lost its power, or a NAT that forgot the connection, is silent for ever.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(10), 3);

/// Connects by the first route that leads anywhere. TLS, above it, asks for the name in the URL
/// whichever it was.
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
        // What was sent and is not acknowledged has a limit of its own.
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
