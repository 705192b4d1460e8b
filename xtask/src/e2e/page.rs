//! docs/conformance.md, made only from the results beside it and from the lists of specs with reasons.

use fs_err as fs;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Result, ensure};

use super::reasons::{self, Reason};
use super::results::{Results, Spec, Verdict};
use crate::cluster::ServiceProxy;

const PAGE: &str = "conformance.md";

/// Writes the page from the results in `docs`.
///
/// # Errors
/// There are no results with one of the proxies, or those of one version are of different specs.
pub(super) fn write(docs: &Path) -> Result<()> {
    Ok(fs::write(docs.join(PAGE), text(docs)?)?)
}

fn text(docs: &Path) -> Result<String> {
    let versions = Results::columns(docs)?;
    for columns in &versions {
        check(columns)?;
    }
    let columns: Vec<&Results> = versions.iter().flatten().collect();
    let kubernetes: Vec<_> = versions.iter().map(|it| it[0].kubernetes.as_str()).collect();
    let title = |it: &&Results| match versions.len() {
        1 => title(it.proxy).to_owned(),
        _ => format!("{}: {}", it.minor(), title(it.proxy)),
    };
    let titles: Vec<_> = columns.iter().map(title).collect();
    let mut proxies: Vec<ServiceProxy> = Vec::new();
    for column in &columns {
        if !proxies.contains(&column.proxy) {
            proxies.push(column.proxy);
        }
    }
    let mut text = format!(
        "<!-- Written by `cargo xtask e2e --write-docs`; what is changed by hand is lost. -->\n\
         # Kubernetes' own tests\n\n\
         `cargo xtask e2e` runs Kubernetes' `e2e.test` on a cluster of this machine: its specs of \
         Services, of EndpointSlices, of connections between Pods and Services, and of the names of \
         Services. The columns are of Kubernetes {}; all of a version are of the same cluster and of \
         the same specs:\n\n\
         {}\n\
         Each is of one run of four specs at a time. [conformance](conformance) has every spec; the table has \
         those that have not passed everywhere, and the sum.\n\n\
         | spec | {} |\n|---|{}\n",
        kubernetes.join(", "),
        proxies.into_iter().map(|it| format!("* {}\n", described(it))).collect::<String>(),
        titles.join(" | "),
        "---|".repeat(columns.len()),
    );
    let all = |is_meant: fn(&Spec) -> bool| -> BTreeSet<&str> {
        let specs = columns.iter().flat_map(|it| &it.specs).filter(|it| is_meant(it));
        specs.map(|it| it.name.as_str()).collect()
    };
    for name in all(|it| it.result == Verdict::Failed) {
        let cells: Vec<_> =
            columns.iter().map(|it| cell(it.specs.iter().find(|it| it.name == name))).collect();
        let _ = writeln!(text, "| {} | {} |", escaped(name), cells.join(" | "));
    }
    let sums = columns.iter().map(|it| format!("{} passed, {} failed", it.passed, it.failed));
    let _ = writeln!(text, "| **all** | {} |", sums.collect::<Vec<_>>().join(" | "));
    text.push_str(&what_differs(&reasons::differences()?));
    text.push_str(&what_has_not_run(&all(|it| !has_run(it)), &reasons::skipped()?));
    Ok(text)
}

/// Checks that the columns of a version can be compared.
fn check(columns: &[Results]) -> Result<()> {
    let Some((first, others)) = columns.split_first() else { return Ok(()) };
    let all_alike = |is_alike: &dyn Fn(&Spec, &Spec) -> bool| {
        others.iter().all(|other| {
            let pairs = first.specs.iter().zip(&other.specs);
            first.specs.len() == other.specs.len() && pairs.into_iter().all(|(a, b)| is_alike(a, b))
        })
    };
    ensure!(
        others.iter().all(|other| other.kubernetes == first.kubernetes)
            && all_alike(&|a, b| a.name == b.name),
        "the results in docs/conformance/{} are of different specs: run all again with --write-docs",
        first.minor()
    );
    ensure!(
        all_alike(&|a, b| has_run(a) == has_run(b)),
        "the results in docs/conformance/{} are of runs that skipped different specs",
        first.minor()
    );
    Ok(())
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

/// What topo-lb does otherwise on purpose.
fn what_differs(list: &[Reason]) -> String {
    let mut text = String::from(
        "\n## What topo-lb does otherwise\n\nOn purpose, in every version of Kubernetes that has these specs. The \
         list is xtask/src/e2e/differences.txt.\n\n| specs whose names match | why |\n|---|---|\n",
    );
    for Reason { names, reason } in list {
        let _ = writeln!(text, "| {} | {reason} |", escaped(names.as_str()));
    }
    text
}

/// The specs that a column lacks, with the reasons.
fn what_has_not_run(names: &BTreeSet<&str>, list: &[Reason]) -> String {
    let mut text = String::from(
        "\n## Not run\n\nThe list is xtask/src/e2e/skipped.txt. Images of the tests other than agnhost \
         and busybox are agnhost under their names: jessie-dnsutils or glibc-dns-testing, of which the tests \
         call only `dig` and `getent`, and nginx, which only has to run. Before each spec of *Networking*, \
         e2e.test asks for `http://google.com`; xtask answers in its place.\n\n| why | specs |\n|---|---|\n",
    );
    let mut by_reason: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for name in names {
        by_reason.entry(reasons::of_skipped(list, name)).or_default().push(escaped(name));
    }
    for (reason, names) in by_reason {
        let _ = writeln!(text, "| {reason} | {} |", names.join("; "));
    }
    text
}

/// What a column says of a spec; its version may not have it.
fn cell(spec: Option<&Spec>) -> String {
    spec.map_or("–", |spec| spec.result.name()).to_owned()
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
        keep_of("1.20.2", docs, proxy, ran, result);
    }

    fn keep_of(version: &str, docs: &Path, proxy: ServiceProxy, ran: &str, result: Verdict) {
        let spec = |name: &str, result, seconds| Spec {
            name: name.to_owned(),
            result,
            seconds,
            why: String::new(),
        };
        let apart =
            spec("Services should reconcile LB health check interval", Verdict::Skipped, 0.0);
        let specs = vec![spec(ran, result, 12.3), apart];
        Results::new(version.to_owned(), proxy, specs).keep(docs).unwrap();
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
        let row = r"| \[sig-network\] Services should serve | passed | failed |";
        assert!(page.contains(row), "{page}");
        assert!(page.contains("| **all** | 1 passed, 0 failed | 0 passed, 1 failed |"), "{page}");
        assert!(page.contains("| takes a cloud's load balancer | Services should reconcile LB health check interval |"), "{page}");
        keep(docs.path(), ServiceProxy::TopoLb, name, Verdict::Passed);
        let page = text(docs.path()).unwrap();
        assert!(page.contains("serve | passed | failed | passed |"), "{page}");
        assert!(page.contains("Networking should check kube-proxy urls"), "{page}");
    }

    #[test]
    fn a_page_has_columns_of_each_version_in_their_order() {
        let docs = tempfile::tempdir().unwrap();
        for version in ["1.36.1", "1.9.0"] {
            for proxy in [ServiceProxy::KubeProxy, ServiceProxy::Beside] {
                keep_of(version, docs.path(), proxy, "in both", Verdict::Passed);
            }
        }
        let new = ServiceProxy::TopoLb;
        keep_of("1.36.1", docs.path(), new, "in both", Verdict::Failed);
        let page = text(docs.path()).unwrap();
        assert!(page.contains("are of Kubernetes 1.9.0, 1.36.1;"), "{page}");
        let titles = "| 1.9: kube-proxy | 1.9: topo-lb beside kube-proxy | 1.36: kube-proxy | ";
        assert!(page.contains(titles), "{page}");
        let passed = "passed | ".repeat(4);
        assert!(page.contains(&format!("| in both | {passed}failed |")), "{page}");
        for proxy in [ServiceProxy::KubeProxy, ServiceProxy::Beside, new] {
            keep_of("1.36.1", docs.path(), proxy, "in one", Verdict::Failed);
        }
        let page = text(docs.path()).unwrap();
        assert!(page.contains("| in one | – | – | failed | failed | failed |"), "{page}");
        assert!(!page.contains("| in both |"), "what has passed everywhere is in the sum: {page}");
    }

    #[test]
    fn the_page_is_of_the_results_beside_it_and_every_spec_ends_alike() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        assert_eq!(fs::read_to_string(docs.join(PAGE)).unwrap(), text(&docs).unwrap());
        for columns in Results::columns(&docs).unwrap() {
            for other in &columns[1..] {
                for (before, after) in columns[0].specs.iter().zip(&other.specs) {
                    assert_eq!(
                        before.result,
                        after.result,
                        "{} {}",
                        other.proxy.name(),
                        before.name
                    );
                }
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
