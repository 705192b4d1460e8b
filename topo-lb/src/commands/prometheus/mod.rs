//! What a Prometheus knows of agents: the bytes of the last while, by its HTTP API, for `plan`. Only reads.
//!
//! `answer` understands its answers: pure. `error` says why there is none. `since` asks for the bytes of before a
//! moment, and of since then.

mod answer;
mod error;
mod since;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use ::kube::Client;
use ::kube::client::Body;
use ::kube::config::Config;
use http::header::AUTHORIZATION;
use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use k8s_openapi::jiff::Timestamp;
use tokio::time::timeout;

use super::agent_metrics::DIRECT;
use answer::{Answer, Sample};
pub use error::PrometheusError;
use topo_lb_core::cluster::{ServiceId, State};
use topo_lb_core::explain::some;
use topo_lb_core::metrics::declared;
use topo_lb_core::what_if::{Figures, Moved, months};

/// How much one answer may take.
#[derive(Clone, Copy, Debug)]
struct Limits {
    time: Duration,
    /// In bytes.
    size: usize,
}

/// 1,000 nodes with 200 Service ports each at two distances have some 80 MB.
const LIMITS: Limits = Limits { time: Duration::from_secs(30), size: 256 << 20 };
/// Most names in a sentence.
const NAMED: usize = 5;
/// Every agent has this metric, whether it accounts or not.
const PRESENT: &str = declared::READY.name;
/// What is summed.
const BYTES: [&str; 2] = [declared::TCP_SENT_BYTES.name, declared::TCP_RECEIVED_BYTES.name];
/// A job without `honor_labels` renames labels of the agent that the target has, too.
const RENAMED: &str = "exported_";

/// A time up to now, as Prometheus writes it: `90m`. It is read from that, or from the moment at which it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Over(Arc<str>);

impl FromStr for Over {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.strip_suffix(['s', 'm', 'h', 'd', 'w']);
        match number.and_then(|number| number.parse::<u16>().ok()) {
            Some(1..) if text.starts_with(|first: char| first.is_ascii_digit()) => {
                Ok(Self(text.into()))
            }
            _ => match moment(text).map(|moment| Timestamp::now().duration_since(moment)) {
                Some(age) if age.as_secs() > 0 => Ok(Self(written(age.as_secs().unsigned_abs()))),
                Some(_) => Err("the moment is yet to come"),
                None => Err(
                    "write it as a number above 0 and one of s, m, h, d, w, such as 90m or 1d, or as the \
                             moment at which it begins, such as 2026-11-20 or 2026-11-20T08:00:00Z",
                ),
            },
        }
    }
}

/// A moment of RFC 3339, or the first one of a day in UTC.
fn moment(text: &str) -> Option<Timestamp> {
    text.parse().or_else(|_| format!("{text}T00:00:00Z").parse()).ok()
}

/// So many seconds as Prometheus writes them, cut off to minutes from an hour on, and to hours from two days on.
fn written(seconds: u64) -> Arc<str> {
    match seconds {
        0..3_600 => format!("{seconds}s"),
        3_600..172_800 => format!("{}m", seconds / 60),
        _ => format!("{}h", seconds / 3_600),
    }
    .into()
}

impl Over {
    /// As Prometheus writes it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// How many seconds.
    fn seconds(&self) -> u64 {
        months(&self.0).map_or(0, |months| (30.0 * 86_400.0 / months) as u64)
    }

    /// Twice this time.
    fn twice(&self) -> String {
        // Parsed: a number, and one letter.
        let (number, unit) = self.0.split_at(self.0.len() - 1);
        format!("{}{unit}", 2 * number.parse::<u32>().unwrap_or_default())
    }
}

/// Where a Prometheus is.
#[derive(Clone, Debug)]
pub struct Prometheus {
    /// Its URL, without `/api/v1`.
    pub url: String,
    /// A file with a bearer token for it.
    pub token_file: Option<PathBuf>,
    /// The time to sum over.
    pub over: Over,
}

impl Prometheus {
    /// What agents have counted, and sentences on what of it does not fit the cluster of `state`, or is
    /// missing.
    ///
    /// # Errors
    /// It does not answer, or has nothing of topo-lb.
    pub async fn figures(&self, state: &State) -> Result<(Figures, Vec<String>), PrometheusError> {
        self.figures_within(state, LIMITS).await
    }

    async fn figures_within(
        &self,
        state: &State,
        limits: Limits,
    ) -> Result<(Figures, Vec<String>), PrometheusError> {
        let mut asked = Asked { client: self.client()?, of: self, limits, doubts: Vec::new() };
        let over = &self.over.0;
        let nodes = asked.nodes(&Span { length: over, end: "", begin: over }.nodes()).await?;
        if nodes.is_empty() {
            return Err(PrometheusError::NoMetrics {
                url: self.url.clone(),
                over: over.to_string(),
            });
        }
        let first = asked.nodes(&format!("count by (node) ({PRESENT} offset {over})")).await?;
        let young = if first.is_empty() { asked.age().await?.map(written) } else { None };
        let known = young.as_ref().unwrap_or(over);
        // The range is the whole time: that of a very young one may have a single sample.
        let span = Span { length: over, end: "", begin: known };
        let mut all = Vec::new();
        for (metric, is_direct) in BYTES.iter().flat_map(|it| [(it, false), (it, true)]) {
            let samples = asked.samples(&span.bytes("node, port, ", metric, is_direct)).await?;
            all.extend(samples.into_iter().filter_map(|it| moved(it, is_direct)));
        }
        let mut figures = Figures::over(Arc::clone(known), all);
        let [known, unknown] = wider();
        for (service, port, count) in asked.ports(&known).await? {
            figures.count_wider(service, port, Some(count), 0);
        }
        for (service, port, nodes) in asked.ports(&unknown).await? {
            figures.count_wider(service, port, None, nodes);
        }
        let mut doubts = asked.doubts;
        doubts.extend(figures.doubts(state));
        let began = if young.is_some() { &nodes } else { &first };
        doubts.extend(self.missing(state, &nodes, began));
        doubts.extend(young.map(|age| {
            format!(
                "it has metrics of topo-lb of the last {age} alone, and not of {over}: a month is worked out from \
                 those"
            )
        }));
        Ok((figures, doubts))
    }

    /// Sentences on nodes without metrics, or with those of a part of the time.
    fn missing(&self, state: &State, nodes: &Nodes, first: &Nodes) -> Vec<String> {
        if nodes.contains(&None) {
            return vec![
                "its metrics do not say of which node they are: set the label node in the scrape job. Bytes \
                 follow the connections of all nodes"
                    .to_owned(),
            ];
        }
        let over = &self.over.0;
        let without = |known: &Nodes| -> BTreeSet<&str> {
            let names = state.nodes().map(|(name, _)| name);
            names.filter(|name| !known.contains(&Some((*name).into()))).collect()
        };
        let (gone, late) = (without(nodes), without(first));
        let late: BTreeSet<_> = late.difference(&gone).copied().collect();
        let mut sentences = Vec::new();
        if !gone.is_empty() {
            let names = some(gone, NAMED);
            sentences.push(format!("it has no metrics of these nodes in the last {over}: {names}"));
        }
        if !late.is_empty() {
            let names = some(late, NAMED);
            sentences.push(format!(
                "it has no metrics of {over} ago of these nodes, so their bytes are of a shorter time: {names}"
            ));
        }
        sentences
    }

    fn client(&self) -> Result<Client, PrometheusError> {
        let wrong = || PrometheusError::Url(self.url.clone());
        let mut config = Config::new(self.url.parse().map_err(|_| wrong())?);
        let server = &config.cluster_url;
        if !matches!(server.scheme_str(), Some("http" | "https"))
            || server.host().is_none()
            || server.query().is_some()
        {
            return Err(wrong());
        }
        config.default_retry = false;
        let prepared = Client::try_from(config);
        prepared.map_err(|error| PrometheusError::Client(self.url.clone(), error.to_string()))
    }

    /// `Bearer TOKEN`. The file is read for each request: a ServiceAccount's token changes.
    fn credentials(&self) -> Result<Option<HeaderValue>, PrometheusError> {
        let Some(path) = &self.token_file else { return Ok(None) };
        let wrong = |reason: String| PrometheusError::Token(path.clone(), reason);
        let token = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let token = Some(token.trim()).filter(|token| !token.is_empty());
        let token = token.ok_or_else(|| wrong("it is empty".to_owned()))?;
        let value = HeaderValue::from_str(&format!("Bearer {token}"));
        let mut value =
            value.map_err(|_| wrong("it has characters that no token has".to_owned()))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

/// A time in a query, as Prometheus writes times.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// How long it is.
    pub length: &'a str,
    /// How long ago it ended; empty: it ends now.
    pub end: &'a str,
    /// How long ago it began: what was there then counts by its growth.
    pub begin: &'a str,
}

impl Span<'_> {
    fn range(&self) -> String {
        let Self { length, end, .. } = self;
        if end.is_empty() { format!("[{length}]") } else { format!("[{length}] offset {end}") }
    }

    /// The query for the nodes whose agents had metrics.
    fn nodes(&self) -> String {
        format!("count by (node) (count_over_time({PRESENT}{}))", self.range())
    }

    /// The query for the growth of a counter of bytes, by Service, locality and `labels`, each of which ends in `, `.
    ///
    /// What was not there when the time began counts from 0 if its node's agent was: a policy makes new series, and
    /// `increase` would take the first value of each for one of before. The labels of a Pod do not count, as the next
    /// one of the node goes on with the counters.
    #[must_use]
    pub fn bytes(&self, labels: &str, metric: &str, is_direct: bool) -> String {
        // Not by tier: that would multiply the answer.
        let tier = if is_direct { "=" } else { "!=" };
        let series = format!("{metric}{{tier{tier}\"{DIRECT}\"}}");
        let (range, begin) = (self.range(), self.begin);
        let own = format!(
            "(node, namespace, service, port, locality, tier, {RENAMED}namespace, {RENAMED}service)"
        );
        format!(
            "sum by ({labels}namespace, service, locality, {RENAMED}namespace, {RENAMED}service) \
             (max by {own} (last_over_time({series}{range})) unless on {own} {series} offset {begin} \
             and on (node) {PRESENT} offset {begin} or on {own} increase({series}{range}))"
        )
    }
}

/// The queries for connections to a wider tier by Service port, and for how many nodes with connections to it do not
/// know.
#[must_use]
pub fn wider() -> [String; 2] {
    const WIDER: &str = declared::WIDER_TIER_CONNECTIONS.name;
    const CONNECTIONS: &str = declared::CONNECTIONS.name;
    let port = format!("namespace, service, port, {RENAMED}namespace, {RENAMED}service");
    let used = format!("count by (node, {port}) ({CONNECTIONS})");
    [
        format!("sum by ({port}) ({WIDER})"),
        format!("count by ({port}) ({used} unless on (node, {port}) {WIDER})"),
    ]
}

/// Names of nodes. `None`: some metrics do not say it.
type Nodes = BTreeSet<Option<Arc<str>>>;

/// A Prometheus that is being asked.
struct Asked<'a> {
    client: Client,
    of: &'a Prometheus,
    limits: Limits,
    /// What it says about its own answers, each sentence once.
    doubts: Vec<String>,
}

impl Asked<'_> {
    async fn nodes(&mut self, query: &str) -> Result<Nodes, PrometheusError> {
        Ok(self.samples(query).await?.into_iter().map(|sample| sample.node).collect())
    }

    /// The values of Service ports, as whole numbers.
    async fn ports(
        &mut self,
        query: &str,
    ) -> Result<Vec<(ServiceId, Arc<str>, u64)>, PrometheusError> {
        let one = |it: Sample| Some((it.service?, it.port?, it.value as u64));
        Ok(self.samples(query).await?.into_iter().filter_map(one).collect())
    }

    /// How many seconds ago it first had metrics of any agent, to a fiftieth of that, if that is less than the time
    /// asked for; `None`: not even seconds.
    async fn age(&mut self) -> Result<Option<u64>, PrometheusError> {
        let (mut known, mut unknown) = (0, self.of.over.seconds());
        while unknown - known > (known / 50).max(2) {
            let middle = u64::midpoint(known, unknown);
            let query = format!("count({PRESENT} offset {middle}s)");
            match self.samples(&query).await?.is_empty() {
                true => unknown = middle,
                false => known = middle,
            }
        }
        Ok((known > 0).then_some(known))
    }

    async fn samples(&mut self, query: &str) -> Result<Vec<Sample>, PrometheusError> {
        let url = || self.of.url.clone();
        let answer = timeout(self.limits.time, self.answer(query)).await;
        let late = |_| PrometheusError::Late(url(), self.limits.time);
        let (status, body) = answer.map_err(late)??;
        let Answer { samples, warnings } =
            answer::read(status, &body).map_err(|fault| fault.at(url()))?;
        for warning in warnings {
            let sentence = format!("its answer is partial: {warning}");
            if !self.doubts.contains(&sentence) {
                self.doubts.push(sentence);
            }
        }
        Ok(samples)
    }

    async fn answer(&self, query: &str) -> Result<(StatusCode, Vec<u8>), PrometheusError> {
        let url = || self.of.url.clone();
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let Limits { time, size } = self.limits;
        let limit = time.as_millis();
        let mut request = Request::get(format!("/api/v1/query?query={encoded}&timeout={limit}ms"));
        if let Some(credentials) = self.of.credentials()? {
            request = request.header(AUTHORIZATION, credentials);
        }
        let request = request.body(Body::empty()).map_err(|_| PrometheusError::Url(url()))?;
        let failed = |error: &_| PrometheusError::of(error, url());
        let response = self.client.send(request).await.map_err(|error| failed(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), size).collect().await;
        let body = body.map_err(|error| match error.downcast::<LengthLimitError>() {
            Ok(_) => PrometheusError::TooLarge(url(), size >> 20),
            Err(error) => failed(&::kube::Error::Service(error)),
        })?;
        Ok((status, body.to_bytes().into()))
    }
}

/// What a sample says of a Service port; `None` if it says nothing of one.
fn moved(sample: Sample, is_direct: bool) -> Option<Moved> {
    let Sample { node, service, port, locality, value } = sample;
    let (service, port, locality) = (service?, port?, locality?);
    Some(Moved { node, service, port, locality, is_direct, bytes: value })
}

#[cfg(test)]
mod tests;
