//! Maps that are too small: who is left out, for want of what, and until when.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use topo_lb_tests::requirements;
use topo_lb_tests::scene::{FOLLOWS, Scene, prepared};
use topo_lb_tests::wait::until;

/// Waits until `topo-lb list services` says that these are left out, and lists none of them.
fn expect_left_out(scene: &Scene<'_>, wanted: &Value) -> Result<()> {
    let agent = &scene.agent;
    let mut listed = Value::Null;
    until(&format!("{wanted} as what is left out"), FOLLOWS, || {
        listed = agent.list("services")?;
        Ok(if listed["leftOut"] == *wanted { Ok(()) } else { Err(listed.to_string()) })
    })?;
    let names = wanted.as_array().context("a list")?.iter().filter_map(|it| it["service"].as_str());
    let services = listed["services"].as_array().context("a list of services")?;
    for name in names {
        let port = |row: &Value| row["service"].as_str().is_some_and(|it| it.starts_with(name));
        ensure!(!services.iter().any(port), "{name} is in the maps too: {listed}");
    }
    Ok(())
}

/// What `topo-lb list services` prints for people.
fn table(scene: &Scene<'_>) -> Result<String> {
    let pins = scene.agent.pins().to_str().context("a path of UTF-8")?;
    let output = scene.binary.run(&["list", "services", "--pin-dir", pins])?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// How many Services bpftool shows as left out.
fn shown_by_bpftool(scene: &Scene<'_>) -> Result<usize> {
    requirements::command("bpftool", "bpftool")?;
    let pin = scene.agent.pins().join("left_out");
    let output = Command::new("bpftool").args(["-j", "map", "dump", "pinned"]).arg(pin).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let shown: Value = serde_json::from_slice(&output.stdout)?;
    Ok(shown.as_array().context("a list of entries")?.len())
}

#[test]
fn services_without_room_are_listed_until_there_is_room() -> Result<()> {
    let lacks_services =
        |name: &str| json!({"service": name, "lacks": "services", "flag": "--max-services"});
    prepared(
        |_| {},
        |scene| {
            // Three Service ports: `echo` has one, `empty` and `web` have two.
            scene.agent.set("--max-services", "3");
            scene.agent.resume()?;
            expect_left_out(scene, &json!([lacks_services("default/web")]))?;
            let text = table(scene)?;
            ensure!(text.contains("1 Service is left to kube-proxy, whole"), "{text}");
            ensure!(text.lines().any(|line| line.contains("default/web")), "{text}");
            ensure!(shown_by_bpftool(scene)? == 1);

            // It stays so while no agent runs,
            scene.agent.stop()?;
            expect_left_out(scene, &json!([lacks_services("default/web")]))?;
            scene.agent.resume()?;
            expect_left_out(scene, &json!([lacks_services("default/web")]))?;

            // and until another goes.
            let empty = scene.manifests.get("Service", "empty")?.clone();
            scene.change(|manifests| {
                manifests.remove("Service", "empty");
                Ok(())
            })?;
            expect_left_out(scene, &json!([]))?;
            ensure!(!table(scene)?.contains("kube-proxy"));
            ensure!(shown_by_bpftool(scene)? == 0);

            // Who has room keeps it.
            scene.change(|manifests| {
                manifests.put(empty);
                Ok(())
            })?;
            expect_left_out(scene, &json!([lacks_services("default/empty")]))?;

            // Larger maps take the places of these, and all have room.
            scene.agent.stop()?;
            scene.agent.set("--max-services", "64");
            scene.agent.resume()?;
            expect_left_out(scene, &json!([]))
        },
    )
}

#[test]
fn a_service_whose_endpoints_have_no_room_is_listed_with_the_flag_that_gives_more() -> Result<()> {
    prepared(
        |_| {},
        |scene| {
            // The four of `echo`; those of `web` are as many.
            scene.agent.set("--max-endpoints", "4");
            scene.agent.resume()?;
            let web =
                json!({"service": "default/web", "lacks": "endpoints", "flag": "--max-endpoints"});
            expect_left_out(scene, &json!([web]))?;
            let log = scene.agent.log();
            ensure!(log.contains("start the agent with a larger --max-endpoints"), "{log}");
            ensure!(table(scene)?.contains("--max-endpoints"));
            scene.set_endpoints("echo", &[])?;
            expect_left_out(scene, &json!([]))
        },
    )
}
