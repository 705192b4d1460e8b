//! Failures to start: the agent logs one sentence, exits with 1, and leaves nothing attached.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use rustix::thread::CapabilitySet;
use serde_json::Value;
use topo_lb_tests::binary::row;
use topo_lb_tests::memory::Limit;
use topo_lb_tests::process;
use topo_lb_tests::scene::{ALL, HERE, Scene, WEB4, at, idle};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::wait::PATIENCE;

/// Runs `command`, an agent, which must end with code 1 and log one line that contains all of
/// `wanted`. Nothing may be pinned or attached.
fn refused(scene: &mut Scene<'_>, command: Command, wanted: &[&str]) -> Result<()> {
    let (status, said) = scene.agent.run_to_end(command)?;
    ensure!(status.code() == Some(1), "{status}: {said}");
    for word in wanted {
        ensure!(said.contains(word), "no {word:?} in: {said}");
    }
    ensure!(said.trim().lines().count() == 1, "more than one line: {said}");
    ensure!(!said.contains("panicked"), "{said}");
    ensure!(!scene.agent.pins().exists(), "{} is there", scene.agent.pins().display());
    scene.expect(Via::Http, at(WEB4)?, &["untouched"])
}

#[test]
fn flags_that_do_not_fit_the_host_or_the_cluster() -> Result<()> {
    idle(|scene| {
        let folder = scene.cluster.folder();
        let (pins, missing) = (folder.join("pins"), folder.join("missing"));
        let (pins, missing) = (pins.to_str().context("UTF-8")?, missing.to_str().context("UTF-8")?);
        let cases: [(&str, &str, &[&str]); 5] = [
            ("--node-name", "nowhere", &["nowhere", "--node-name", "here"]),
            ("--cgroup-root", "/proc", &["/proc is not a cgroup v2 directory"]),
            ("--cgroup-root", "/no/such/place", &["/no/such/place"]),
            ("--pin-dir", pins, &[pins, "mount -t bpf"]),
            ("--manifests", missing, &[missing]),
        ];
        for (flag, value, wanted) in cases {
            let command = scene.agent.command_with(&[(flag, value)])?;
            refused(scene, command, wanted)?;
        }
        ensure!(!Path::new(pins).exists(), "{pins} was made");
        let whole = fs::read_to_string(scene.manifests.file())?;
        scene.manifests.replace(&whole[..whole.len() / 2])?;
        let command = scene.agent.command()?;
        refused(scene, command, &["cluster.json"])?;

        // What is wrong with the host is logged without waiting for an API server.
        scene.agent.unset("--manifests");
        scene.agent.set("--api-server", "http://127.0.0.1:9");
        let command = scene.agent.command_with(&[("--cgroup-root", "/proc")])?;
        refused(scene, command, &["/proc is not a cgroup v2 directory"])
    })
}

#[test]
fn a_memory_limit_that_the_maps_do_not_fit_under() -> Result<()> {
    idle(|scene| {
        // Each of the two maps of `--max-flows` is larger than the limit. The process and the other maps
        // are far smaller, and maps are made in no order: a limit that the process itself comes near
        // to would have the kernel kill it.
        let limit = Limit::make(scene.cluster.prefix(), 192 << 20)?;
        let mut command = scene.agent.command_with(&[("--max-flows", "4000000")])?;
        limit.apply(&mut command)?;
        let wanted = ["no memory for a map", "affinity", "memory limit", "--max-services"];
        refused(scene, command, &wanted)
    })
}

#[test]
fn a_memory_limit_that_full_tables_of_connections_do_not_fit_under() -> Result<()> {
    idle(|scene| {
        let limit = Limit::make(scene.cluster.prefix(), 256 << 20)?;
        let root = scene.cluster.node(HERE)?.cgroup_path().to_str().context("UTF-8")?;
        let mut check = scene.binary.command(&["check", "--cgroup-root", root, "-o", "json"]);
        limit.apply(&mut check)?;
        let report: Value = serde_json::from_slice(&check.output()?.stdout)?;
        let found = row(&report["findings"], "name", "connections")?;
        let sentence = found["sentence"].as_str().unwrap_or_default();
        let wanted = "and the memory limit is 256 MiB: the kernel would kill the agent";
        ensure!(found["status"] == "limited" && sentence.ends_with(wanted), "{found}");

        // It ends, as there is no such node.
        let flags = [
            ("--kube-proxy-replacement", ""),
            ("--max-connections", "131072"),
            ("--node-name", "nowhere"),
        ];
        let mut command = scene.agent.command_with(&flags)?;
        limit.apply(&mut command)?;
        let (_, said) = scene.agent.run_to_end(command)?;
        ensure!(said.contains("with 131072 open connections") && said.contains(wanted), "{said}");
        Ok(())
    })
}

#[test]
fn a_capability_that_is_missing() -> Result<()> {
    idle(|scene| {
        let cases = [
            (CapabilitySet::BPF | CapabilitySet::SYS_ADMIN, "CAP_BPF"),
            (CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN, "CAP_NET_ADMIN"),
            (CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN, "CAP_PERFMON"),
        ];
        for (capabilities, name) in cases {
            let mut command = scene.agent.command()?;
            process::without(&mut command, capabilities);
            refused(scene, command, &[name])?;
        }
        Ok(())
    })
}

#[test]
fn a_failed_start_leaves_the_running_datapath_alone() -> Result<()> {
    idle(|scene| {
        scene.agent.resume()?;
        let before = scene.agent.objects()?;
        scene.agent.stop()?;
        // A flag that does not exist is wrong usage.
        for (flag, code) in [("--node-name", 1), ("--no-such-flag", 2)] {
            let command = scene.agent.command_with(&[(flag, "nowhere")])?;
            let (status, said) = scene.agent.run_to_end(command)?;
            ensure!(status.code() == Some(code), "{status}: {said}");
            ensure!(scene.agent.objects()? == before, "{said}");
        }
        scene.expect(Via::Http, at(WEB4)?, &ALL)
    })
}

#[test]
fn without_an_api_server_the_last_agents_datapath_serves_and_the_next_agent_waits() -> Result<()> {
    idle(|scene| {
        scene.agent.resume()?;
        let before = scene.agent.objects()?;
        scene.agent.stop()?;
        scene.agent.unset("--manifests");
        scene.agent.set("--api-server", "http://127.0.0.1:9");
        scene.agent.launch()?;
        for said in ["cannot reach the API server", "by what the last agent left"] {
            scene.agent.wait_for_log(said, PATIENCE)?;
        }
        ensure!(scene.agent.objects()? == before);
        scene.expect(Via::Http, at(WEB4)?, &ALL)?;
        scene.agent.stop()?;
        scene.agent.unset("--api-server");
        scene.agent.set("--manifests", scene.manifests.folder());
        scene.agent.resume()
    })
}

#[test]
fn this_host_can_run_it_says_check() -> Result<()> {
    idle(|scene| {
        let root = topo_lb_tests::cgroup::root()?;
        let root = root.to_str().context("a mount point is UTF-8")?;
        let pins = scene.agent.pins().to_str().context("a pin directory is UTF-8")?;
        let arguments = ["check", "--cgroup-root", root, "--pin-dir", pins];
        let output = scene.binary.run(&arguments)?;
        ensure!(output.status.success(), "{output:?}");
        // Trials of several at once do not disturb each other, as an agent's while somebody asks. Without an agent, each
        // looks by a program of its own which ones run first, so another one may be named there.
        let start = || scene.binary.command(&arguments).stdout(Stdio::piped()).spawn();
        let started = (0..8).map(|_| start()).collect::<Result<Vec<_>, _>>()?;
        for check in started {
            let said = String::from_utf8(check.wait_with_output()?.stdout)?;
            let trial = said.lines().find(|line| line.contains(" self-probe "));
            ensure!(trial.is_some_and(|line| line.starts_with("ok ")), "{said}");
        }
        ensure!(!scene.agent.pins().exists(), "check has left its pins");
        Ok(())
    })
}
