//! Statistics of repeated measurements.

/// Values of one quantity in one unit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample(Vec<f64>);

impl Sample {
    pub(crate) const EMPTY: Self = Self(Vec::new());

    pub(crate) fn add(&mut self, value: f64) {
        self.0.push(value);
    }

    pub(crate) fn extend(&mut self, values: impl IntoIterator<Item = f64>) {
        self.0.extend(values);
    }

    /// `by` divided by each value.
    pub(crate) fn inverted(&self, by: f64) -> Self {
        Self(self.0.iter().map(|value| by / value).collect())
    }

    /// Each value by that of the same round in another sample.
    pub(crate) fn by(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(one, other)| one / other).collect())
    }

    /// The quantile by nearest rank; `share` is 0 to 1. Zero for an empty sample.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).or(sorted.last()).copied().unwrap_or(0.0)
    }

    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    pub(crate) fn p99(&self) -> f64 {
        self.quantile(0.99)
    }

    /// First and third quartile.
    pub(crate) fn quartiles(&self) -> (f64, f64) {
        (self.quantile(0.25), self.quantile(0.75))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(values: impl IntoIterator<Item = u32>) -> Sample {
        let mut sample = Sample::default();
        sample.extend(values.into_iter().map(f64::from));
        sample
    }

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let hundred = sample((1..=100).rev());
        assert_eq!(hundred.median(), 50.0);
        assert_eq!(hundred.p99(), 99.0);
        assert_eq!(hundred.quartiles(), (25.0, 75.0));
        assert_eq!(sample([7]).p99(), 7.0);
        assert_eq!(sample([]).median(), 0.0);
    }
}
