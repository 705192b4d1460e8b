//! Interference by others on the host: removed pins, detached programs, additional programs.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use topo_lb_tests::agent::Agent;
use topo_lb_tests::binary::{json_of, row};
use topo_lb_tests::objects::Objects;
use topo_lb_tests::process::spawn_logged;
use topo_lb_tests::requirements::{self, BPFFS};
use topo_lb_tests::scene::{ALL, HERE, Scene, WEB4, at, play};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::wait::{until, until_is};

/// The agent inspects every second.
const NOTICES: Duration = Duration::from_secs(8);

/// Checks that no connection fails during `harm`, and that the agent keeps its objects.
fn unnoticed(scene: &Scene<'_>, harm: impl FnOnce() -> Result<()>) -> Result<()> {
    let before = scene.agent.objects()?;
    let mut caller = scene.cluster.pod("client")?.client()?;
    let (tally, ()) = caller.call_during(Via::Http, at(WEB4)?, harm)?;
    ensure!(tally.is_of(&ALL), "{tally}");
    ensure!(scene.agent.objects()? == before, "they are other objects than before");
    Ok(())
}

#[test]
fn pins_that_are_removed_are_back_soon_and_no_connection_fails() -> Result<()> {
    play(|scene| {
        unnoticed(scene, || {
            for (pin, word) in [
                ("links/connect4", "pin of the link connect4"),
                ("links/recvmsg6", "pin of the link recvmsg6"),
                ("services4", "pin of the map services4"),
                ("slots6", "pin of the map slots6"),
            ] {
                let path = scene.agent.pins().join(pin);
                fs::remove_file(&path).with_context(|| path.display().to_string())?;
                scene.agent.wait_for_log(word, NOTICES)?;
                ensure!(path.exists(), "{pin} is reported and not there");
            }
            Ok(())
        })?;
        scene.expect_web()
    })
}

#[test]
fn a_pin_directory_that_is_gone_is_made_again_with_all_that_was_in_it() -> Result<()> {
    play(|scene| {
        unnoticed(scene, || {
            // The agent may restore a pin meanwhile.
            let removed =
                || Ok(fs::remove_dir_all(scene.agent.pins()).map_err(|it| it.to_string()));
            until("the removal of the pin directory", NOTICES, removed)?;
            scene.agent.wait_for_log("the pin directory", NOTICES)
        })?;
        // The pin directory is locked again, against a second agent and against cleanup.
        let output = scene.agent.cleanup()?;
        ensure!(!output.status.success(), "cleanup has taken the maps of an agent that runs");
        // The pinned objects outlive the agent again.
        scene.agent.stop()?;
        scene.expect_web()
    })
}

/// Detaches a hook's program, as others could. Fails without its pin, while the agent restores it.
fn detach(agent: &Agent<'_>, hook: &str) -> Result<Result<(), String>> {
    let pin = agent.pins().join("links").join(hook);
    let output = Command::new("bpftool").args(["link", "detach", "pinned"]).arg(&pin).output()?;
    let said = || String::from_utf8_lossy(&output.stderr).into_owned();
    Ok(if output.status.success() { Ok(()) } else { Err(said()) })
}

#[test]
fn a_program_that_is_detached_is_attached_again_within_seconds() -> Result<()> {
    requirements::command("bpftool", "bpftool")?;
    play(|scene| {
        let agent = &scene.agent;
        for hook in ["connect4", "sendmsg6"] {
            let word = format!("the program of {hook} was detached");
            // Repeatedly: readiness reports it only from one inspection to the next.
            until(&format!("{word:?} on /readyz"), NOTICES, || {
                let detached = detach(agent, hook)?;
                let answer = agent.get("/readyz")?;
                let is_said = answer.status == 503 && answer.body.contains(&word);
                Ok(if is_said { Ok(()) } else { Err(format!("{answer}; {detached:?}")) })
            })?;
            agent.wait_for_log(&word, NOTICES)?;
        }
        agent.wait_for_answer("/readyz", NOTICES, |answer| answer.status == 200)?;
        scene.expect_web()?;
        scene.agent.stop()?;
        scene.expect_web()
    })
}

/// The id of the program that `list hooks` names for a hook.
fn program(hooks: &Value, name: &str) -> Result<u64> {
    let id = row(&hooks["hooks"]["each"], "hook", name)?["program"].as_u64();
    id.with_context(|| format!("no program: {hooks}"))
}

/// The ids of all programs that the kernel runs for processes in a cgroup.
fn effective(cgroup: &Path) -> Result<Vec<u64>> {
    requirements::command("bpftool", "bpftool")?;
    let mut command = Command::new("bpftool");
    command.args(["-j", "cgroup", "show"]).arg(cgroup).arg("effective");
    let shown: Vec<Value> = serde_json::from_slice(&command.output()?.stdout)?;
    Ok(shown.iter().filter_map(|program| program["id"].as_u64()).collect())
}

#[test]
fn programs_of_others_on_the_same_cgroup_run_beside_its_own() -> Result<()> {
    play(|scene| {
        let before = scene.agent.objects()?;
        // Another agent, with its own pins: programs at the same hooks.
        let pins = Path::new(BPFFS).join(scene.cluster.prefix().name("beside"));
        let mut other =
            Agent::prepare(&scene.binary, scene.cluster, HERE, scene.manifests.folder())?;
        other.set("--pin-dir", &pins);
        let mut command = other.command()?;
        // Dropping it would clean up the first agent's objects.
        std::mem::forget(other);
        let log = scene.cluster.folder().join("beside.log");
        let other = spawn_logged(&mut command, &log)?;
        let said = || Ok(fs::read_to_string(&log)?);
        until_is("the other agent", NOTICES, said, |said| said.contains("datapath attached"))?;
        scene.cluster.remember(&Objects::pinned(&pins)?);
        scene.expect_web()?;
        ensure!(scene.agent.objects()? == before, "the first agent's objects are others");
        let mut list = scene.binary.command(&["list", "hooks", "-o", "json", "--pin-dir"]);
        list.arg(&pins);
        let beside = json_of(list)?;
        let own = scene.agent.list("hooks")?;
        let run = effective(scene.cluster.node(HERE)?.cgroup_path())?;
        for hook in ["connect4", "sendmsg6"] {
            for program in [program(&own, hook)?, program(&beside, hook)?] {
                ensure!(run.contains(&program), "{hook}: {program} is not among {run:?}");
            }
        }
        drop(other);
        let output = scene.binary.command(&["cleanup", "--pin-dir"]).arg(&pins).output()?;
        ensure!(output.status.success(), "{output:?}");
        scene.expect_web()
    })
}
