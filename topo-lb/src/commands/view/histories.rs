//! The last hour of all Services together, and of those that matter: the busiest, and picked ones. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use super::gaps::weight;
use super::history::{History, Point};
use crate::{commands::top::Rate, commands::top::Row};

/// So many Services with most traffic get a time line.
pub(super) const BUSIEST: usize = 64;
/// Most time lines. Each has up to 81 kB: 720 points of 112 bytes.
const KEPT: usize = 128;

/// Time lines.
#[derive(Clone, Debug, Default)]
pub(super) struct Histories {
    all: History,
    /// By Service.
    of: HashMap<Arc<str>, Kept>,
    /// How many looks there were.
    looks: u64,
}

#[derive(Clone, Debug, Default)]
struct Kept {
    history: History,
    /// The look at which it was picked, or among the busiest, last.
    wanted: u64,
}

impl Histories {
    /// Adds rates, sorted by Service, that held for so many seconds before `now`, in seconds since 1970;
    /// `None`: they are unknown.
    pub(super) fn add(&mut self, now: u64, seconds: f64, rows: Option<&[Row]>) {
        self.looks += 1;
        let Some(rows) = rows else {
            let all =
                [&mut self.all].into_iter().chain(self.of.values_mut().map(|it| &mut it.history));
            return all.for_each(|history| history.add(now, seconds, None));
        };
        let mut total = Rate::default();
        rows.iter().for_each(|row| total.add(&row.rate));
        self.all.add(now, seconds, Some(&total));

        let size = |row: &Row| weight(&row.rate);
        let mut busiest: Vec<_> = rows.iter().filter(|row| size(row) > 0.0).collect();
        if busiest.len() > BUSIEST {
            busiest.select_nth_unstable_by(BUSIEST, |a, b| size(b).total_cmp(&size(a)));
            busiest.truncate(BUSIEST);
        }
        busiest.iter().for_each(|row| self.want(&row.service));
        for (service, kept) in &mut self.of {
            let place = rows.binary_search_by(|row| row.service.cmp(service));
            let idle = Rate::default();
            let rate = place.map_or(&idle, |place| &rows[place].rate);
            kept.history.add(now, seconds, Some(rate));
        }
    }

    /// Gives the Service a time line from now on. Beyond [`KEPT`], the one that was not asked for
    /// for the longest time goes.
    pub(super) fn want(&mut self, service: &Arc<str>) {
        let looks = self.looks;
        self.of.entry(Arc::clone(service)).or_default().wanted = looks;
        if self.of.len() > KEPT {
            let oldest = self.of.iter().filter(|(name, _)| *name != service);
            let oldest = oldest.min_by_key(|(_, kept)| kept.wanted);
            if let Some(oldest) = oldest.map(|(name, _)| Arc::clone(name)) {
                self.of.remove(&oldest);
            }
        }
    }

    /// The points from this moment on: of a Service, or of all.
    pub(super) fn since(&self, service: Option<&str>, at: u64) -> Vec<Point> {
        let history = match service {
            None => Some(&self.all),
            Some(service) => self.of.get(service).map(|kept| &kept.history),
        };
        history.map(|it| it.since(at).cloned().collect()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Service number `n` has `n` connections a second.
    fn rows(services: usize) -> Vec<Row> {
        let row = |number: usize| {
            let rate = Rate { connections: [number as f64, 0.0, 0.0, 0.0], ..Rate::default() };
            Row { service: format!("d/{number:05}").into(), rate, ..Row::default() }
        };
        (0..services).map(row).collect()
    }

    fn values(histories: &Histories, service: Option<&str>) -> Vec<f64> {
        histories.since(service, 0).iter().map(|it| it.rate.connections[0]).collect()
    }

    #[test]
    fn the_busiest_and_the_picked_have_time_lines_and_others_have_none() {
        let mut histories = Histories::default();
        let rows = rows(1_000);
        histories.add(100, 5.0, Some(&rows));
        histories.want(&rows[7].service);
        histories.add(105, 5.0, Some(&rows));
        histories.add(110, 5.0, Some(&[]));
        assert_eq!(values(&histories, None), [499_500.0, 499_500.0, 0.0]);
        assert_eq!(values(&histories, Some("d/00999")), [999.0, 999.0, 0.0]);
        assert_eq!(values(&histories, Some("d/00936")), [936.0, 936.0, 0.0]);
        assert_eq!(values(&histories, Some("d/00007")), [7.0, 0.0], "from the moment it is picked");
        assert!(values(&histories, Some("d/00935")).is_empty());
        assert_eq!(histories.of.len(), BUSIEST + 1);
    }

    #[test]
    fn time_lines_are_bounded_and_those_that_nobody_wants_any_more_go() {
        let mut histories = Histories::default();
        let rows = rows(1_000);
        for row in &rows {
            histories.want(&row.service);
        }
        assert_eq!(histories.of.len(), KEPT);
        histories.add(100, 5.0, Some(&rows[..BUSIEST + 1]));
        histories.want(&rows[500].service);
        for row in &rows[600..600 + KEPT - BUSIEST - 1] {
            histories.want(&row.service);
        }
        assert_eq!(histories.of.len(), KEPT);
        assert_eq!(values(&histories, Some("d/00001")), [1.0]);
        assert!(histories.of.contains_key("d/00500"));
    }

    #[test]
    fn an_hour_of_all_time_lines_has_the_size_that_the_documentation_says() {
        assert_eq!(size_of::<Point>(), 112);
        let mut history = History::default();
        for second in 0..9_000 {
            history.add(second, 1.0, Some(&Rate::default()));
        }
        assert_eq!(history.since(0).count() * size_of::<Point>(), 80_640);
    }
}
