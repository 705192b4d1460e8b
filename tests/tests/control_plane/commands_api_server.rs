//! Commands of our pages that need a cluster, run as they stand there against a real API server.

use anyhow::{Result, ensure};
use fs_err as fs;
use fs_err::os::unix::fs::symlink;
use serde_json::json;
use topo_lb_tests::control_plane::{ADMINISTRATOR, ControlPlane};
use topo_lb_tests::deployment::{NAME, helm, kubectl};
use topo_lb_tests::page::{Reader, block_after, marked, repository};
use topo_lb_tests::scene::{KEYS, ZONE};

/// A reader beside a checkout, and in one, with a cluster.
fn reader(plane: &ControlPlane<'_>) -> Result<Reader> {
    let mut reader = Reader::new()?;
    reader.install("kubectl", &kubectl()?)?;
    reader.install("helm", &helm()?)?;
    let root = fs::canonicalize(repository())?;
    symlink(&root, reader.folder().join(NAME))?;
    symlink(root.join("deploy"), reader.folder().join("deploy"))?;
    reader.set("KUBECONFIG", plane.kubeconfig(ADMINISTRATOR)?);
    Ok(reader)
}

/// Makes the objects that the pages name: two nodes, `default/web` with a policy, `shop/cart` without.
fn fill(reader: &Reader) -> Result<()> {
    let node = |name: &str, zone: &str| {
        let labels = json!({"kubernetes.io/hostname": name, ZONE: zone});
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
    };
    let mut items = vec![
        node("worker-1", "a"),
        node("worker-2", "b"),
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}),
    ];
    let keys = json!({KEYS: "topology.kubernetes.io/zone,*"});
    for (name, namespace, annotations) in [("web", "default", keys), ("cart", "shop", json!({}))] {
        let metadata = json!({"name": name, "namespace": namespace, "annotations": annotations});
        let ports = json!([{"name": "http", "port": 80}]);
        items.push(json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata,
            "spec": {"ports": ports}}));
        let labels = json!({"kubernetes.io/service-name": name});
        let metadata = json!({"name": name, "namespace": namespace, "labels": labels});
        let on = |address: &str, node: &str, zone: &str| {
            let topology = json!({"kubernetes.io/hostname": node, ZONE: zone});
            json!({"addresses": [address], "conditions": {"ready": true}, "topology": topology})
        };
        // What Kubernetes 1.20 knows.
        items.push(json!({"apiVersion": "discovery.k8s.io/v1beta1", "kind": "EndpointSlice",
            "metadata": metadata, "addressType": "IPv4", "ports": ports,
            "endpoints": [on("10.1.1.1", "worker-1", "a"), on("10.1.2.1", "worker-2", "b")]}));
    }
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    fs::write(reader.folder().join("objects.json"), list.to_string())?;
    reader.types("kubectl apply -f objects.json", &[]).map(drop)
}

#[test]
fn the_chart_is_installed_as_the_pages_say() -> Result<()> {
    let pages = [
        marked("README.md", "commands_api_server::the_chart_is_installed_as_the_pages_say")?,
        marked(
            "deploy/helm/topo-lb/README.md",
            "commands_api_server::the_chart_is_installed_as_the_pages_say",
        )?,
        marked(
            "docs/operations.md",
            "commands_api_server::the_chart_is_installed_as_the_pages_say",
        )?,
        marked(
            "docs/from-openyurt.md",
            "commands_api_server::the_chart_is_installed_as_the_pages_say",
        )?,
    ];
    for page in pages {
        let plane = ControlPlane::on_loopback()?;
        let reader = reader(&plane)?;
        fill(&reader)?;
        // The file of a release.
        reader.types("helm package deploy/helm/topo-lb", &[])?;
        if !page.commands.contains("create namespace") {
            reader.types("kubectl create namespace topo-lb", &[])?;
        }
        reader.types(&page.commands, &[])?;
        let get = "kubectl -n topo-lb get daemonset topo-lb -o jsonpath='{..image} {..args}'";
        let said = reader.types(get, &[])?;
        ensure!(said.contains("your.registry/topo-lb:"), "{said}\n{}", page.commands);
        let observes = page.commands.contains("--observe");
        ensure!(said.contains("--observe") == observes, "{said}\n{}", page.commands);
    }
    Ok(())
}

#[test]
fn a_kustomization_beside_a_checkout_is_applied() -> Result<()> {
    let plane = ControlPlane::on_loopback()?;
    let reader = reader(&plane)?;
    let kustomization = block_after("docs/operations.md", "Create a folder beside a checkout")?;
    // The API server of the tests knows neither the Prometheus Operator nor rules in CEL, and lets no
    // container be privileged.
    let unknown = ["components/prometheus", "components/policies", "components/mount-bpffs"];
    let knows = |line: &&str| !unknown.iter().any(|component| line.contains(component));
    let lines: Vec<_> = kustomization.lines().filter(knows).collect();
    fs::write(reader.folder().join("kustomization.yaml"), lines.join("\n"))?;
    let shown = marked(
        "docs/operations.md",
        "commands_api_server::a_kustomization_beside_a_checkout_is_applied",
    )?;
    reader.types(&shown.commands, &[])?;
    let get = "kubectl -n topo-lb get daemonset topo-lb -o jsonpath='{..image} {..env[*].name}'";
    let said = reader.types(get, &[])?;
    ensure!(said.contains("your.registry/topo-lb:") && said.contains("METRICS_LISTEN"), "{said}");
    Ok(())
}

#[test]
fn a_real_cluster_is_explained_linted_and_planned() -> Result<()> {
    let plane = ControlPlane::on_loopback()?;
    let reader = reader(&plane)?;
    fill(&reader)?;
    let operations = marked(
        "docs/operations.md",
        "commands_api_server::a_real_cluster_is_explained_linted_and_planned",
    )?;
    let bin = reader.folder().join("bin").display().to_string();
    let said = reader.types(&operations.commands, &[("/usr/local/bin", &bin)])?;
    // From the dump, and from the plugin of kubectl.
    ensure!(said.matches("default/web").count() >= 3, "{said}");
    ensure!(said.matches("Nothing found").count() == 2, "{said}");
    // From the API server itself.
    ensure!(said.contains("1 of 3 Service ports changes"), "{said}");
    let topology = marked(
        "docs/topology.md",
        "commands_api_server::a_real_cluster_is_explained_linted_and_planned",
    )?;
    fs::copy(reader.folder().join("cluster.json"), reader.folder().join("changed.json"))?;
    let said = reader.types(&topology.commands, &[])?;
    for wanted in ["Nothing found", "shop/cart", "1 of 3 Service ports changes"] {
        ensure!(said.contains(wanted), "nothing prints `{wanted}`:\n{said}");
    }
    Ok(())
}

#[test]
fn services_are_migrated_from_a_file_and_from_a_cluster() -> Result<()> {
    let plane = ControlPlane::on_loopback()?;
    let reader = reader(&plane)?;
    let services = "# Ours.\napiVersion: v1\nkind: Service\nmetadata:\n  name: pool\n  annotations:\n    \
                    openyurt.io/topologyKeys: kubernetes.io/hostname\nspec:\n  ports:\n  - port: 80\n";
    fs::write(reader.folder().join("services.yaml"), services)?;
    reader.types("kubectl apply -f services.yaml", &[])?;
    let shown = marked(
        "docs/from-topologykeys.md",
        "commands_api_server::services_are_migrated_from_a_file_and_from_a_cluster",
    )?;
    reader.types(&shown.commands, &[])?;
    let read = |name: &str| fs::read_to_string(reader.folder().join(name));
    let (new, changed) = (read("new.yaml")?, read("changed.yaml")?);
    ensure!(new.contains("# Ours.") && new.contains(KEYS), "{new}");
    ensure!(changed.contains(KEYS) && !changed.contains("name: kubernetes"), "{changed}");
    reader.types("kubectl apply -f changed.yaml", &[]).map(drop)
}

#[test]
fn services_of_openyurt_are_migrated_as_the_page_says() -> Result<()> {
    let plane = ControlPlane::on_loopback()?;
    let reader = reader(&plane)?;
    let annotated = "  annotations:\n    openyurt.io/topologyKeys: openyurt.io/nodepool\nspec:\n  ";
    let preferring = "spec:\n  trafficDistribution: PreferClose # near\n  ";
    let service = |name: &str, rest: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\n{rest}ports: [{{port: 80}}]\n"
        )
    };
    let services = format!("{}---\n{}", service("pool", annotated), service("zone", preferring));
    fs::write(reader.folder().join("services.yaml"), services)?;
    let shown = marked(
        "docs/from-openyurt.md",
        "commands_api_server::services_of_openyurt_are_migrated_as_the_page_says",
    )?;
    reader.types(&shown.commands, &[])?;
    let read = |name: &str| fs::read_to_string(reader.folder().join(name));
    let (new, closed) = (read("new.yaml")?, read("closed.yaml")?);
    let keys = |label: &str| format!("{KEYS}: \"{label}, kubernetes.io/hostname\"");
    let [pool, zone] = ["apps.openyurt.io/nodepool", ZONE].map(keys);
    ensure!(new.contains(&pool) && !new.contains(&zone), "{new}");
    ensure!(closed.contains(&pool) && closed.contains(&zone), "{closed}");
    ensure!(closed.contains("trafficDistribution: PreferClose # near"), "{closed}");
    Ok(())
}
