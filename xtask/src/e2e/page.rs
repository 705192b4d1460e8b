//! docs/conformance.md, made only from the results beside it and from the list of skipped specs.

use fs_err as fs;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::results::{Results, Spec, Verdict};
use super::skipped::{self, Skipped};
use crate::cluster::ServiceProxy;

const PAGE: &str = "conformance.md";

/// Writes the page from the results in `docs`.
///
/// # Errors
/// There are no results with one of the proxies, or they are of different specs.
pub(super) fn write(docs: &Path) -> Result<()> {
    Ok(fs::write(docs.join(PAGE), text(docs)?)?)
}

fn text(docs: &Path) -> Result<String> {
    let columns = Results::columns(docs)?;
    let (first, others) = columns.split_first().context("the page has columns")?;
    let all_alike = |is_alike: &dyn Fn(&Spec, &Spec) -> bool| {
        others.iter().all(|other| {
            let pairs = first.specs.iter().zip(&other.specs);
            first.specs.len() == other.specs.len() && pairs.into_iter().all(|(a, b)| is_alike(a, b))
        })
    };
    ensure!(
        others.iter().all(|other| other.kubernetes == first.kubernetes)
            && all_alike(&|a, b| a.name == b.name),
        "the results in docs/conformance are of different specs: run all again with --write-docs"
    );
    ensure!(
        all_alike(&|a, b| has_run(a) == has_run(b)),
        "the results in docs/conformance are of runs that skipped different specs"
    );
    let skipped = skipped::list()?;
    let titles: Vec<_> = columns.iter().map(|it| title(it.proxy)).collect();
    let mut text = format!(
        "<!-- Written by `cargo xtask e2e --write-docs`; what is changed by hand is lost. -->\n\
         # Kubernetes' own tests\n\n\
         `cargo xtask e2e` runs Kubernetes' `e2e.test` on a cluster of this machine: its specs of \
         Services, of EndpointSlices, of connections between Pods and Services, and of the names of \
         Services. All columns are of Kubernetes {}, of the same cluster and of the same specs:\n\n\
         {}\n\
         Each is of one run of four specs at a time, kept in [conformance](conformance); a time is of \
         a machine that also ran the cluster, and says nothing about the speed of a proxy.\n\n\
         | spec | {} |\n|---|{}\n",
        first.kubernetes,
        columns.iter().map(|it| format!("* {}\n", described(it.proxy))).collect::<String>(),
        titles.join(" | "),
        "---|".repeat(columns.len()),
    );
    for (place, spec) in first.specs.iter().enumerate().filter(|(_, it)| has_run(it)) {
        let cells: Vec<_> = columns.iter().map(|it| cell(&it.specs[place])).collect();
        let _ = writeln!(text, "| {} | {} |", escaped(&spec.name), cells.join(" | "));
    }
    let sums = columns.iter().map(|it| format!("{} passed, {} failed", it.passed, it.failed));
    let _ = writeln!(text, "| **all** | {} |", sums.collect::<Vec<_>>().join(" | "));
    text.push_str(&what_has_not_run(first, &skipped));
    Ok(text)
}

/// The title of a column.
fn title(proxy: ServiceProxy) -> &'static str {
    match proxy {
        ServiceProxy::TopoLb => "topo-lb alone",
        ServiceProxy::Beside => "topo-lb beside kube-proxy",
        ServiceProxy::KubeProxy | ServiceProxy::None => proxy.name(),
    }
}

/// What handles Services in a column.
fn described(proxy: ServiceProxy) -> &'static str {
    match proxy {
        ServiceProxy::TopoLb => {
            "`--proxy topo-lb`: topo-lb in place of kube-proxy (`--kube-proxy-replacement`)"
        }
        ServiceProxy::Beside => {
            "`--proxy topo-lb+kube-proxy`: topo-lb for all Services (`--scope all`) beside kube-proxy"
        }
        ServiceProxy::KubeProxy => "`--proxy kube-proxy`: kube-proxy alone",
        ServiceProxy::None => "`--proxy none`: nothing",
    }
}

fn has_run(spec: &Spec) -> bool {
    spec.result != Verdict::Skipped
}

/// The specs that no column has, with the reasons.
fn what_has_not_run(results: &Results, list: &[Skipped]) -> String {
    let mut text = String::from(
        "\n## Not run\n\nThe list is xtask/src/e2e/skipped.txt. Images of the tests other than agnhost \
         are agnhost under their names: jessie-dnsutils, of which the tests call only `dig` and \
         `getent`, and nginx, which only has to run. Before each spec of *Networking*, e2e.test asks \
         for `http://google.com`; xtask answers in its place.\n\n| spec | why |\n|---|---|\n",
    );
    for spec in results.specs.iter().filter(|it| !has_run(it)) {
        let reason = skipped::reason(list, &spec.name);
        let _ = writeln!(text, "| {} | {reason} |", escaped(&spec.name));
    }
    text
}

fn cell(spec: &Spec) -> String {
    match spec.result {
        Verdict::Skipped => "skipped".to_owned(),
        result => format!("{}, {:.0} s", result.name(), spec.seconds),
    }
}

/// Escapes what Markdown would read: names have brackets.
fn escaped(name: &str) -> String {
    name.replace('[', r"\[").replace(']', r"\]").replace('|', r"\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps results of one spec that has run and one that has not.
    fn keep(docs: &Path, proxy: ServiceProxy, ran: &str, result: Verdict) {
        let spec = |name: &str, result, seconds| Spec {
            name: name.to_owned(),
            result,
            seconds,
            why: String::new(),
        };
        let apart =
            spec("Services should reconcile LB health check interval", Verdict::Skipped, 0.0);
        let specs = vec![spec(ran, result, 12.3), apart];
        Results::new("1.20.2".to_owned(), proxy, specs).keep(docs).unwrap();
    }

    #[test]
    fn a_page_has_all_columns_and_what_has_not_run() {
        let docs = tempfile::tempdir().unwrap();
        let name = "[sig-network] Services should serve";
        keep(docs.path(), ServiceProxy::KubeProxy, name, Verdict::Passed);
        let error = text(docs.path()).unwrap_err().to_string();
        assert!(error.contains("--proxy topo-lb+kube-proxy --write-docs"), "{error}");
        keep(docs.path(), ServiceProxy::Beside, name, Verdict::Failed);
        let page = text(docs.path()).unwrap();
        let row = r"| \[sig-network\] Services should serve | passed, 12 s | failed, 12 s |";
        assert!(page.contains(row), "{page}");
        assert!(page.contains("| **all** | 1 passed, 0 failed | 0 passed, 1 failed |"), "{page}");
        assert!(page.contains("health check interval | takes a cloud's load balancer |"), "{page}");
        keep(docs.path(), ServiceProxy::TopoLb, name, Verdict::Passed);
        let page = text(docs.path()).unwrap();
        assert!(page.contains("serve | passed, 12 s | failed, 12 s | passed, 12 s |"), "{page}");
    }

    #[test]
    fn the_page_is_of_the_results_beside_it_and_every_spec_ends_alike() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        assert_eq!(fs::read_to_string(docs.join(PAGE)).unwrap(), text(&docs).unwrap());
        let columns = Results::columns(&docs).unwrap();
        for other in &columns[1..] {
            for (before, after) in columns[0].specs.iter().zip(&other.specs) {
                assert_eq!(before.result, after.result, "{} {}", other.proxy.name(), before.name);
            }
        }
    }

    #[test]
    fn columns_of_different_specs_are_no_page() {
        let docs = tempfile::tempdir().unwrap();
        keep(docs.path(), ServiceProxy::KubeProxy, "one", Verdict::Passed);
        keep(docs.path(), ServiceProxy::Beside, "another", Verdict::Passed);
        assert!(text(docs.path()).unwrap_err().to_string().contains("different specs"));
    }
}
