//! Why a Prometheus does not tell what agents have counted.

use std::path::PathBuf;
use std::time::Duration;

use http::StatusCode;
use thiserror::Error;

use topo_lb_kube::source::kube::{innermost, is_insecure};

/// Why there are no figures. Each has the URL first, if it has one.
#[derive(Debug, Error)]
pub enum PrometheusError {
    /// Not a URL, or one with a query.
    #[error("{0:?} is not the URL of a Prometheus: write it like http://prometheus.example:9090")]
    Url(String),
    /// The file of the token cannot be used.
    #[error("the token file {} cannot be used: {}", .0.display(), .1)]
    Token(PathBuf, String),
    /// The system's certificates cannot be used.
    #[error("cannot prepare connections to {0}: {1}")]
    Client(String, String),
    /// No connection, or it broke.
    #[error(
        "cannot reach the Prometheus at {0} ({1}): check the address, and that it can be reached from here"
    )]
    Unreachable(String, String),
    /// Its certificate is not trusted, or it does not speak TLS.
    #[error(
        "no secure connection to {0} ({1}): check its certificate; SSL_CERT_FILE names authorities beside the \
         system's"
    )]
    Insecure(String, String),
    /// It is too slow.
    #[error("the Prometheus at {} did not answer within {} s: try a shorter --over", .0, .1.as_secs())]
    Late(String, Duration),
    /// HTTP 401.
    #[error(
        "{0} asks who you are (401): give a bearer token by --prometheus-token-file, or check the one given"
    )]
    Unauthorized(String),
    /// HTTP 403.
    #[error("{0} does not let you query (403): the token needs the right to query metrics")]
    Forbidden(String),
    /// It refuses the query.
    #[error("the Prometheus at {0} refuses the query: {1}")]
    Refused(String, String),
    /// A status of 500 and above, without an answer.
    #[error("the Prometheus at {0} is away: it answers {1}")]
    Away(String, StatusCode),
    /// No answer of a Prometheus.
    #[error(
        "{0} is no Prometheus: it answers {1}, but not as /api/v1/query does. Is a path missing, such as \
         /prometheus, or is it a page to log in?"
    )]
    NotPrometheus(String, StatusCode),
    /// More than is read, in MiB.
    #[error("the Prometheus at {0} answers with more than {1} MiB: this many series are not read")]
    TooLarge(String, usize),
    /// It has never heard of topo-lb in that time.
    #[error(
        "the Prometheus at {url} has no metrics of topo-lb in the last {over}: does it scrape the agents? \
         docs/metrics.md says how"
    )]
    NoMetrics {
        /// Its URL.
        url: String,
        /// The time.
        over: String,
    },
    /// It knows nothing of the time before.
    #[error(
        "the Prometheus at {url} has no metrics of topo-lb from before {over} ago, so nothing can be compared; {known}"
    )]
    Young {
        /// Its URL.
        url: String,
        /// The time.
        over: String,
        /// What it has, and what to do.
        known: String,
    },
}

impl PrometheusError {
    pub(super) fn of(error: &::kube::Error, url: String) -> Self {
        let reason = innermost(error);
        if is_insecure(error) {
            Self::Insecure(url, reason)
        } else {
            Self::Unreachable(url, reason)
        }
    }
}
