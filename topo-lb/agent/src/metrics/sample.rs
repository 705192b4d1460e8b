//! One sample of a family.

use std::fmt;

use prometheus_client::encoding::{EncodeLabelSet, MetricEncoder, NoLabelSet};

/// Encodes a counter with these labels.
pub(super) fn counter(
    encoder: &mut MetricEncoder<'_>,
    labels: &impl EncodeLabelSet,
    value: u64,
) -> fmt::Result {
    encoder.encode_family(labels)?.encode_counter::<NoLabelSet, u64, f64>(&value, None)
}
