//! What goes wrong with an API server, in sentences.

use std::error::Error as _;
use std::path::PathBuf;

/// Why an API server does not serve. Every one of them may be over a moment later, except for
/// those of [`connect`](super::connect()).
#[derive(Debug, thiserror::Error)]
pub enum KubeError {
    /// A kubeconfig is unusable.
    #[error("cannot use kubeconfig {path}: {reason}")]
    Kubeconfig {
        /// Which file, or several with colons between.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The files and variables that every Pod has are unusable.
    #[error(
        "cannot use this Pod's ServiceAccount ({0}): set automountServiceAccountToken, or name \
         another way to the API server with --kubeconfig or --api-server"
    )]
    InCluster(String),
    /// Neither in a Pod nor told otherwise.
    #[error(
        "this is no Pod, and no cluster is named: name one with --kubeconfig, --api-server or \
         KUBECONFIG, or files with --manifests"
    )]
    Nowhere,
    /// Not an URL.
    #[error("{0:?} is not the URL of an API server: write it like http://127.0.0.1:8080")]
    Url(String),
    /// Certificates, keys or proxy settings are unusable.
    #[error("cannot prepare connections to the API server at {url}: {reason}")]
    Client {
        /// The server.
        url: String,
        /// Why.
        reason: String,
    },
    /// No connection.
    #[error(
        "cannot reach the API server at {url} ({reason}): check the address, that the server runs, \
         and that it can be reached from here"
    )]
    Unreachable {
        /// The server.
        url: String,
        /// What the system says.
        reason: String,
    },
    /// Its certificate is not trusted, or it speaks no TLS.
    #[error(
        "no secure connection to the API server at {url} ({reason}): check its certificate, and \
         the certificate authority that the kubeconfig names"
    )]
    Insecure {
        /// The server.
        url: String,
        /// What TLS says.
        reason: String,
    },
    /// HTTP 401.
    #[error(
        "the API server at {url} does not accept this agent's credentials ({message}): check the \
         token or the client certificate"
    )]
    Unauthorized {
        /// The server.
        url: String,
        /// What it says.
        message: String,
    },
    /// HTTP 403.
    #[error(
        "the API server at {url} does not let this agent {verb} {resource} ({message}): allow the \
         verbs list and watch on {resource} to its ServiceAccount or user"
    )]
    Forbidden {
        /// The server.
        url: String,
        /// `list` or `watch`.
        verb: &'static str,
        /// Plural name, and the API group if it has one.
        resource: String,
        /// What it says.
        message: String,
    },
    /// Any other answer that is no success.
    #[error("the API server at {url} answers {code} to {verb} {resource}: {message}")]
    Refused {
        /// The server.
        url: String,
        /// HTTP status.
        code: u16,
        /// `list` or `watch`.
        verb: &'static str,
        /// Plural name, and the API group if it has one.
        resource: String,
        /// What it says.
        message: String,
    },
    /// An answer that does not look like one.
    #[error(
        "the API server at {url} answers to {verb} {resource} what is not understood: {reason}"
    )]
    Unintelligible {
        /// The server.
        url: String,
        /// `list` or `watch`.
        verb: &'static str,
        /// Plural name, and the API group if it has one.
        resource: String,
        /// Why it is not understood.
        reason: String,
    },
}

impl KubeError {
    /// What became of a request.
    pub(super) fn of(
        error: &::kube::Error,
        url: &str,
        verb: &'static str,
        resource: String,
    ) -> Self {
        let url = url.to_owned();
        match error {
            ::kube::Error::Api(status) => {
                let message = status.message.trim().replace('\n', " ");
                match status.code {
                    401 => Self::Unauthorized { url, message },
                    403 => Self::Forbidden { url, verb, resource, message },
                    code => Self::Refused { url, code, verb, resource, message },
                }
            }
            ::kube::Error::SerdeError(_)
            | ::kube::Error::FromUtf8(_)
            | ::kube::Error::LinesCodecMaxLineLengthExceeded => {
                Self::Unintelligible { url, verb, resource, reason: error.to_string() }
            }
            _ => {
                let reason = innermost(error);
                if is_insecure(&reason) {
                    Self::Insecure { url, reason }
                } else {
                    Self::Unreachable { url, reason }
                }
            }
        }
    }
}

/// Whether this, from the bottom, is about TLS.
pub(super) fn is_insecure(reason: &str) -> bool {
    ["certificate", "TLS", "tls", "corrupt message"].iter().any(|word| reason.contains(word))
}

/// What lies at the bottom: the layers above say only that a request failed.
pub(super) fn innermost(error: &::kube::Error) -> String {
    let mut reason = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        reason = source.to_string();
        next = source.source();
    }
    reason
}
