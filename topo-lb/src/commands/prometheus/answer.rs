//! An answer to an instant query (`/api/v1/query`).

use std::collections::BTreeMap;
use std::sync::Arc;

use http::StatusCode;
use serde::Deserialize;

use super::{PrometheusError, RENAMED};
use topo_lb_common::backend::Locality;
use topo_lb_core::cluster::ServiceId;
use topo_lb_core::metrics;

/// Most characters that are quoted of a server's message.
const QUOTED: usize = 300;

/// What it says.
#[derive(Debug, PartialEq)]
pub(super) struct Answer {
    pub(super) samples: Vec<Sample>,
    /// Why it may be partial.
    pub(super) warnings: Vec<String>,
}

/// One sample, with the labels that it has.
#[derive(Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) node: Option<Arc<str>>,
    pub(super) service: Option<ServiceId>,
    pub(super) port: Option<Arc<str>>,
    /// `None` for an unknown one, too: an agent of another version may have more.
    pub(super) locality: Option<Locality>,
    pub(super) value: f64,
}

/// Why an answer has no samples.
#[derive(Debug, PartialEq)]
pub(super) enum Fault {
    Unauthorized,
    Forbidden,
    /// It says why.
    Refused(String),
    /// What is in front of it, or itself, is broken.
    Away(StatusCode),
    /// This is no answer of a Prometheus.
    Other(StatusCode),
}

impl Fault {
    pub(super) fn at(self, url: String) -> PrometheusError {
        match self {
            Self::Unauthorized => PrometheusError::Unauthorized(url),
            Self::Forbidden => PrometheusError::Forbidden(url),
            Self::Refused(reason) => PrometheusError::Refused(url, reason),
            Self::Away(status) => PrometheusError::Away(url, status),
            Self::Other(status) => PrometheusError::NotPrometheus(url, status),
        }
    }
}

#[derive(Deserialize)]
struct Json {
    status: String,
    data: Option<Data>,
    error: Option<String>,
    #[serde(default)]
    warnings: Vec<String>,
}

#[derive(Deserialize)]
#[serde(tag = "resultType", content = "result", rename_all = "lowercase")]
enum Data {
    Vector(Vec<Element>),
}

#[derive(Deserialize)]
struct Element {
    metric: BTreeMap<String, Arc<str>>,
    /// The time, and the value as text.
    value: (f64, String),
}

/// Reads the body of an answer with this status.
pub(super) fn read(status: StatusCode, body: &[u8]) -> Result<Answer, Fault> {
    match status {
        StatusCode::UNAUTHORIZED => return Err(Fault::Unauthorized),
        StatusCode::FORBIDDEN => return Err(Fault::Forbidden),
        _ => {}
    }
    let unknown = || match status.is_server_error() {
        true => Fault::Away(status),
        false => Fault::Other(status),
    };
    let json: Json = serde_json::from_slice(body).map_err(|_| unknown())?;
    match (&*json.status, json.data) {
        ("success", Some(Data::Vector(elements))) if status.is_success() => {
            let samples = elements.into_iter().filter_map(sample).collect();
            let warnings = json.warnings.iter().map(|text| quoted(text)).collect();
            Ok(Answer { samples, warnings })
        }
        ("error", _) => Err(Fault::Refused(quoted(json.error.as_deref().unwrap_or("no reason")))),
        _ => Err(unknown()),
    }
}

/// A message of others, with nothing in it that a terminal would act on.
fn quoted(text: &str) -> String {
    text.chars().take(QUOTED).map(|one| if one.is_control() { ' ' } else { one }).collect()
}

fn sample(Element { metric, value: (_, value) }: Element) -> Option<Sample> {
    let label = |name: &str| metric.get(name).filter(|value| !value.is_empty());
    let of_agent = |name: &str| label(&format!("{RENAMED}{name}")).or_else(|| label(name));
    let service = of_agent("namespace").zip(of_agent("service"));
    let service = service.map(|(namespace, name)| ServiceId {
        namespace: Arc::clone(namespace),
        name: Arc::clone(name),
    });
    Some(Sample {
        node: label("node").cloned(),
        service,
        port: label("port").cloned(),
        locality: label("locality").and_then(|name| metrics::locality(name)),
        value: value.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OK: StatusCode = StatusCode::OK;

    fn vector(elements: &str) -> String {
        format!(r#"{{"status":"success","data":{{"resultType":"vector","result":[{elements}]}}}}"#)
    }

    fn one(metric: &str, value: &str) -> Sample {
        let text = vector(&format!(r#"{{"metric":{metric},"value":[1700000000.5,"{value}"]}}"#));
        read(OK, text.as_bytes()).expect("an answer").samples.remove(0)
    }

    #[test]
    fn a_sample_is_of_a_service_port_and_a_node() {
        let sample = one(
            r#"{"node":"n1","namespace":"shop","service":"web","port":"http","locality":"zone"}"#,
            "12.5",
        );
        let service = ServiceId { namespace: "shop".into(), name: "web".into() };
        let wanted = Sample {
            node: Some("n1".into()),
            service: Some(service),
            port: Some("http".into()),
            locality: Some(Locality::Zone),
            value: 12.5,
        };
        assert_eq!(sample, wanted);
    }

    #[test]
    fn a_job_that_does_not_honour_labels_is_understood() {
        let metric = r#"{"namespace":"topo-lb","exported_namespace":"shop","service":"web"}"#;
        let service = one(metric, "1").service.expect("a Service");
        assert_eq!((&*service.namespace, &*service.name), ("shop", "web"));
    }

    #[test]
    fn labels_that_are_missing_or_unknown_are_none() {
        let wanted =
            Sample { node: None, service: None, port: None, locality: None, value: f64::INFINITY };
        assert_eq!(one(r#"{"node":"","namespace":"a","locality":"moon"}"#, "+Inf"), wanted);
    }

    #[test]
    fn bad_answers_are_told_apart() {
        let matrix = r#"{"status":"success","data":{"resultType":"matrix","result":[]}}"#;
        let refused =
            r#"{"status":"error","errorType":"timeout","error":"query timed out\u001b[2J"}"#;
        let refusal = Fault::Refused("query timed out [2J".to_owned());
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        for (status, body, fault) in [
            (OK, "", Fault::Other(OK)),
            (OK, "<html>", Fault::Other(OK)),
            (OK, "{}", Fault::Other(OK)),
            (OK, "[]", Fault::Other(OK)),
            (OK, r#"{"status":"success"}"#, Fault::Other(OK)),
            (OK, matrix, Fault::Other(OK)),
            (OK, &*vector(r#"{"metric":{},"value":[1]}"#), Fault::Other(OK)),
            (StatusCode::NOT_FOUND, "404 page not found", Fault::Other(StatusCode::NOT_FOUND)),
            (StatusCode::FOUND, "", Fault::Other(StatusCode::FOUND)),
            (StatusCode::UNAUTHORIZED, "", Fault::Unauthorized),
            (StatusCode::FORBIDDEN, &*vector(""), Fault::Forbidden),
            (unavailable, "no healthy upstream", Fault::Away(unavailable)),
            (unavailable, &*vector(""), Fault::Away(unavailable)),
            (unavailable, refused, refusal),
        ] {
            assert_eq!(read(status, body.as_bytes()), Err(fault), "{status} {body}");
        }
    }

    #[test]
    fn a_value_that_is_no_number_is_left_out_and_warnings_are_kept() {
        let text = vector(r#"{"metric":{},"value":[1,"x"]}"#)
            .replace(r#"{"status""#, r#"{"warnings":["store 3 is away"],"status""#);
        let wanted = Answer { samples: Vec::new(), warnings: vec!["store 3 is away".to_owned()] };
        assert_eq!(read(OK, text.as_bytes()), Ok(wanted));
    }
}
