//! What time it is by the API server, of which agents' clocks are as a rule not far.

use http::Request;
use http::header::DATE;
use k8s_openapi::jiff::fmt::rfc2822;

use crate::source::kube::Server;

/// Seconds since 1970, UTC, as the header `Date` of an answer says, be it a refusal; `None` if it does not.
///
/// # Errors
/// The API server does not answer.
pub async fn now(server: &Server) -> kube::Result<Option<i64>> {
    let request = Request::get("/version").body(kube::client::Body::empty());
    let request = request.map_err(kube::Error::HttpError)?;
    let answer = server.client().send(request).await?;
    let date = answer.headers().get(DATE).and_then(|it| it.to_str().ok());
    // The date of HTTP is one of mail, in GMT (RFC 9110, section 5.6.7).
    Ok(date.and_then(|it| rfc2822::parse(it).ok()).map(|it| it.timestamp().as_second()))
}
