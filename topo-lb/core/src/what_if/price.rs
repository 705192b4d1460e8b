//! What bytes cost that leave their zone.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// Bytes of a GB, as clouds bill them.
const GB: f64 = 1e9;
/// Most that a GB can cost.
const MOST: f64 = 1e6;
const DAY: f64 = 86_400.0;
const MONTH: f64 = 30.0 * DAY;

/// What a GB (10⁹ bytes) costs, in dollars or any other money.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Prices {
    /// From one zone to another of its region.
    pub zone: f64,
    /// From one region to another.
    pub region: f64,
}

impl Default for Prices {
    fn default() -> Self {
        Self { zone: 0.01, region: 0.02 }
    }
}

/// A text is no prices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write prices of a GB as zone=0.01,region=0.02: each from 0 to 1000000; {0:?} is none")]
pub struct PricesError(String);

impl FromStr for Prices {
    type Err = PricesError;

    /// `zone=0.01,region=0.02`; between regions it costs what it does between zones if only that is said.
    fn from_str(text: &str) -> Result<Self, PricesError> {
        let (mut zone, mut region) = (None, None);
        for part in text.split(',') {
            let wrong = || PricesError(part.to_owned());
            let (name, price) = part.split_once('=').ok_or_else(wrong)?;
            let of = match name.trim() {
                "zone" => &mut zone,
                "region" => &mut region,
                _ => return Err(wrong()),
            };
            let price = price.trim().parse().ok().filter(|it| (0.0..=MOST).contains(it));
            if of.replace(price.ok_or_else(wrong)?).is_some() {
                return Err(wrong());
            }
        }
        let zone = zone.ok_or_else(|| PricesError(text.to_owned()))?;
        Ok(Self { zone, region: region.unwrap_or(zone) })
    }
}

impl fmt::Display for Prices {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { zone, region } = self;
        write!(formatter, "A GB costs ${zone} out of the zone, ${region} out of the region")
    }
}

impl Prices {
    /// What bytes cost that leave their zone, some of them their region, too.
    pub(super) fn of(&self, out_of_zone: f64, out_of_region: f64) -> f64 {
        let far = out_of_region.min(out_of_zone);
        ((out_of_zone - far) * self.zone + far * self.region) / GB
    }
}

/// How many times this time, such as `7d`, is in a month of 30 days; `None` if it is no time.
#[must_use]
pub fn months(over: &str) -> Option<f64> {
    let unit = match over.chars().next_back()? {
        's' => 1.0,
        'm' => 60.0,
        'h' => 3_600.0,
        'd' => DAY,
        'w' => 7.0 * DAY,
        _ => return None,
    };
    let number: f64 = over[..over.len() - 1].parse().ok()?;
    (number > 0.0).then(|| MONTH / (number * unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_read_and_nonsense_is_refused() {
        let prices = |zone, region| Ok(Prices { zone, region });
        assert_eq!("zone=0.01,region=0.02".parse(), prices(0.01, 0.02));
        assert_eq!("region=0,zone=3".parse(), prices(3.0, 0.0));
        assert_eq!("zone=0.02".parse(), prices(0.02, 0.02));
        for wrong in [
            "",
            "0.01",
            "zone",
            "zone=",
            "zone=x",
            "zone=-1",
            "zone=NaN",
            "zone=inf",
            "zone=1e300",
            "moon=1",
            "region=1",
            "zone=1,zone=2",
            "zone=1,",
        ] {
            assert!(wrong.parse::<Prices>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_leaves_its_region_costs_that_and_no_more() {
        let prices = Prices { zone: 1.0, region: 3.0 };
        assert_eq!(prices.of(4e9, 1e9), 6.0);
        // Nodes without the label of a region.
        assert_eq!(prices.of(1e9, 4e9), 3.0);
    }

    #[test]
    fn a_month_has_thirty_days() {
        assert_eq!(
            ["1d", "30d", "12h", "1w"].map(months),
            [Some(30.0), Some(1.0), Some(60.0), Some(30.0 / 7.0)]
        );
        assert_eq!(["", "d", "0d", "5y", "µ"].map(months), [None; 5]);
    }
}
