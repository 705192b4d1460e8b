//! Both eBPF objects: the one in the agent is for other loaders, too, and the other one says what it decides.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use aya_obj::Object;
use fs_err as fs;
use topo_lb_tests::binary::Binary;
use topo_lb_tests::folder::Folder;
use topo_lb_tests::packets::object_path;
use topo_lb_tests::prefix::Prefix;
use topo_lb_tests::process::printed;
use topo_lb_tests::requirements::{self, BPFFS};
use topo_lb_tests::scene::{WEB4, at, idle};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::wait::{PATIENCE, until};

#[test]
fn libbpf_loads_every_program_of_the_agent_s_object() -> Result<()> {
    requirements::check()?;
    requirements::command("bpftool", "bpftool")?;
    if !requirements::walks() {
        println!("not run: this kernel does not take all programs of accounting");
        return Ok(());
    }
    let object = object_path();
    let pins = Folder::make(Path::new(BPFFS).join(Prefix::new().name("libbpf")))?;
    let mut command = Command::new("bpftool");
    printed(command.args(["prog", "loadall"]).arg(&object).arg(pins.path()))?;
    let mut loaded = BTreeSet::new();
    for pin in fs::read_dir(pins.path())? {
        loaded.insert(pin?.file_name().to_string_lossy().into_owned());
    }
    let programs: BTreeSet<_> = Object::parse(&fs::read(&object)?)?.programs.into_keys().collect();
    ensure!(loaded == programs && loaded.len() > 10, "{loaded:?}, but {programs:?}");
    Ok(())
}

/// The agent's programs are those of `cargo xtask build-ebpf --log`. `cargo xtask test` names that agent.
#[test]
fn programs_that_log_say_where_a_connection_goes() -> Result<()> {
    let Some(agent) = requirements::agent_that_logs()? else {
        println!("not run: TOPO_LB_LOG_AGENT does not name an agent with the feature `log`");
        return Ok(());
    };
    idle(|scene| {
        scene.agent.replace_binary(Binary::new(agent));
        scene.agent.set("--tc-devices", "pod*");
        scene.agent.set("--max-connections", "16384");
        scene.agent.resume()?;
        scene.wait_for(Via::Http, at(WEB4)?, &["a", "b", "c", "d"])?;
        let begin = format!("programs: ::ffff:{} 80 (protocol 6, ", at(WEB4)?.ip());
        until("what the programs say", PATIENCE, || {
            let log = scene.agent.log();
            let mut lines = log.lines().filter(|line| line.contains(&begin));
            let is_said = lines.any(|line| line.contains("routed to ::ffff:10.244."));
            Ok(if is_said { Ok(()) } else { Err(log) })
        })?;
        Ok(())
    })
}
