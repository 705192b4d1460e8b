//! Errors of requests to an API server.

use std::io;
use std::path::PathBuf;

use ::kube::core::Status;
use http::StatusCode;
use topo_lb_core::flag::{API_SERVER, KUBECONFIG, MANIFESTS};

/// Why an API server does not serve. May be temporary, except in [`connect`](super::connect()).
#[derive(Debug, thiserror::Error)]
pub enum KubeError {
    /// A kubeconfig is unusable.
    #[error("cannot use kubeconfig {path}: {reason}")]
    Kubeconfig {
        /// Which file, or several with colons between.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// The ServiceAccount's files and variables in a Pod are unusable.
    #[error(
        "cannot use this Pod's ServiceAccount ({0}): set automountServiceAccountToken, or name \
         another way to the API server with {KUBECONFIG} or {API_SERVER}"
    )]
    InCluster(String),
    /// Not in a Pod, and no cluster is named.
    #[error(
        "this is no Pod, and no cluster is named: name one with {KUBECONFIG}, {API_SERVER} or \
         KUBECONFIG, or files with {MANIFESTS}"
    )]
    Nowhere,
    /// Not a URL.
    #[error("{0:?} is not the URL of an API server: write it like http://127.0.0.1:8080")]
    Url(String),
    /// Certificates, keys or proxy settings are unusable.
    #[error("cannot prepare connections to the API server at {url}: {reason}")]
    Client {
        /// The server.
        url: String,
        /// The cause.
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
        /// The system's error.
        reason: String,
    },
    /// Its certificate is not trusted, or it does not speak TLS.
    #[error(
        "no secure connection to the API server at {url} ({reason}): check its certificate, and \
         the certificate authority that the kubeconfig names"
    )]
    Insecure {
        /// The server.
        url: String,
        /// The TLS error.
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
        /// The server's message.
        message: String,
    },
    /// HTTP 403.
    #[error(
        "the API server at {url} does not let topo-lb {verb} {resource} ({message}): allow the \
         verbs list and watch on {resource} to its ServiceAccount or user"
    )]
    Forbidden {
        /// The server.
        url: String,
        /// `list` or `watch`.
        verb: &'static str,
        /// Plural name, and the API group if it has one.
        resource: String,
        /// The server's message.
        message: String,
    },
    /// HTTP 403 to a list of all Nodes, by an agent that watches its own Node.
    #[error(
        "the API server at {url} does not let this agent list all Nodes ({message}): the agent watches \
         only its own Node, and Services that need labels of other Nodes wait; give its ClusterRole \
         the rule apiGroups: [\"\"], resources: [nodes], verbs: [list, watch]"
    )]
    AllNodesForbidden {
        /// The server.
        url: String,
        /// The server's message.
        message: String,
    },
    /// Any other unsuccessful status.
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
        /// The server's message.
        message: String,
    },
    /// An answer that cannot be parsed.
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
        /// The parser's error.
        reason: String,
    },
}

impl KubeError {
    /// The error for a request for all Nodes, after which the agent continues with its own Node.
    pub(super) fn of_all_nodes(self) -> Self {
        match self {
            Self::Forbidden { url, message, .. } => Self::AllNodesForbidden { url, message },
            other => other,
        }
    }

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
                if is_insecure(error) {
                    Self::Insecure { url, reason }
                } else {
                    Self::Unreachable { url, reason }
                }
            }
        }
    }
}

/// Whether the server does not have the resource in this version.
pub(super) fn is_missing(error: &::kube::Error) -> bool {
    matches!(error, ::kube::Error::Api(status) if status.code == 404)
}

pub(super) fn is_unintelligible(error: &::kube::Error) -> bool {
    matches!(error, ::kube::Error::SerdeError(_) | ::kube::Error::FromUtf8(_))
}

/// Whether the server closed an idle connection while a request was written to it.
pub(super) fn is_hang_up(error: &::kube::Error) -> bool {
    causes(error).any(|it| it.downcast_ref().is_some_and(hyper::Error::is_incomplete_message))
}

/// The error in an unsuccessful answer with this text.
pub fn refusal(code: StatusCode, text: &[u8]) -> ::kube::Error {
    let status = serde_json::from_slice(text).unwrap_or_else(|_| {
        // Proxies answer with other texts.
        let text = String::from_utf8_lossy(text);
        Status::failure(text.trim(), "Failed to parse error data").with_code(code.as_u16())
    });
    ::kube::Error::Api(Box::new(status))
}

/// Whether the requested version has expired, so that a new listing is needed.
pub(super) fn is_gone(error: &::kube::Error) -> bool {
    matches!(error, ::kube::Error::Api(status) if status.code == 410)
}

pub(super) fn is_forbidden(error: &::kube::Error) -> bool {
    matches!(error, ::kube::Error::Api(status) if status.code == 403)
}

/// Whether the answer may be that of a server that is starting, overloaded or without its database.
/// A freshly started one knows neither tokens nor roles.
pub(super) fn is_passing(error: &::kube::Error) -> bool {
    matches!(error, ::kube::Error::Api(status) if matches!(status.code, 401 | 403 | 429 | 500..=599))
}

/// The status, if it is the same for all requests of this agent.
pub(super) fn overload(error: &::kube::Error) -> Option<u16> {
    match error {
        ::kube::Error::Api(status) if matches!(status.code, 429 | 500..=599) => Some(status.code),
        _ => None,
    }
}

/// Whether TLS failed: rustls' error type at any depth, or the server closed the connection while
/// it was made, which is possible only once TLS has begun.
pub fn is_insecure(error: &::kube::Error) -> bool {
    let is_connect = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref().is_some_and(hyper_util::client::legacy::Error::is_connect)
    };
    let hung_up = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref().is_some_and(|it: &io::Error| it.kind() == io::ErrorKind::UnexpectedEof)
    };
    causes(error).any(|cause| cause.is::<rustls::Error>())
        || causes(error).any(is_connect) && causes(error).any(hung_up)
}

/// Most letters of a message: proxies answer with whole pages.
const LONGEST: usize = 200;

/// Why one request, to a Pod through an API server or to any server, has no answer: a few words.
pub fn in_words(error: &::kube::Error) -> String {
    /// What API servers say of a Pod that they cannot reach.
    const PROXIED: &str = "error trying to reach service: ";
    let ::kube::Error::Api(status) = error else {
        // "Connection refused (os error 111)".
        let cause = innermost(error);
        let cause = cause.split(" (os error").next().unwrap_or_default();
        return format!("no answer ({})", cause.to_lowercase());
    };
    let message: String = status.message.trim().replace('\n', " ").chars().take(LONGEST).collect();
    match (status.code, message.split_once(PROXIED)) {
        // "dial tcp 10.0.0.1:19876: connect: connection refused".
        (_, Some((_, cause))) => {
            format!("no answer ({})", cause.rsplit(": ").next().unwrap_or(cause))
        }
        (403, None) => format!("not allowed ({message})"),
        (code, None) => format!("it answers {code} ({message})"),
    }
}

/// The root cause: the layers above say only that a request failed.
pub fn innermost(error: &::kube::Error) -> String {
    causes(error).last().map(ToString::to_string).unwrap_or_default()
}

fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| {
        // `source` of an io::Error skips its inner error, so take that first.
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        }
    })
}

#[cfg(test)]
mod tests {
    use rustls::{AlertDescription, CertificateError};

    use super::*;

    /// A failed connection: this error below the layers of kube and io.
    fn of(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> KubeError {
        let error = io::Error::new(io::ErrorKind::InvalidData, error);
        let error = ::kube::Error::Service(Box::new(io::Error::other(error)));
        KubeError::of(&error, "https://10.96.0.1", "list", "nodes".into())
    }

    #[test]
    fn why_a_pod_has_no_answer_takes_few_words() {
        let status = |code, message: &str| {
            let status = ::kube::core::Status::failure(message, "Test").with_code(code);
            in_words(&::kube::Error::Api(Box::new(status)))
        };
        let refused =
            "error trying to reach service: dial tcp 10.0.0.1:19876: connect: connection refused";
        assert_eq!(status(503, refused), "no answer (connection refused)");
        assert_eq!(status(502, "error trying to reach service: EOF"), "no answer (EOF)");
        let forbidden = "pods \"a\" is forbidden: User \"me\" cannot get resource \"pods/proxy\"";
        assert_eq!(status(403, forbidden), format!("not allowed ({forbidden})"));
        assert_eq!(status(404, "page\nnot found\n"), "it answers 404 (page not found)");
        assert_eq!(status(500, &"ä".repeat(9_999)).chars().count(), LONGEST + 17);
        let refused = io::Error::from_raw_os_error(rustix::io::Errno::CONNREFUSED.raw_os_error());
        let refused = ::kube::Error::Service(Box::new(refused));
        assert_eq!(in_words(&refused), "no answer (connection refused)");
    }

    #[test]
    fn tls_is_known_by_the_type_of_its_errors() {
        for error in [
            rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer),
            // The texts of these do not mention TLS.
            rustls::Error::AlertReceived(AlertDescription::HandshakeFailure),
            rustls::Error::DecryptError,
        ] {
            let error = of(error);
            assert!(matches!(error, KubeError::Insecure { .. }), "{error}");
        }
        let words =
            of(rustls::Error::AlertReceived(AlertDescription::HandshakeFailure)).to_string();
        assert!(words.contains("(received fatal alert: "), "{words}");
    }

    #[test]
    fn words_alone_are_not_tls() {
        for words in ["no such host: tls.example", "the certificate service is away"] {
            let error = of(words);
            assert!(matches!(error, KubeError::Unreachable { .. }), "{error}");
        }
    }
}
