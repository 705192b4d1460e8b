//! The demo, as the README shows it.

use std::process::Command;

use anyhow::{Result, ensure};
use topo_lb_tests::demonstration::{checks, interrupt_at};
use topo_lb_tests::requirements;

#[test]
fn every_check_is_ok_and_standard_output_is_json_alone() -> Result<()> {
    let checks = checks(&[])?;
    ensure!(checks.len() >= 20, "only {} checks", checks.len());
    for service in ["default/svc-ud1", "default/svc-ud1-without-topology", "default/svc-rack"] {
        ensure!(checks.iter().any(|check| check["service"] == service), "nothing of {service}");
    }
    Ok(())
}

#[test]
fn ctrl_c_in_the_middle_leaves_nothing_behind() -> Result<()> {
    // The agents are ready, and traffic flows.
    interrupt_at("tutorial", &[])
}

#[test]
fn a_missing_agent_is_one_sentence() -> Result<()> {
    let mut command = Command::new(requirements::binary("demo")?);
    let output = command.args(["--agent", "/no/such/agent"]).output()?;
    let said = String::from_utf8(output.stderr)?;
    ensure!(output.status.code() == Some(1), "{}: {said}", output.status);
    ensure!(said.lines().count() == 1 && said.contains("/no/such/agent"), "{said}");
    Ok(())
}
