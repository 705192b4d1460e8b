use std::collections::{BTreeMap, BTreeSet};

use topo_lb_common::backend::Locality;
use topo_lb_common::counters::Counters;
use topo_lb_common::totals::{Failure, Totals};

use topo_lb_core::metrics::Tier;
use topo_lb_core::topology::evacuated::Evacuated;
use topo_lb_kernel::datapath::maps::totals::Group;

use super::*;
use crate::metrics::zones::Zones;

/// A scrape in which every family has samples.
fn scrape() -> Scrape {
    let figures = Figures::default();
    figures.peers.set(Vec::new());
    let wider = [("default/web:http".into(), 14), ("default/without-series:80".into(), 1)];
    figures.sockets.returning.wider.lock().unwrap().extend(wider);
    let zone = |until| Evacuated { until, key: "zone".to_owned(), value: "b".to_owned() };
    figures.evacuations.set(2, [(zone(None), 3), (zone(Some(1_000)), 1)].into());
    for millis in [1, 4, 400, 9_000] {
        figures.times.programming.observe(Duration::from_millis(millis).as_secs_f64());
        figures.times.network_programming.observe(Duration::from_millis(millis * 50).as_secs_f64());
    }
    let counters =
        Counters { same_node: 1, same_zone: 2, same_region: 3, elsewhere: 4, refused: 30 };
    let some = Counters { same_zone: 7, ..Counters::default() };
    let group =
        |tier| Group { service: Some("default/web:http".into()), locality: Locality::Zone, tier };
    let mut moved = Totals { sent: 100, received: 2_000, retransmitted: 3, ..Totals::default() };
    moved.failures = [4, 0, 1, 0];
    (moved.rtt[3], moved.rtt[15], moved.rtt_micros) = (5, 1, 1_600_000);
    let counted = Counted {
        services: Counts {
            observed: BTreeMap::new(),
            connections: BTreeMap::from([
                ("default/web:http".into(), counters),
                ("kube-system/dns:53".into(), some),
            ]),
            tcp: BTreeMap::from([
                (group(Tier::Key(0)), moved),
                (group(Tier::None), Totals { sent: 7, ..Totals::default() }),
            ]),
        },
        torn: 3,
        far_endpoints: BTreeMap::new(),
        packets: ["egress", "ingress", "xdp"]
            .map(|hook| (hook, Packets { translated: 9, ..Packets::default() }))
            .to_vec(),
        tables: Some([TableUse { open: 5, half_open: 2, room: 100 }; 2]),
        others: Some(Others::default()),
    };
    let reasons = BTreeMap::from([("default/web:http".into(), Refusal::Policy)]);
    let mut scrape = Scrape::of(
        Arc::new(figures),
        counted,
        &reasons,
        &mut Refusals::default(),
        &mut Bounded::since(Counts::default(), 500),
    );
    scrape.matrix = Zones::default().matrix("zone-1", &scrape.services.by_locality);
    scrape.age = Some(Duration::from_millis(1_500));
    scrape.ready = true;
    scrape
}

#[derive(Debug, Default)]
struct Family {
    kind: String,
    help: String,
    unit: Option<String>,
    /// Name, labels and value.
    samples: Vec<(String, BTreeMap<String, String>, f64)>,
}

fn is_name(name: &str) -> bool {
    let first = |c: char| c.is_ascii_lowercase() || c == '_';
    name.starts_with(first) && name.chars().all(|c| first(c) || c.is_ascii_digit())
}

fn labels(text: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    for pair in text.split(',').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap();
        assert!(is_name(key), "{key}");
        let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap();
        assert!(!value.contains(['"', '\\', '\n']), "{value}");
        assert_eq!(labels.insert(key.to_owned(), value.to_owned()), None, "{key} twice");
    }
    labels
}

/// Reads OpenMetrics text strictly, as promtool does.
fn read(text: &str) -> BTreeMap<String, Family> {
    let text = text.strip_suffix("# EOF\n").expect("it ends with # EOF");
    let mut families = BTreeMap::<String, Family>::new();
    let mut series = BTreeSet::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(said) = line.strip_prefix("# ") {
            let mut words = said.splitn(3, ' ');
            let (what, name, rest) =
                (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
            assert!(is_name(name) && name.starts_with("topo_lb_"), "{line}");
            match what {
                "HELP" => {
                    assert!(!families.contains_key(name), "{name} comes twice");
                    rest.clone_into(&mut families.entry(name.to_owned()).or_default().help);
                    name.clone_into(&mut current);
                }
                "TYPE" if name == current => {
                    rest.clone_into(&mut families.get_mut(name).unwrap().kind);
                }
                "UNIT" if name == current => {
                    assert!(name.ends_with(&format!("_{rest}")), "{line}");
                    families.get_mut(name).unwrap().unit = Some(rest.to_owned());
                }
                _ => panic!("{line} is not of {current}"),
            }
            continue;
        }
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(series.insert(name.to_owned()), "{name} twice");
        let (name, labelled) = match name.split_once('{') {
            Some((name, rest)) => (name, labels(rest.strip_suffix('}').unwrap())),
            None => (name, BTreeMap::new()),
        };
        let family = families.get_mut(&current).unwrap();
        let suffix = name.strip_prefix(current.as_str()).expect("a sample is of its family");
        let suffixes: &[&str] = match family.kind.as_str() {
            "counter" => &["_total"],
            "gauge" => &[""],
            "info" => &["_info"],
            "histogram" => &["_bucket", "_sum", "_count"],
            other => panic!("type {other}"),
        };
        assert!(suffixes.contains(&suffix), "{line} in a {}", family.kind);
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
        assert!(value >= 0.0, "{line}");
        family.samples.push((name.to_owned(), labelled, value));
    }
    families
}

#[test]
fn every_line_keeps_the_rules_of_openmetrics() {
    let families = read(&scrape().text().unwrap());
    for (name, family) in &families {
        assert!(!family.samples.is_empty(), "{name} has no samples");
        assert!(family.help.len() > 10, "{name}: {}", family.help);
        assert_eq!(family.unit.is_some(), name.ends_with("_seconds"), "{name}");
    }
}

#[test]
fn buckets_are_cumulative_and_end_with_all() {
    let families = read(&scrape().text().unwrap());
    let family = &families["topo_lb_programming_duration_seconds"];
    let buckets: Vec<_> =
        family.samples.iter().filter(|(name, ..)| name.ends_with("_bucket")).collect();
    assert!(buckets.windows(2).all(|pair| pair[0].2 <= pair[1].2), "{buckets:?}");
    let (_, labels, last) = buckets.last().unwrap();
    assert_eq!((labels["le"].as_str(), *last), ("+Inf", 4.0));
}

#[test]
fn a_service_port_is_told_by_its_labels_and_where_nothing_went_is_left_out() {
    let families = read(&scrape().text().unwrap());
    let connections = &families["topo_lb_connections"].samples;
    assert_eq!(connections.len(), 5, "{connections:?}");
    let dns = &connections[4];
    let label = |key: &str| dns.1[key].clone();
    let told = [label("namespace"), label("service"), label("port"), label("locality")];
    assert_eq!((told.join(" ").as_str(), dns.2), ("kube-system dns 53 zone", 7.0));
    let wider = &families["topo_lb_wider_tier_connections"].samples;
    let told: Vec<_> =
        wider.iter().map(|(_, it, value)| (it["service"].as_str(), *value)).collect();
    assert_eq!(told, [("web", 14.0)], "only with series of its own");
    let refused = &families["topo_lb_refused_connections"].samples;
    assert_eq!((refused[0].1["reason"].as_str(), refused[0].2), ("topology-policy", 30.0));
}

#[test]
fn evacuations_are_told_by_their_labels_and_their_end() {
    let of = |one: Scrape| -> Vec<String> {
        let families = read(&one.text().unwrap());
        let samples = families["topo_lb_evacuated_services"].samples.iter();
        samples
            .map(|(_, it, value)| format!("{} {} {} {value}", it["key"], it["value"], it["until"]))
            .collect()
    };
    assert_eq!(of(scrape()), ["zone b  3", "zone b 1970-01-01T00:16:40Z 1"]);
    // Who may annotate Services may write many.
    let many = (0..100)
        .map(|until| (Evacuated { until: Some(until), key: "a".into(), value: "b".into() }, 1));
    let crowded = scrape();
    crowded.figures.evacuations.set(100, many.collect());
    assert_eq!(of(crowded).len(), 16);
}

#[test]
fn bytes_are_told_by_service_port_locality_and_tier() {
    let families = read(&scrape().text().unwrap());
    let sent = &families["topo_lb_tcp_sent_bytes"].samples;
    let told: Vec<_> = sent
        .iter()
        .map(|(_, labels, value)| (labels["service"].as_str(), labels["tier"].as_str(), *value))
        .collect();
    assert_eq!(told, [("web", "0", 100.0), ("web", "none", 7.0)]);
    let ended = &families["topo_lb_tcp_ended_connections"].samples;
    let told: Vec<_> =
        ended.iter().map(|(_, labels, value)| (labels["tier"].as_str(), *value)).collect();
    assert_eq!(told, [("0", 6.0)], "none ended in another tier");
    let failures = &families["topo_lb_connect_failures"].samples;
    let reasons: Vec<_> =
        failures.iter().map(|(_, labels, value)| (labels["reason"].as_str(), *value)).collect();
    assert_eq!(reasons, [("refused", 4.0), ("given_up", 1.0)]);
}

#[test]
fn a_round_trip_is_in_the_bucket_of_its_limit_in_seconds() {
    let families = read(&scrape().text().unwrap());
    let rtt = &families["topo_lb_tcp_rtt_seconds"].samples;
    let of = |suffix: &str, limit: Option<&str>| {
        let found = rtt.iter().find(|(name, labels, _)| {
            name.ends_with(suffix) && labels.get("le").map(String::as_str) == limit
        });
        found.unwrap_or_else(|| panic!("no {suffix} {limit:?} in {rtt:?}")).2
    };
    assert_eq!(of("_bucket", Some("0.000128")), 0.0);
    assert_eq!(of("_bucket", Some("0.000256")), 5.0);
    assert_eq!((of("_bucket", Some("+Inf")), of("_count", None)), (6.0, 6.0));
    assert_eq!(of("_sum", None), 1.6);
}

/// The same of an agent that only observes.
fn observing() -> Scrape {
    let mut scrape = Scrape { observes: true, ..scrape() };
    scrape.services.observed.insert((Some("default/web:http".into()), Locality::Zone), 5);
    scrape
}

#[test]
fn what_would_have_been_never_has_the_name_of_what_has_been() {
    let [translating, observing] =
        [scrape(), observing()].map(|scrape| read(&scrape.text().unwrap()));
    for name in ["connections", "refused_connections", "refusing_service_ports"] {
        let [own, would_be] = [format!("topo_lb_{name}"), format!("topo_lb_would_be_{name}")];
        assert!(translating.contains_key(&own) && !translating.contains_key(&would_be));
        assert!(observing.contains_key(&would_be) && !observing.contains_key(&own));
        assert_eq!(translating[&own].samples.len(), observing[&would_be].samples.len());
    }
    let (_, labels, value) = &observing["topo_lb_observed_connections"].samples[0];
    assert_eq!((labels["locality"].as_str(), *value), ("zone", 5.0));
}

#[test]
fn what_is_exported_is_what_is_declared() {
    let declared = declared::ALL.iter().map(|metric| {
        let labels: BTreeSet<_> = metric.labels.iter().map(|&label| label.to_owned()).collect();
        (metric.name.to_owned(), (<&str>::from(metric.kind).to_owned(), labels))
    });
    let mut exported = BTreeMap::new();
    let both = [scrape(), observing()].map(|scrape| read(&scrape.text().unwrap()));
    for (name, family) in both.into_iter().flatten() {
        let name = match family.kind.as_str() {
            "counter" => format!("{name}_total"),
            "info" => format!("{name}_info"),
            _ => name,
        };
        let labels = family.samples[0].1.keys().filter(|key| *key != "le").cloned();
        exported.insert(name, (family.kind, labels.collect()));
    }
    assert_eq!(declared.collect::<BTreeMap<_, _>>(), exported);
}

#[test]
fn the_documentation_lists_the_reasons_and_outcomes() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let doc = std::fs::read_to_string(path).unwrap();
    let outcomes = Outcome::ALL.map(Outcome::label);
    assert_eq!(first_cells(&doc, "`outcome` of a packet"), BTreeSet::from(outcomes));
    let failures = Failure::ALL.map(Failure::name);
    assert_eq!(first_cells(&doc, "`reason` of a failure"), BTreeSet::from(failures));
    let reasons = Refusal::ALL.map(<&str>::from);
    assert_eq!(first_cells(&doc, "`reason` of a refusal"), BTreeSet::from(reasons));
}

/// The first cells, without backquotes, of the table whose header begins with this cell.
fn first_cells<'a>(doc: &'a str, header: &str) -> BTreeSet<&'a str> {
    let header = format!("| {header} |");
    let table = doc.lines().skip_while(|line| !line.starts_with(&header));
    let rows = table.skip(2).take_while(|line| line.starts_with('|'));
    rows.filter_map(|row| Some(row.split('|').nth(1)?.trim().trim_matches('`'))).collect()
}
