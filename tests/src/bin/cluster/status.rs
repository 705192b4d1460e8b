//! Shows what runs.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use comfy_table::{Table, presets};
use serde_json::json;
use topo_lb_tests::deployment::kubectl;
use topo_lb_tests::kubernetes::state::{Node, State};
use topo_lb_tests::process::printed;

/// Whether a cluster is up.
pub(crate) fn run(as_json: bool) -> Result<bool> {
    let Some(state) = State::of_machine()? else {
        eprintln!("no cluster is up");
        return Ok(false);
    };
    let Some(kubeconfig) = &state.kubeconfig else {
        eprintln!("a cluster is coming up");
        return Ok(false);
    };
    if as_json {
        let value = serde_json::to_value(&state).context("a state is always JSON")?;
        println!("{}", json!(value));
        return Ok(true);
    }
    println!("Kubernetes {}, Services by {}", state.kubernetes, state.proxy.name());
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["NODE", "ADDRESS", "NETWORK NAMESPACE", "PROGRAMS"]);
    for node in &state.nodes {
        table.add_row([&node.name, &node.address, &node.netns, &programs(node)]);
    }
    println!("{table}\n");
    let mut pods = Command::new(kubectl()?);
    pods.env("KUBECONFIG", kubeconfig).args(["get", "pods", "-A", "-o", "wide"]);
    print!("{}", printed(&mut pods)?);
    println!("\nexport KUBECONFIG={}", kubeconfig.display());
    if let Some(url) = &state.prometheus {
        println!("Prometheus: {url}");
    }
    Ok(true)
}

fn programs(node: &Node) -> String {
    let program = |(name, id): &(String, u32)| {
        let runs = Path::new("/proc").join(id.to_string()).exists();
        if runs { format!("{name} ({id})") } else { format!("{name} (ended)") }
    };
    node.programs.iter().map(program).collect::<Vec<_>>().join(", ")
}
