//! What agents counted before a moment, and since then.

use std::collections::BTreeSet;
use std::sync::Arc;

use topo_lb_core::explain::some;
use topo_lb_core::metrics::declared;
use topo_lb_core::what_if::{Both, Measured};

use super::answer::Sample;
use super::{
    Asked, BYTES, LIMITS, NAMED, Nodes, Over, PRESENT, Prometheus, PrometheusError, Span, written,
};

/// 1 where an agent counts what it does not translate, too.
const COUNTS_ALL: &str = declared::COUNTING_ALL.name;

impl Prometheus {
    /// The bytes of the last `over`, and of as long before; and sentences on what is missing of them.
    ///
    /// # Errors
    /// It does not answer, or has nothing of topo-lb, or nothing of the time before.
    pub async fn since(&self) -> Result<(Both<Vec<Measured>>, Vec<String>), PrometheusError> {
        let mut asked =
            Asked { client: self.client()?, of: self, limits: LIMITS, doubts: Vec::new() };
        let over = &self.over.0;
        let twice = self.over.twice();
        let after = Span { length: over, end: "", begin: over };
        let before = Span { length: over, end: over, begin: &twice };
        let now = asked.nodes(&after.nodes()).await?;
        if now.is_empty() {
            let (url, over) = (self.url.clone(), over.to_string());
            return Err(PrometheusError::NoMetrics { url, over });
        }
        let earlier = asked.nodes(&before.nodes()).await?;
        if earlier.is_empty() {
            let (url, over, age) = (self.url.clone(), over.to_string(), asked.age().await?);
            return Err(PrometheusError::Young { url, over, known: known(age) });
        }
        let first = asked.nodes(&format!("count by (node) ({PRESENT} offset {twice})")).await?;
        let counts = format!("min by (node) (min_over_time({COUNTS_ALL}{})) == 0", before.range());
        let partly = asked.nodes(&counts).await?;
        let bytes =
            Both { before: asked.measured(&before).await?, after: asked.measured(&after).await? };
        let mut doubts = asked.doubts;
        doubts.extend(missing(&self.over, &now, &earlier, &first));
        if !partly.is_empty() {
            doubts.push(format!(
                "not all agents counted everything (--count all) in the {over} before: bytes of Services that had \
                 no policy then are missing there"
            ));
        }
        Ok((bytes, doubts))
    }
}

impl Asked<'_> {
    /// The bytes of a time.
    async fn measured(&mut self, span: &Span<'_>) -> Result<Vec<Measured>, PrometheusError> {
        let mut all = Vec::new();
        for (metric, is_direct) in BYTES.iter().flat_map(|it| [(it, false), (it, true)]) {
            let measured = |Sample { service, locality, value, .. }| {
                Some(Measured { service: service?, locality: locality?, is_direct, bytes: value })
            };
            all.extend(
                self.samples(&span.bytes("", metric, is_direct))
                    .await?
                    .into_iter()
                    .filter_map(measured),
            );
        }
        Ok(all)
    }
}

/// What to do with a Prometheus that has metrics of the last `age` seconds alone.
fn known(age: Option<u64>) -> String {
    let half = |age: u64| written((age / 2).max(1));
    age.map_or_else(
        || "it has those of seconds: wait".to_owned(),
        |age| format!("it has those of the last {}: try --since {}", written(age), half(age)),
    )
}

/// Sentences on nodes whose metrics are of a part of either time: now, earlier, and at the earlier one's begin.
fn missing(over: &Over, now: &Nodes, earlier: &Nodes, first: &Nodes) -> Vec<String> {
    let (over, twice) = (&over.0, over.twice());
    if [now, earlier, first].iter().any(|nodes| nodes.contains(&None)) {
        return vec![
            "its metrics do not say of which node they are: set the label node in the scrape job. Whether all \
             nodes were there all the time is not known"
                .to_owned(),
        ];
    }
    let without = |of: &Nodes, others: &Nodes| -> Option<String> {
        let all = of.difference(others).flatten().map(Arc::as_ref).collect::<BTreeSet<&str>>();
        (!all.is_empty()).then(|| some(all, NAMED))
    };
    let late = without(now, first).map(|names| {
        format!(
            "it has no metrics of {twice} ago of these nodes, so the time before lacks bytes of them: {names}"
        )
    });
    let gone = without(earlier, now)
        .map(|names| format!("it has no metrics of these nodes in the last {over}: {names}"));
    late.into_iter().chain(gone).collect()
}
