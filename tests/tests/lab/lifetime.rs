//! The agent stops, is killed, restarts, meets another, ends. The datapath stays until cleanup.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use topo_lb_tests::agent::Agent;
use topo_lb_tests::requirements;
use topo_lb_tests::scene::{ALL, ECHO4, HERE, Scene, WEB4, WEB6, at, idle, play};
use topo_lb_tests::traffic::Via;

/// The content of every map that the agent writes.
fn maps(scene: &Scene<'_>) -> Result<Vec<Value>> {
    ["services4", "services6", "slots4", "slots6", "members4", "members6", "names", "range"]
        .iter()
        .map(|name| scene.dump(name))
        .collect()
}

#[test]
fn the_datapath_outlasts_its_agent_and_the_next_one_writes_only_what_changed() -> Result<()> {
    play(|scene| {
        let content = maps(scene)?;
        for is_killed in [false, true] {
            let objects = scene.agent.objects()?;
            // Eight hooks, accounting and, where the kernel takes them, two walks.
            let all = if requirements::walks() { 11 } else { 9 };
            ensure!(objects.links() == all && objects.programs() == all, "{objects}");
            if is_killed {
                scene.agent.kill();
            } else {
                scene.agent.stop()?;
            }
            ensure!(scene.agent.objects()? == objects, "killed: {is_killed}");
            scene.expect_web()?;
            let listed = scene.agent.list("services")?;
            scene.agent.resume()?;
            let log = scene.agent.log();
            let attached = log.lines().rfind(|line| line.contains("datapath attached"));
            ensure!(attached.is_some_and(|it| it.contains(r#""writes":0"#)), "it writes: {log}");
            ensure!(maps(scene)? == content, "a map has changed");
            ensure!(scene.agent.list("services")? == listed);
        }
        scene.expect_web()?;
        scene.agent.stop()?;
        scene.set_endpoints("web", &["b"])?;
        scene.remove("Service", "echo")?;
        scene.expect(Via::Http, at(WEB4)?, &ALL)?;
        scene.agent.resume()?;
        scene.expect(Via::Http, at(WEB4)?, &["b"])?;
        scene.expect(Via::Udp, at(ECHO4)?, &["untouched"])
    })
}

fn listed(scene: &Scene<'_>) -> Result<usize> {
    let services = scene.agent.list("services")?;
    services["services"].as_array().map(Vec::len).context("a list of services")
}

#[test]
fn maps_of_other_sizes_take_over_with_all_that_connections_need() -> Result<()> {
    idle(|scene| {
        scene.agent.set("--max-services", "3");
        scene.agent.resume()?;
        let all = listed(scene)?;
        scene.agent.stop()?;
        for services in ["512", "600", "64"] {
            scene.agent.set("--max-services", services);
            scene.agent.resume()?;
            let log = scene.agent.log();
            ensure!(log.contains("services4 has room for"), "the log does not say why: {log}");
            ensure!(listed(scene)? > all);
            scene.expect_web()?;
            scene.agent.stop()?;
        }
        Ok(())
    })
}

#[test]
fn an_agent_leaves_the_maps_of_a_newer_one_alone_and_says_so() -> Result<()> {
    play(|scene| {
        let before = scene.agent.objects()?;
        scene.agent.stop()?;
        let newer = scene.agent.pins().join("layout-4711");
        std::fs::create_dir(&newer)?;
        let (status, said) = scene.agent.run_to_end(scene.agent.command()?)?;
        ensure!(status.code() == Some(1), "{status}: {said}");
        ensure!(said.contains("newer topo-lb") && said.contains("layout 4711"), "{said}");
        ensure!(scene.agent.objects()? == before, "it has touched them");
        scene.expect_web()?;
        ensure!(scene.agent.cleanup()?.status.success());
        ensure!(!scene.agent.pins().exists(), "the pin directory is still there");
        Ok(())
    })
}

#[test]
fn a_second_agent_on_the_same_pins_is_refused() -> Result<()> {
    play(|scene| {
        let before = scene.agent.objects()?;
        let second = Agent::prepare(&scene.binary, scene.cluster, HERE, scene.manifests.folder())?;
        let (status, said) = second.run_to_end(second.command()?)?;
        // Dropping it would clean up the first agent's objects.
        std::mem::forget(second);
        ensure!(status.code() == Some(1), "{status}: {said}");
        ensure!(said.contains(&scene.agent.pins().display().to_string()), "{said}");
        ensure!(scene.agent.objects()? == before, "the second agent has touched the first one's");
        scene.expect_web()
    })
}

#[test]
fn cleanup_removes_every_trace_and_connections_are_untouched_again() -> Result<()> {
    play(|scene| {
        let objects = scene.agent.objects()?;
        scene.agent.stop()?;
        let output = scene.agent.cleanup()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        ensure!(!scene.agent.pins().exists(), "the pin directory is still there");
        objects.wait_until_gone()?;
        scene.expect(Via::Http, at(WEB4)?, &["untouched"])?;
        scene.expect(Via::Udp, at(WEB6)?, &["untouched"])?;
        // A second cleanup finds nothing and succeeds, and the agent can start again.
        ensure!(scene.agent.cleanup()?.status.success());
        scene.agent.resume()?;
        scene.expect_web()
    })
}

#[test]
fn bpftool_shows_services_by_field_with_readable_addresses() -> Result<()> {
    play(|scene| {
        let output = Command::new("bpftool")
            .args(["map", "dump", "pinned"])
            .arg(scene.agent.pins().join("services4"))
            .output()?;
        let text = String::from_utf8(output.stdout)?;
        let flat = text.split_whitespace().collect::<String>();
        ensure!(flat.contains("\"address\":[10,96,1,1],\"port\":80,\"protocol\":6"), "{text}");
        let records = scene.dump("records4")?;
        let records = records.as_array().context("a list")?.iter();
        let mut values = records.map(|record| &record["formatted"]["value"]);
        let web = values
            .find(|value| value["address"] == json!([10, 96, 1, 1]) && value["protocol"] == 6)
            .context("no record of 10.96.1.1")?;
        ensure!((&web["port"], &web["count"]) == (&json!(80), &json!(4)), "{web}");
        let row = web["addresses"].as_array().context("no addresses")?;
        ensure!(row.contains(&json!([10, 244, 1, 3])) && web["ports"][0] == 9376, "{web}");
        let six = scene.dump("services6")?;
        ensure!(six.as_array().is_some_and(|entries| entries.len() == 5), "{six}");
        Ok(())
    })
}
