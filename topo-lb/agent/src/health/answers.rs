//! The answers to load balancers: the status, fields and headers of pkg/proxy/healthcheck of Kubernetes
//! 1.36. Kubernetes 1.20 has fewer fields and no weight. Pure.

use std::collections::BTreeMap;
use std::time::SystemTime;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use topo_lb_core::cluster::ServiceId;

const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");
const NO_SNIFF: (HeaderName, &str) = (header::X_CONTENT_TYPE_OPTIONS, "nosniff");
const JSON: (HeaderName, &str) = (header::CONTENT_TYPE, "application/json");
/// Go's zero time.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// The body of an answer about a Service (`service_health.go`).
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OfService<'a> {
    service: &'a ServiceId,
    local_endpoints: usize,
    service_proxy_healthy: bool,
}

/// The body of an answer about the node (`proxy_health.go`).
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OfNode {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    status: BTreeMap<&'static str, OfFamily>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OfFamily {
    last_updated: String,
    healthy: bool,
}

/// What an answer about the node is made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Health {
    /// The time of the answer.
    pub(super) now: SystemTime,
    /// When the maps were last written; `None`: not by this agent.
    pub(super) updated: Option<SystemTime>,
    /// Whether the node forwards connections by a state that is fresh enough.
    pub(super) is_healthy: bool,
}

/// The answer about a Service with so many `local` endpoints that a load balancer can reach through
/// this node.
pub(super) fn of_service(id: &ServiceId, local: usize, is_healthy: bool) -> Response {
    let body = OfService { service: id, local_endpoints: local, service_proxy_healthy: is_healthy };
    let mut answer = json(local > 0 && is_healthy, &body);
    answer.headers_mut().insert(WEIGHT, HeaderValue::from(local));
    answer
}

/// The answer to `/healthz`, where `eligible` says that the Node is not about to leave; to `/livez`,
/// which does not depend on that, with `None`.
pub(super) fn of_node(health: Health, eligible: Option<bool>) -> Response {
    let Health { now, updated, is_healthy: healthy } = health;
    let is_good = healthy && eligible != Some(false);
    let text = |time| match Timestamp::try_from(time) {
        Ok(time) => time.to_string(),
        Err(_) => NEVER.to_owned(),
    };
    let updated = updated.map(text);
    let family = |updated: &String| OfFamily { last_updated: updated.clone(), healthy };
    let families = updated.iter().flat_map(|it| ["IPv4", "IPv6"].map(|name| (name, family(it))));
    let body = OfNode {
        status: families.collect(),
        // kube-proxy, too, says the current time here while all is well.
        last_updated: match updated {
            _ if is_good => text(now),
            Some(updated) => updated,
            None => NEVER.to_owned(),
        },
        current_time: text(now),
        node_eligible: eligible,
        healthy,
    };
    json(is_good, &body)
}

fn json(is_good: bool, body: &impl Serialize) -> Response {
    let status = if is_good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    match serde_json::to_vec(body) {
        Ok(text) => (status, [JSON, NO_SNIFF], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body_util::BodyExt as _;

    use super::*;

    /// Status, weight and body. Each answer has the headers that all have.
    async fn read(answer: Response) -> (u16, Option<String>, String) {
        let headers = answer.headers();
        let of = |name: HeaderName| headers.get(name).map(|it| it.to_str().unwrap().to_owned());
        assert_eq!(of(header::CONTENT_TYPE).as_deref(), Some("application/json"));
        assert_eq!(of(header::X_CONTENT_TYPE_OPTIONS).as_deref(), Some("nosniff"));
        let (status, weight) = (answer.status().as_u16(), of(WEIGHT));
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, weight, String::from_utf8(body.into()).unwrap())
    }

    /// The steps of `TestServer`, pkg/proxy/healthcheck/healthcheck_test.go.
    #[tokio::test]
    async fn a_service_is_healthy_here_with_an_endpoint_and_a_healthy_proxy() {
        let id = ServiceId { namespace: "a".into(), name: "b".into() };
        for (local, is_healthy, status) in
            [(0, true, 503), (18, true, 200), (18, false, 503), (0, false, 503)]
        {
            let body = format!(
                r#"{{"service":{{"namespace":"a","name":"b"}},"localEndpoints":{local},"serviceProxyHealthy":{is_healthy}}}"#
            );
            let said = read(of_service(&id, local, is_healthy)).await;
            assert_eq!(said, (status, Some(local.to_string()), body));
        }
    }

    /// The bodies of `TestHealthzServer` and `TestLivezServer`.
    #[tokio::test]
    async fn a_node_is_healthy_if_it_forwards_and_stays() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let now = at(1_000_000_090);
        let [then_text, now_text] = ["2001-09-09T01:46:40Z", "2001-09-09T01:48:10Z"];
        let health = |is_healthy| Health { now, updated: Some(at(1_000_000_000)), is_healthy };
        for (is_healthy, eligible, status) in [
            (true, None, 200),
            (true, Some(true), 200),
            (true, Some(false), 503),
            (false, None, 503),
            (false, Some(true), 503),
            (false, Some(false), 503),
        ] {
            let said = if status == 200 { now_text } else { then_text };
            let of_node_part = match eligible {
                Some(is) => format!(r#","nodeEligible":{is}"#),
                None => String::new(),
            };
            let family = format!(r#"{{"lastUpdated":"{then_text}","healthy":{is_healthy}}}"#);
            let body = format!(
                r#"{{"lastUpdated":"{said}","currentTime":"{now_text}"{of_node_part},"healthy":{is_healthy},"status":{{"IPv4":{family},"IPv6":{family}}}}}"#
            );
            assert_eq!(read(of_node(health(is_healthy), eligible)).await, (status, None, body));
        }
    }

    #[tokio::test]
    async fn before_the_first_write_no_family_has_a_status() {
        let now = SystemTime::UNIX_EPOCH;
        let health = Health { now, updated: None, is_healthy: false };
        let body = r#"{"lastUpdated":"0001-01-01T00:00:00Z","currentTime":"1970-01-01T00:00:00Z","healthy":false}"#;
        assert_eq!(read(of_node(health, None)).await, (503, None, body.to_owned()));
    }
}
