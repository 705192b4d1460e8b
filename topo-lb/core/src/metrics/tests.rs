use std::fs;

use super::declared::{ALL, Metric, PREFIX};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
const BEGIN: &str = "<!-- The metrics: TOPO_LB_WRITE_GOLDEN=1 cargo test -p topo-lb-core --lib the_page_has writes them. -->\n";
const END: &str = "<!-- The end of the metrics. -->\n";

fn row(metric: &Metric) -> String {
    let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
    let meaning = [metric.help, metric.more].map(str::to_owned);
    let meaning = meaning.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>();
    let (kind, labels) = (<&str>::from(metric.kind), labels.join(", "));
    let row = format!("| `{}` | {kind} | {labels} | {} |\n", metric.name, meaning.join(". "));
    row.replace("|  |", "| |")
}

#[test]
fn the_page_has_every_metric() {
    let page = fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page marks where the metrics begin");
    let (_, after) = rest.split_once(END).expect("the page marks where the metrics end");
    let rows: String = ALL.iter().map(row).collect();
    let table = format!("\n| name | type | labels | meaning |\n|---|---|---|---|\n{rows}\n");
    let wanted = [before, BEGIN, &table, END, after].concat();
    if std::env::var_os("TOPO_LB_WRITE_GOLDEN").is_some() {
        fs::write(PAGE, wanted).unwrap();
        return;
    }
    assert!(page == wanted, "docs/metrics.md is out of date: its comment says what writes it");
}

#[test]
fn no_name_is_declared_twice_and_all_are_topo_lb_s() {
    for (place, metric) in ALL.iter().enumerate() {
        assert!(metric.name.starts_with(PREFIX), "{}", metric.name);
        assert!(ALL[..place].iter().all(|other| other.name != metric.name), "{}", metric.name);
    }
}
