//! What an agent has counted, read from its metrics.

use std::sync::Arc;

use prometheus_parse::{Sample, Scrape, Value};
use topo_lb_common::backend::Locality;

use super::moment::{ByAgent, Counter, Moved, Others, RoundTrips, Series, Totals, Traffic, Zones};
use super::round_trips::limit;
use topo_lb_core::metrics;
use topo_lb_core::metrics::Tier;
use topo_lb_core::metrics::declared::{self, Metric};

/// Most lines of an agent's metrics: those of some 5,000 Service ports with series of their own.
const MOST_LINES: usize = 100_000;

const TCP_RTT: &str = declared::TCP_RTT.name;
const OBSERVING: &str = declared::OBSERVING.name;
const UNHANDLED: &str = declared::UNHANDLED_SERVICES.name;
const EVACUATED: &str = declared::EVACUATED_SERVICES.name;
const COUNTING_ALL: &str = declared::COUNTING_ALL.name;
const OTHER_SENT: &str = declared::OTHER_SENT_BYTES.name;
const OTHER_RECEIVED: &str = declared::OTHER_RECEIVED_BYTES.name;

/// What an agent has counted.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Scraped {
    pub(super) traffic: Traffic,
    pub(super) round_trips: RoundTrips,
    /// `None` if it measures nothing but Services.
    pub(super) zones: Option<Zones>,
    /// Whether it only observes: connections and refusals are those that would be.
    pub(super) observes: bool,
    /// Services that it leaves alone because they have no policy, and does not count.
    pub(super) unhandled: usize,
    /// What is evacuated on its node.
    pub(super) evacuations: ByAgent,
}

/// What the counters say in an agent's OpenMetrics text. Series of other metrics, without a Service or with an
/// unknown locality, are left out: an agent of another version may have more.
///
/// # Errors
/// A sentence if this is no metrics text, or not that of an agent.
pub(super) fn answer(text: &str) -> Result<Scraped, String> {
    if text.lines().nth(MOST_LINES).is_some() {
        return Err(format!(
            "its metrics have more than {MOST_LINES} lines: lower the agent's --metrics-services"
        ));
    }
    let scrape = Scrape::parse(text.lines().map(|line| Ok(line.to_owned())))
        .map_err(|error| format!("its metrics cannot be read: {error}"))?;
    let Scraped {
        mut traffic,
        mut round_trips,
        mut zones,
        mut observes,
        mut unhandled,
        mut evacuations,
    } = Scraped::default();
    let (mut is_agent, mut counts_all, mut others) = (false, false, Others::new());
    for sample in scrape.samples {
        let name = &*sample.metric;
        if !name.starts_with(declared::PREFIX) {
            continue;
        }
        is_agent = true;
        if let (TCP_RTT, Value::Histogram(places), Some(locality)) =
            (name, &sample.value, locality(&sample))
        {
            // Each counts what is up to its limit.
            let mut below = 0.0;
            round_trips[locality as usize] = std::array::from_fn(|place| {
                let found = places.iter().find(|it| it.less_than == limit(place));
                let up_to = found.map_or(below, |it| it.count.max(below));
                up_to - std::mem::replace(&mut below, up_to)
            });
        }
        if let (OBSERVING, Value::Gauge(value)) = (name, &sample.value) {
            observes = *value > 0.0;
        }
        if let (UNHANDLED, Value::Gauge(value)) = (name, &sample.value) {
            unhandled = *value as usize;
        }
        if let (EVACUATED, Value::Gauge(value)) = (name, &sample.value) {
            let of = |label| sample.labels.get(label).unwrap_or_default().into();
            evacuations.insert(["key", "value", "until"].map(of), *value as usize);
        }
        if let (COUNTING_ALL, Value::Gauge(value)) = (name, &sample.value) {
            counts_all = *value > 0.0;
        }
        let Some(value) = count(&sample.value) else { continue };
        if name == declared::ZONE_SENT_BYTES.name {
            add_to_zone(&mut zones, &sample, |moved| moved.sent += value);
        } else if name == declared::ZONE_RECEIVED_BYTES.name {
            add_to_zone(&mut zones, &sample, |moved| moved.received += value);
        } else if let (OTHER_SENT | OTHER_RECEIVED, Some(to)) = (name, sample.labels.get("to")) {
            let moved = others.entry(to.into()).or_default();
            *(if name == OTHER_SENT { &mut moved.sent } else { &mut moved.received }) += value;
        }
        let (Some(service), Some(counter)) = (service(&sample), counter(name, &sample)) else {
            continue;
        };
        let mut labels: Vec<_> = sample.labels.iter().collect();
        labels.sort_unstable();
        let totals: &mut Totals = traffic.entry(service).or_default();
        let series = Series::new(counter, (name, labels)).of_tier(tier(&sample));
        *totals.entry(series).or_default() += value;
    }
    // An old agent says nothing of it, and one that counts only what it handles has nothing to tell.
    if counts_all {
        zones.get_or_insert_default().others = Some(others);
        unhandled = 0;
    }
    if is_agent {
        Ok(Scraped { traffic, round_trips, zones, observes, unhandled, evacuations })
    } else {
        Err("it has no metric of topo-lb: is it an agent?".into())
    }
}

/// What a series of a Service counts.
fn counter(name: &str, sample: &Sample) -> Option<Counter> {
    use declared::{
        CONNECT_FAILURES, CONNECTIONS, REFUSED_CONNECTIONS, TCP_ENDED_CONNECTIONS,
        TCP_RECEIVED_BYTES, TCP_SENT_BYTES, WOULD_BE_CONNECTIONS, WOULD_BE_REFUSED_CONNECTIONS,
    };
    let is = |metrics: &[Metric]| metrics.iter().any(|metric| metric.name == name);
    if is(&[CONNECTIONS, WOULD_BE_CONNECTIONS]) {
        Some(Counter::Connections(locality(sample)?))
    } else if is(&[REFUSED_CONNECTIONS, WOULD_BE_REFUSED_CONNECTIONS]) {
        Some(Counter::Refused)
    } else if is(&[CONNECT_FAILURES]) {
        Some(Counter::Failed)
    } else if is(&[TCP_ENDED_CONNECTIONS]) {
        Some(Counter::Ended)
    } else if is(&[TCP_SENT_BYTES]) {
        Some(Counter::Sent(locality(sample)?))
    } else if is(&[TCP_RECEIVED_BYTES]) {
        Some(Counter::Received(locality(sample)?))
    } else {
        None
    }
}

fn add_to_zone(zones: &mut Option<Zones>, sample: &Sample, add: impl FnOnce(&mut Moved)) {
    let (from, to) = (sample.labels.get("source_zone"), sample.labels.get("destination_zone"));
    let (Some(from), Some(to)) = (from, to) else { return };
    let zones = zones.get_or_insert_with(|| Zones { own: from.into(), ..Zones::default() });
    // A node has one zone.
    if &*zones.own == from {
        add(zones.to.entry(to.into()).or_default());
    }
}

fn tier(sample: &Sample) -> Option<Tier> {
    sample.labels.get("tier")?.parse().ok()
}

fn locality(sample: &Sample) -> Option<Locality> {
    metrics::locality(sample.labels.get("locality")?)
}

/// The value of a counter. OpenMetrics names the family without `_total`, so the parser does not know
/// the type of a sample.
fn count(value: &Value) -> Option<f64> {
    match value {
        Value::Counter(value) | Value::Untyped(value) => Some(*value).filter(|it| it.is_finite()),
        Value::Gauge(_) | Value::Histogram(_) | Value::Summary(_) => None,
    }
}

fn service(sample: &Sample) -> Option<Arc<str>> {
    let (namespace, name) = (sample.labels.get("namespace")?, sample.labels.get("service")?);
    Some(format!("{namespace}/{name}").into())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::moment::Moment;
    use super::super::traffic::{Rate, rates};
    use super::*;

    #[test]
    fn ports_of_a_service_are_summed_and_what_is_unknown_is_left_out() {
        let text = "# HELP topo_lb_connections Connections\n\
            # TYPE topo_lb_connections counter\n\
            topo_lb_connections_total{namespace=\"default\",service=\"web\",port=\"http\",locality=\"node\"} 3\n\
            topo_lb_connections_total{namespace=\"default\",service=\"web\",port=\"80\",locality=\"node\"} 4\n\
            topo_lb_connections_total{namespace=\"default\",service=\"web\",port=\"80\",locality=\"moon\"} 9\n\
            topo_lb_would_be_refused_connections_total{namespace=\"default\",service=\"web\",port=\"80\",reason=\"past\"} 2\n\
            topo_lb_tcp_sent_bytes_total{namespace=\"default\",service=\"web\",locality=\"elsewhere\"} 1e3\n\
            # HELP topo_lb_tcp_rtt_seconds Round trips.\n\
            # TYPE topo_lb_tcp_rtt_seconds histogram\n\
            # UNIT topo_lb_tcp_rtt_seconds seconds\n\
            topo_lb_tcp_rtt_seconds_bucket{le=\"0.000032\",locality=\"zone\"} 2\n\
            topo_lb_tcp_rtt_seconds_bucket{le=\"6.4e-5\",locality=\"zone\"} 5\n\
            topo_lb_tcp_rtt_seconds_bucket{le=\"+Inf\",locality=\"zone\"} 5\n\
            topo_lb_tcp_rtt_seconds_sum{locality=\"zone\"} 1\n\
            topo_lb_tcp_rtt_seconds_count{locality=\"zone\"} 5\n\
            topo_lb_zone_sent_bytes_total{source_zone=\"a\",destination_zone=\"a\"} 5\n\
            topo_lb_zone_sent_bytes_total{source_zone=\"a\",destination_zone=\"b\"} 7\n\
            topo_lb_zone_received_bytes_total{source_zone=\"a\",destination_zone=\"b\"} 30\n\
            topo_lb_zone_sent_bytes_total{source_zone=\"c\",destination_zone=\"b\"} 9\n\
            topo_lb_zone_sent_bytes_total{destination_zone=\"b\"} 9\n\
            # TYPE topo_lb_observing gauge\n\
            topo_lb_observing 1\n\
            # TYPE topo_lb_unhandled_services gauge\n\
            topo_lb_unhandled_services 7\n\
            # TYPE topo_lb_evacuated_services gauge\n\
            topo_lb_evacuated_services{key=\"rack\",value=\"r1\",until=\"\"} 3\n\
            # EOF\n";
        let Scraped { traffic, round_trips, zones, observes, unhandled, evacuations } =
            answer(text).expect("metrics");
        assert_eq!(evacuations, [(["rack", "r1", ""].map(Into::into), 3)].into());
        assert!(observes);
        assert_eq!(unhandled, 7);
        let moved = |sent, received| Moved { sent, received };
        let to = [("a".into(), moved(5.0, 0.0)), ("b".into(), moved(7.0, 30.0))].into();
        assert_eq!(zones, Some(Zones { own: "a".into(), to, others: None }));
        assert_eq!(round_trips[Locality::Zone as usize][..3], [2.0, 3.0, 0.0]);
        // Since nothing.
        let begin = Instant::now();
        let (rows, _) = rates(&moment(begin, ""), &moment(begin + Duration::from_secs(1), text));
        let wanted = Rate {
            connections: [7.0, 0.0, 0.0, 0.0],
            refused: 2.0,
            bytes: [0.0, 0.0, 0.0, 1000.0],
            sent: 1000.0,
            ..Rate::default()
        };
        assert_eq!((&*rows[0].service, &rows[0].rate), ("default/web", &wanted));
        assert_eq!((rows.len(), traffic.len()), (1, 1));
    }

    /// What node n has counted.
    fn moment(at: Instant, text: &str) -> Moment {
        let Scraped { traffic, .. } = answer(&format!("topo_lb_ready 1\n{text}")).expect("metrics");
        Moment { nodes: [("n".into(), Ok(traffic))].into(), ..Moment::at(at) }
    }

    #[test]
    fn a_series_that_ends_does_not_count_and_each_may_begin_again() {
        let line = |port, tier, bytes| {
            format!(
                "topo_lb_tcp_sent_bytes_total{{namespace=\"default\",service=\"web\",port=\"{port}\",\
                 locality=\"region\",tier=\"{tier}\"}} {bytes}\n"
            )
        };
        let before = [line("http", "0", 8e11), line("http", "1", 50.0), line("metrics", "0", 5e7)];
        let after = [
            line("http", "0", 8e11 + 1000.0),
            line("http", "1", 7.0),
            line("new", "0", 20.0),
            line("http", "none", 3.0),
            line("http", "left", 4.0),
            line("http", "direct", 5.0),
            line("http", "moon", 2.0),
        ];
        let begin = Instant::now();
        let end = moment(begin + Duration::from_secs(1), &after.concat());
        let (rows, _) = rates(&moment(begin, &before.concat()), &end);
        assert_eq!(rows[0].rate.bytes, [0.0, 0.0, 1041.0, 0.0]);
        let bytes = |tier| rows[0].tiers.get(&tier).map(|rate| rate.bytes);
        let told = [Tier::Key(0), Tier::Key(1), Tier::None, Tier::Left, Tier::Direct].map(bytes);
        assert_eq!(told, [1020.0, 7.0, 3.0, 4.0, 5.0].map(Some));
        assert_eq!(rows[0].tiers.len(), 5, "a tier of another version is left out");
    }

    #[test]
    fn an_agent_that_counts_all_leaves_no_service_uncounted_and_says_what_went_elsewhere() {
        let text = |counting: &str| {
            format!(
                "# TYPE topo_lb_unhandled_services gauge\n\
                 topo_lb_unhandled_services 7\n\
                 topo_lb_other_sent_bytes_total{{to=\"pods\"}} 3\n\
                 topo_lb_other_received_bytes_total{{to=\"pods\"}} 4\n\
                 topo_lb_other_received_bytes_total{{to=\"elsewhere\"}} 5\n\
                 # TYPE topo_lb_counting_all gauge\n{counting}"
            )
        };
        let all = answer(&text("topo_lb_counting_all 1\n")).expect("metrics");
        let moved = |sent, received| Moved { sent, received };
        let others = [("elsewhere".into(), moved(0.0, 5.0)), ("pods".into(), moved(3.0, 4.0))];
        assert_eq!(all.unhandled, 0);
        assert_eq!(all.zones, Some(Zones { others: Some(others.into()), ..Zones::default() }));
        for handled in ["topo_lb_counting_all 0\n", ""] {
            let handled = answer(&text(handled)).expect("metrics");
            assert_eq!((handled.unhandled, handled.zones), (7, None));
        }
    }

    #[test]
    fn a_page_that_is_not_an_agent_s_is_refused() {
        assert!(answer("<html>not found</html>").is_err());
        assert!(answer("go_goroutines 7\n").is_err());
        assert!(answer("").is_err());
    }

    #[test]
    fn an_agent_that_names_too_much_is_refused() {
        let lines = |count: usize| {
            let line = |n| {
                format!("topo_lb_refused_connections_total{{namespace=\"a\",service=\"s{n}\"}} 1\n")
            };
            (0..count).map(line).collect::<String>()
        };
        let told = answer(&lines(MOST_LINES + 1)).expect_err("too many");
        assert!(told.contains("100000 lines"), "{told}");
        assert_eq!(answer(&lines(1_000)).map(|scraped| scraped.traffic.len()), Ok(1_000));
    }

    #[test]
    fn a_number_that_is_none_is_left_out() {
        let text =
            "topo_lb_connections_total{namespace=\"a\",service=\"b\",locality=\"node\"} NaN\n";
        assert_eq!(answer(text), Ok(Scraped::default()));
    }
}
