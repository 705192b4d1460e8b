//! The bench compares with a real kube-proxy in each part that can, in one run.

use std::env;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use topo_lb_tests::kube_proxy::VARIABLE;
use topo_lb_tests::process::printed;

#[test]
fn both_parts_that_compare_with_kube_proxy_find_it() -> Result<()> {
    let program = env::var_os(VARIABLE).filter(|path| !path.is_empty()).with_context(|| {
        format!(
            "{VARIABLE} does not name kube-proxy: `cargo xtask test --only cluster` builds one and sets it"
        )
    })?;
    let version = printed(Command::new(program).arg("--version"))?;
    ensure!(
        version.contains(" v1.20."),
        "it takes kube-proxy 1.20, and {VARIABLE} names {}",
        version.trim()
    );
    let mut bench = Command::new(env!("CARGO_BIN_EXE_bench"));
    bench.args(["--quick", "--json", "--part", "connect", "--part", "external"]);
    let output = bench.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).context("not JSON alone")?;
    let results = report["results"].as_array().context("no results")?;
    for name in ["exchange_us", "external_us"] {
        let is_it = |result: &&Value| {
            let proxy = result["params"]["proxy"].as_str();
            result["name"] == name && proxy.is_some_and(|it| it.starts_with("kube-proxy"))
        };
        ensure!(results.iter().any(|result| is_it(&result)), "no {name} of kube-proxy: {said}");
    }
    Ok(())
}
