//! What has changed since a moment, as agents counted it: bytes and money of the time since, beside those of
//! as long before. Pure.

mod shown;

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::sync::Arc;

use serde::Serialize;
use topo_lb_common::backend::Locality;

use super::{Both, Chosen, Prices, months};
use crate::cluster::ServiceId;
pub use shown::table;

/// Bytes of a Service's clients.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The Service that they went to or came from.
    pub service: ServiceId,
    /// Where the endpoints were, seen from the clients.
    pub locality: Locality,
    /// The clients dialled endpoints by their own addresses.
    pub is_direct: bool,
    /// How many, in both directions.
    pub bytes: f64,
}

/// What changed. Its JSON is a fixed interface.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Since {
    /// How long ago the moment was, such as `7d`: also the length of the time before it.
    pub since: String,
    /// How many times that is in a month of 30 days; `None` if it is not known.
    pub months: Option<f64>,
    /// What a GB costs.
    pub prices: Prices,
    /// Services with bytes in either time: what saves or costs most first; what is in one time alone, by what it costs.
    pub services: Vec<Followed>,
    /// All Services; what they saved is the sum of what each has.
    pub all: Outcome,
    /// What clients dialled directly: it goes by no policy of a Service.
    pub direct: Outcome,
    /// Both.
    pub together: Outcome,
}

/// A Service.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Followed {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
    /// What became of its bytes.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What was moved before and after, and what that cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// The bytes.
    pub bytes: Both<Distance>,
    /// What they cost, in money of each time.
    pub money: Both<f64>,
    /// How much more the bytes after would have cost, had they gone as far as those before: the effect without
    /// that of more or less traffic. Below 0 it costs more. `None` if either time has no bytes.
    pub saved: Option<f64>,
}

/// How far bytes went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Distance {
    /// All.
    pub all: f64,
    /// Those that left the client's zone.
    pub out_of_zone: f64,
    /// Those of them that left its region, or for which no region is known.
    pub out_of_region: f64,
}

impl Distance {
    fn add(&mut self, locality: Locality, bytes: f64) {
        self.all += bytes;
        match locality {
            Locality::Node | Locality::Zone => {}
            Locality::Region => self.out_of_zone += bytes,
            Locality::Elsewhere => {
                self.out_of_zone += bytes;
                self.out_of_region += bytes;
            }
        }
    }

    fn money(&self, prices: Prices) -> f64 {
        prices.of(self.out_of_zone, self.out_of_region)
    }

    /// The part that stayed in its zone, from 0 to 1; `None` without bytes.
    fn stayed(&self) -> Option<f64> {
        (self.all > 0.0).then(|| 1.0 - self.out_of_zone / self.all)
    }
}

impl AddAssign for Distance {
    fn add_assign(&mut self, other: Self) {
        self.all += other.all;
        self.out_of_zone += other.out_of_zone;
        self.out_of_region += other.out_of_region;
    }
}

impl Outcome {
    fn of(bytes: Both<Distance>, prices: Prices) -> Self {
        let money = Both { before: bytes.before.money(prices), after: bytes.after.money(prices) };
        let is_known = bytes.before.all > 0.0 && bytes.after.all > 0.0;
        let saved =
            is_known.then(|| money.before / bytes.before.all * bytes.after.all - money.after);
        Self { bytes, money, saved }
    }
}

/// Compares the bytes of the last `since` with those of as long before, for the `chosen` Services; for all if there
/// are none. A count that is no number of bytes is left out.
#[must_use]
pub fn since(since: &str, prices: Prices, chosen: &[Chosen], bytes: Both<Vec<Measured>>) -> Since {
    let (mut services, mut direct) = (BTreeMap::<_, Both<Distance>>::new(), Both::default());
    let mut count = |one: Measured, side: fn(&mut Both<Distance>) -> &mut Distance| {
        let Measured { service, locality, is_direct, bytes } = one;
        if bytes.is_finite() && bytes > 0.0 && Chosen::any(chosen, &service) {
            let both = if is_direct { &mut direct } else { services.entry(service).or_default() };
            side(both).add(locality, bytes);
        }
    };
    bytes.before.into_iter().for_each(|one| count(one, |both| &mut both.before));
    bytes.after.into_iter().for_each(|one| count(one, |both| &mut both.after));
    let mut all = Both::<Distance>::default();
    let mut services: Vec<_> = services
        .into_iter()
        .map(|(service, bytes)| {
            all.before += bytes.before;
            all.after += bytes.after;
            let ServiceId { namespace, name } = service;
            Followed { namespace, name, outcome: Outcome::of(bytes, prices) }
        })
        .collect();
    let weight = |Followed { outcome: Outcome { money, saved, .. }, .. }: &Followed| {
        saved.map_or_else(|| money.before.max(money.after), f64::abs)
    };
    services.sort_by(|one, other| weight(other).total_cmp(&weight(one)));
    let saved = services.iter().filter_map(|it| it.outcome.saved).reduce(|sum, more| sum + more);
    let of_services = Outcome { saved, ..Outcome::of(all, prices) };
    let of_direct = Outcome::of(direct, prices);
    all.before += direct.before;
    all.after += direct.after;
    let saved = saved.into_iter().chain(of_direct.saved).reduce(|sum, more| sum + more);
    Since {
        since: since.to_owned(),
        months: months(since),
        prices,
        services,
        all: of_services,
        direct: of_direct,
        together: Outcome { saved, ..Outcome::of(all, prices) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRICES: Prices = Prices { zone: 0.01, region: 0.02 };

    fn measured(name: &str, locality: Locality, bytes: f64) -> Measured {
        let service = ServiceId { namespace: "shop".into(), name: name.into() };
        Measured { service, locality, is_direct: false, bytes }
    }

    /// A Service that is bound and whose traffic doubles, one that goes further, and some that cannot be compared.
    pub(super) fn example(chosen: &[Chosen]) -> Since {
        let before = vec![
            measured("cart", Locality::Zone, 1e12),
            measured("cart", Locality::Region, 2e12),
            measured("cart", Locality::Elsewhere, 1e12),
            measured("far", Locality::Node, 1e12),
            measured("gone", Locality::Region, 1e12),
            Measured { is_direct: true, ..measured("cart", Locality::Elsewhere, 5e11) },
        ];
        let after = vec![
            measured("cart", Locality::Node, 4e12),
            measured("cart", Locality::Zone, 4e12),
            measured("far", Locality::Region, 1e12),
            measured("new", Locality::Region, 3e9),
            measured("odd", Locality::Region, f64::NAN),
            Measured { is_direct: true, ..measured("cart", Locality::Elsewhere, 5e11) },
        ];
        since("3d", PRICES, chosen, Both { before, after })
    }

    #[test]
    fn money_saved_is_that_of_as_much_traffic() {
        let all = example(&[]);
        assert_eq!(all.months, Some(10.0));
        let names: Vec<_> = all.services.iter().map(|it| &*it.name).collect();
        assert_eq!(names, ["cart", "far", "gone", "new"]);
        let of =
            |place: usize| (all.services[place].outcome.money, all.services[place].outcome.saved);
        let both = |before, after| Both { before, after };
        // 4 TB cost $40, so 8 TB would have cost $80.
        assert_eq!(of(0), (both(40.0, 0.0), Some(80.0)));
        assert_eq!(of(1), (both(0.0, 10.0), Some(-10.0)));
        assert_eq!(of(2), (both(10.0, 0.0), None));
        assert_eq!(of(3), (both(0.0, 0.03), None));
        assert_eq!((all.all.money, all.all.saved), (both(50.0, 10.03), Some(70.0)));
        assert_eq!(all.direct.money, both(10.0, 10.0));
        assert_eq!(all.direct.saved, Some(0.0));
        assert_eq!((all.together.money, all.together.saved), (both(60.0, 20.03), Some(70.0)));
    }

    #[test]
    fn what_is_chosen_is_compared_alone() {
        let chosen = |text: &str| [text.parse().expect(text)];
        let all = example(&chosen("shop/cart"));
        assert_eq!((all.services.len(), all.all.saved), (1, Some(80.0)));
        // The direct bytes are of its endpoints.
        assert_eq!(all.direct.saved, Some(0.0));
        assert_eq!(example(&chosen("shop")), example(&[]));
        let other = example(&chosen("pay"));
        assert_eq!((other.services.len(), other.together), (0, Outcome::default()));
    }

    #[test]
    fn without_bytes_nothing_is_compared() {
        let none = since("1d", PRICES, &[], Both::default());
        assert_eq!((none.services.len(), none.all), (0, Outcome::default()));
    }
}
