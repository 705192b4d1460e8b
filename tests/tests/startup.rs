//! What keeps an agent from starting: one sentence each, exit code 1, and nothing half attached.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use rustix::thread::CapabilitySet;
use topo_lb_tests::process;
use topo_lb_tests::scene::{Scene, WEB4, at, prepared};
use topo_lb_tests::traffic::Via;

/// Runs the scene's agent, changed by `change`, which must end with code 1 and say one sentence
/// that holds all of `wanted`; nothing may be pinned or attached.
fn refused(
    scene: &mut Scene<'_>,
    change: impl FnOnce(&mut Command),
    wanted: &[&str],
) -> Result<()> {
    let mut command = scene.agent.command()?;
    change(&mut command);
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
fn a_node_name_that_no_node_has() -> Result<()> {
    prepared(
        |_| {},
        |scene| {
            let change = |command: &mut Command| {
                command.args(["--node-name", "nowhere"]);
            };
            refused(scene, change, &["nowhere", "--node-name"])
        },
    )
}

#[test]
fn no_cgroup2_at_the_cgroup_root() -> Result<()> {
    prepared(
        |_| {},
        |scene| {
            for wrong in ["/proc", "/no/such/cgroup"] {
                let change = |command: &mut Command| {
                    command.args(["--cgroup-root", wrong]);
                };
                refused(scene, change, &[wrong, "cgroup"])?;
            }
            Ok(())
        },
    )
}

#[test]
fn no_bpffs_at_the_pin_directory() -> Result<()> {
    prepared(
        |_| {},
        |scene| {
            let wrong = scene.cluster.folder().join("pins");
            let change = |command: &mut Command| {
                command.arg("--pin-dir").arg(&wrong);
            };
            refused(scene, change, &[&wrong.display().to_string(), "bpf"])
        },
    )
}

#[test]
fn a_capability_that_is_missing() -> Result<()> {
    prepared(
        |_| {},
        |scene| {
            let cases = [
                (CapabilitySet::BPF | CapabilitySet::SYS_ADMIN, "CAP_BPF"),
                (CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN, "CAP_NET_ADMIN"),
            ];
            for (capabilities, name) in cases {
                refused(scene, |command| process::without(command, capabilities), &[name])?;
            }
            Ok(())
        },
    )
}

#[test]
fn manifests_that_cannot_be_read() -> Result<()> {
    prepared(
        |_| {},
        |scene| {
            let missing = scene.cluster.folder().join("missing");
            let change = |command: &mut Command| {
                command.arg("--manifests").arg(&missing);
            };
            refused(scene, change, &[&missing.display().to_string()])?;

            let whole = fs::read_to_string(scene.manifests.file())?;
            scene.manifests.replace(&whole[..whole.len() / 2])?;
            refused(scene, |_| {}, &["cluster.json"])
        },
    )
}

#[test]
fn a_flag_that_does_not_exist_is_wrong_usage() -> Result<()> {
    prepared(
        |_| {},
        |scene| {
            let mut command = scene.agent.command()?;
            command.arg("--no-such-flag");
            let (status, said) = scene.agent.run_to_end(command)?;
            ensure!(status.code() == Some(2), "{status}: {said}");
            Ok(())
        },
    )
}

#[test]
fn a_failed_start_leaves_the_running_datapath_alone() -> Result<()> {
    prepared(
        |_| {},
        |scene| {
            scene.agent.resume()?;
            let before = scene.agent.objects()?;
            scene.agent.stop()?;
            let mut command = scene.agent.command()?;
            command.args(["--node-name", "nowhere"]);
            let (status, said) = scene.agent.run_to_end(command)?;
            ensure!(status.code() == Some(1), "{status}: {said}");
            ensure!(scene.agent.objects()? == before, "{said}");
            scene.expect(Via::Http, at(WEB4)?, &["a", "b", "c", "d"])
        },
    )
}

#[test]
fn this_host_can_run_it_says_check() -> Result<()> {
    prepared(
        |_| {},
        |scene| {
            let root = topo_lb_tests::cgroup::root()?;
            let root = root.to_str().context("a mount point is UTF-8")?;
            let pins = scene.agent.pins().to_str().context("a pin directory is UTF-8")?;
            let arguments = ["check", "--cgroup-root", root, "--pin-dir", pins];
            let output = scene.binary.run(&arguments)?;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
            ensure!(!scene.agent.pins().exists(), "check has left its pins");
            Ok(())
        },
    )
}
