//! Writes families of samples as they are declared.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabel as _, EncodeLabelSet,
    EncodeMetric as _, LabelSetEncoder, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Unit;
use topo_lb_core::metrics::declared::{Kind, Metric};

/// What OpenMetrics appends to the name of a family of seconds.
const SECONDS: &str = "_seconds";

/// Begins families.
pub(super) struct Families<'a, 'e>(pub(super) &'a mut DescriptorEncoder<'e>);

/// The samples of one metric.
pub(super) struct Family<'e> {
    metric: &'static Metric,
    encoder: MetricEncoder<'e>,
}

/// Names and values of labels.
struct Labels<'a>(&'a [&'static str], &'a [&'a str]);

impl EncodeLabelSet for Labels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        debug_assert_eq!(self.0.len(), self.1.len(), "{:?} {:?}", self.0, self.1);
        let mut pairs = self.0.iter().copied().zip(self.1.iter().copied());
        pairs.try_for_each(|pair| pair.encode(encoder.encode_label()))
    }
}

impl Families<'_, '_> {
    pub(super) fn begin(&mut self, metric: &'static Metric) -> Result<Family<'_>, fmt::Error> {
        let kind = match metric.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
            Kind::Info => MetricType::Info,
        };
        let (name, unit) = match metric.family().strip_suffix(SECONDS) {
            Some(name) => (name, Some(&Unit::Seconds)),
            None => (metric.family(), None),
        };
        Ok(Family { metric, encoder: self.0.encode_descriptor(name, metric.help, unit, kind)? })
    }

    /// A metric without labels.
    pub(super) fn one(
        &mut self,
        metric: &'static Metric,
        value: impl EncodeGaugeValue + EncodeCounterValue,
    ) -> fmt::Result {
        write(metric, &mut self.begin(metric)?.encoder, value)
    }

    /// A metric with one label: its values, and what is counted for each.
    pub(super) fn by<'l, 'v>(
        &mut self,
        metric: &'static Metric,
        values: impl IntoIterator<Item = (&'l str, &'v AtomicU64)>,
    ) -> fmt::Result {
        let mut family = self.begin(metric)?;
        values
            .into_iter()
            .try_for_each(|(label, value)| family.sample(&[label], value.load(Relaxed)))
    }

    pub(super) fn histogram(
        &mut self,
        metric: &'static Metric,
        histogram: &Histogram,
    ) -> fmt::Result {
        histogram.encode(self.begin(metric)?.encoder)
    }
}

impl Family<'_> {
    /// A sample with these values of the labels.
    pub(super) fn sample(
        &mut self,
        labels: &[&str],
        value: impl EncodeGaugeValue + EncodeCounterValue,
    ) -> fmt::Result {
        let labels = Labels(self.metric.labels, labels);
        write(self.metric, &mut self.encoder.encode_family(&labels)?, value)
    }

    /// The values by their size: each limit, and how many are up to it and above the last.
    pub(super) fn sizes(&mut self, labels: &[&str], sum: f64, sizes: &[(f64, u64)]) -> fmt::Result {
        let count = sizes.iter().map(|(_, count)| count).sum();
        let labels = Labels(self.metric.labels, labels);
        let mut encoder = self.encoder.encode_family(&labels)?;
        encoder.encode_histogram::<NoLabelSet>(sum, count, sizes, None)
    }

    /// The one sample of an info.
    pub(super) fn info(&mut self, labels: &[&str]) -> fmt::Result {
        self.encoder.encode_info(&Labels(self.metric.labels, labels))
    }
}

fn write(
    metric: &Metric,
    encoder: &mut MetricEncoder<'_>,
    value: impl EncodeGaugeValue + EncodeCounterValue,
) -> fmt::Result {
    match metric.kind {
        Kind::Counter => encoder.encode_counter::<NoLabelSet, _, f64>(&value, None),
        _ => encoder.encode_gauge(&value),
    }
}
