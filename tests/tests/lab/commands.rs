//! Commands of our pages that need no cluster, run as they stand there.

use anyhow::{Result, ensure};
use fs_err as fs;
use serde_json::json;
use topo_lb_tests::manifest::{endpoint, node, service, slice};
use topo_lb_tests::page::{Reader, block_after, marked};
use topo_lb_tests::prefix::Prefix;
use topo_lb_tests::scene::ZONE;
use topo_lb_tests::{cgroup, requirements};

/// A cluster with the names that the pages use.
fn cluster() -> String {
    let port = [("http", 80, "TCP")];
    let nodes = [("worker-1", "a"), ("worker-2", "b")];
    let mut items: Vec<_> = nodes.iter().map(|(name, zone)| node(name, &[(ZONE, zone)])).collect();
    items.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}));
    for (name, namespace, address) in
        [("web", "default", "10.96.0.10"), ("cart", "shop", "10.96.0.11")]
    {
        let endpoints =
            [endpoint("10.1.1.1", "worker-1", "p1"), endpoint("10.1.2.1", "worker-2", "p2")];
        for mut object in
            [service(name, &[address], &port, &[]), slice(name, "IPv4", &port, &endpoints)]
        {
            object["metadata"]["namespace"] = namespace.into();
            items.push(object);
        }
    }
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

#[test]
fn try_prints_what_the_readme_shows() -> Result<()> {
    requirements::check()?;
    let shown = marked("README.md", "commands::try_prints_what_the_readme_shows")?;
    let said = Reader::new()?.types(&shown.commands, &[("sudo ./topo-lb", "topo-lb")])?;
    // Which of two endpoints a client gets is chance, unless there is a policy.
    let is_chance = |line: &String| line.contains("→ zone-") && !line.contains("100");
    let (chance, sure): (Vec<_>, Vec<_>) = shown.output.iter().partition(|line| is_chance(line));
    ensure!(chance.len() == 2 && sure.len() > 6, "the README shows {chance:?} and {sure:?}");
    let said: Vec<_> = said.lines().map(str::trim).collect();
    for line in sure {
        ensure!(said.contains(&line.as_str()), "it does not print `{line}`:\n{}", said.join("\n"));
    }
    Ok(())
}

#[test]
fn a_file_of_the_cluster_is_enough_to_explain_lint_and_plan() -> Result<()> {
    let reader = Reader::new()?;
    fs::write(reader.folder().join("cluster.yaml"), cluster())?;
    let shown =
        marked("README.md", "commands::a_file_of_the_cluster_is_enough_to_explain_lint_and_plan")?;
    let said = reader.types(&shown.commands, &[])?;
    for wanted in ["10.1.1.1", "Nothing found.", "1 of 2 Service ports changes."] {
        ensure!(said.contains(wanted), "nothing prints `{wanted}`:\n{said}");
    }
    Ok(())
}

/// A reader with that cluster, and with what its agents have counted.
fn reader_of_metrics(all: [(&str, u64); 2]) -> Result<Reader> {
    let reader = Reader::new()?;
    fs::write(reader.folder().join("cluster.json"), cluster())?;
    fs::create_dir(reader.folder().join("metrics"))?;
    for (node, bytes) in all {
        let series = |what: &str| {
            format!(
                "# TYPE topo_lb_tcp_{what}_bytes counter\ntopo_lb_tcp_{what}_bytes_total{{\
                 namespace=\"shop\",service=\"cart\",port=\"http\",locality=\"region\",tier=\"none\"}} \
                 {bytes}\n"
            )
        };
        let text = series("sent") + &series("received") + "# EOF\n";
        fs::write(reader.folder().join("metrics").join(node), text)?;
    }
    Ok(reader)
}

#[test]
fn advice_is_what_the_page_shows() -> Result<()> {
    let reader = reader_of_metrics([("worker-1", 300_000_000_000), ("worker-2", 500_000_000_000)])?;
    let shown = marked("docs/cost.md", "commands::advice_is_what_the_page_shows")?;
    let said = reader.types(&shown.commands, &[])?;
    ensure!(shown.output.len() > 4, "{shown:?}");
    for line in &shown.output {
        ensure!(said.contains(line.trim_end()), "it does not print `{line}`:\n{said}");
    }
    let made = fs::read_to_string(reader.folder().join("policies/shop_cart.yaml"))?;
    ensure!(made.contains("topology.kubernetes.io/zone,*"), "{made}");
    Ok(())
}

#[test]
fn a_plan_counts_the_bytes_of_agents() -> Result<()> {
    let reader = reader_of_metrics([("worker-1", 1000), ("worker-2", 3000)])?;
    let shown = marked("docs/cost.md", "commands::a_plan_counts_the_bytes_of_agents")?;
    let said = reader.types(&shown.commands, &[])?;
    ensure!(said.contains("8.0 kB moved"), "{said}");
    Ok(())
}

#[test]
fn check_prints_what_operations_shows() -> Result<()> {
    requirements::check()?;
    let shown = marked("docs/operations.md", "commands::check_prints_what_operations_shows")?;
    let mut reader = Reader::new()?;
    // A host may mount cgroup v2 beside v1.
    reader.set("TOPO_LB_CGROUP_ROOT", cgroup::root()?);
    let said = reader.types(&shown.commands, &[])?;
    let is_this_host = |line: &&String| line.contains("Linux");
    ensure!(shown.output.len() > 4, "{shown:?}");
    for line in shown.output.iter().filter(|line| !is_this_host(line)) {
        ensure!(said.contains(line.as_str()), "it does not print `{line}`:\n{said}");
    }
    Ok(())
}

#[test]
fn an_agent_by_hand_serves_one_cgroup() -> Result<()> {
    requirements::check()?;
    requirements::command("curl", "curl")?;
    requirements::command("python3", "python3")?;
    let (mut reader, prefix) = (Reader::new()?, Prefix::new());
    reader.go_alone();
    let manifests = block_after("docs/operations.md", "Save this as `try.yaml`")?;
    fs::write(reader.folder().join("try.yaml"), manifests)?;
    let shown = marked("docs/operations.md", "commands::an_agent_by_hand_serves_one_cgroup")?;
    let (name, root) = (prefix.name("try"), format!("{}/", cgroup::root()?.display()));
    let said = reader.types(
        &shown.commands,
        &[
            // The next lab removes what has these names, if this process is killed.
            ("topo-lb-try", &name),
            ("/sys/fs/cgroup/", &root),
            // A reader does not type this fast.
            (
                "topo-lb probe readyz",
                "timeout 60 bash -c 'until topo-lb probe readyz; do sleep 0.1; done'",
            ),
            ("curl -sI", "curl --retry 60 --retry-delay 1 --retry-connrefused -sI"),
        ],
    )?;
    for wanted in ["200 OK", "default/web", "[+] hooks"] {
        ensure!(said.contains(wanted), "nothing prints `{wanted}`:\n{said}");
    }
    ensure!(!cgroup::root()?.join(&name).exists(), "the cgroup is left");
    Ok(())
}
