//! How the machine was booted: what the agent does on a kernel that lacks something, and what `topo-lb check` says of it.

use std::env;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use serde_json::Value;
use topo_lb_kernel::datapath::host::btf;
use topo_lb_tests::scene::{ALL, Scene, WEB4, WEB6, at, idle, known};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::{cgroup, map_memory};

/// The names of what `topo-lb check` finds limited, with commas; `?` or nothing: anything.
const LIMITED: &str = "TOPO_LB_LIMITED";

#[test]
fn check_says_what_this_machine_lacks_and_no_more() -> Result<()> {
    idle(|scene| {
        let root = cgroup::root()?;
        let root = root.to_str().context("a mount point is UTF-8")?;
        let pins = scene.agent.pins().to_str().context("a pin directory is UTF-8")?;
        let arguments = ["check", "-o", "json", "--kube-proxy-replacement", "--cgroup-root", root];
        let output = scene.binary.run(&[&arguments[..], &["--pin-dir", pins]].concat())?;
        let report: Value = serde_json::from_slice(&output.stdout)?;
        let mut limited = Vec::new();
        // The machine itself has no uplink.
        let findings = report["findings"].as_array().context("findings")?;
        for finding in findings.iter().filter(|it| it["name"] != "devices") {
            let text = |field: &str| finding[field].as_str().unwrap_or_default();
            println!("check: {:<8} {:<16} {}", text("status"), text("name"), text("sentence"));
            if text("status") != "ok" {
                ensure!(text("status") == "limited", "this machine runs an agent: {finding}");
                limited.push(text("name"));
            }
        }
        ensure!(findings.len() > 1, "nothing was looked at: {report}");
        let wanted = env::var(LIMITED).unwrap_or_else(|_| "?".to_owned());
        let limited = limited.join(", ");
        ensure!(wanted == "?" || wanted == limited, "limited are {limited:?}, not {wanted:?}");
        Ok(())
    })
}

/// Memory of the agent's process and of its maps, in KiB.
fn memory(scene: &Scene<'_>) -> Result<(u64, u64)> {
    let status = fs::read_to_string(format!("/proc/{}/status", scene.agent.process_id()?))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let process = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    let mut maps = 0;
    for pin in fs::read_dir(scene.agent.pins())? {
        let pin = pin?.path();
        // Links are in a folder of their own.
        if !pin.is_dir() {
            maps += map_memory::of(&pin)?;
        }
    }
    // 54 MiB at default sizes (docs/operations.md#sizing).
    ensure!(maps > 50 << 20, "{maps} bytes of maps in {}", scene.agent.pins().display());
    Ok((process.context("no VmRSS")?, maps / 1024))
}

/// How long an agent of default size may take.
const START: Duration = Duration::from_secs(30);

/// What an agent warns of without BTF.
const UNCOUNTED: &str = "what TCP connections to Services move is not counted";

fn has_btf() -> bool {
    Path::new(btf::KERNEL).exists()
}

#[test]
fn an_agent_of_default_size_starts_and_serves_and_warns_of_nothing_else() -> Result<()> {
    idle(|scene| {
        for flag in ["--max-services", "--max-endpoints", "--max-flows"] {
            scene.agent.unset(flag);
        }
        scene.agent.set("--kube-proxy-replacement", "");
        scene.agent.set("--tc-devices", "pod*");
        let begun = Instant::now();
        scene.agent.launch()?;
        scene.agent.wait_for_log("datapath attached", START)?;
        scene.agent.wait_until_ready()?;
        let took = begun.elapsed().as_millis();
        let (process, maps) = memory(scene)?;
        let cpus = std::thread::available_parallelism()?;
        println!();
        println!("start: {took} ms on {cpus} CPUs; the agent {process} KiB, its maps {maps} KiB");
        for via in [Via::Http, Via::UdpConnected, Via::Udp] {
            for to in known([at(WEB4)?, at(WEB6)?]) {
                scene.expect(via, to, &ALL)?;
            }
        }
        let mut machine = scene.cluster.machine("client")?;
        for to in known([at(WEB4)?, at(WEB6)?]) {
            machine.expect(Via::Http, to, &ALL)?;
        }
        // Last, as it takes some connections until the agent has warned of all that it does not like.
        let log = scene.agent.log();
        let warnings: Vec<_> = log.lines().filter(|line| !line.contains("\"INFO\"")).collect();
        let are_known = warnings.iter().all(|line| line.contains(UNCOUNTED) && !has_btf());
        ensure!(are_known, "the agent warns: {warnings:?}");
        Ok(())
    })
}
