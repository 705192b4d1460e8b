//! The demo with a real API server gives the same results.

use anyhow::{Result, ensure};
use serde_json::Value;
use topo_lb_tests::demonstration::{checks, demo, interrupt_at};

#[test]
fn it_makes_the_same_checks_and_every_one_is_ok() -> Result<()> {
    let what = |check: &Value| {
        ["name", "service", "from", "requests", "expected"].map(|field| check[field].clone())
    };
    let (plain, real) = (checks(&[])?, checks(&["--api-server"])?);
    let (plain, real): (Vec<_>, Vec<_>) =
        (plain.iter().map(what).collect(), real.iter().map(what).collect());
    ensure!(real == plain, "{real:#?}, not {plain:#?}");
    Ok(())
}

#[test]
fn ctrl_c_takes_the_control_plane_away_too() -> Result<()> {
    interrupt_at("control plane", &["--api-server"])
}

#[test]
fn without_the_programs_it_says_where_they_come_from() -> Result<()> {
    let output = demo(&["--api-server"])?.env_remove("KUBEBUILDER_ASSETS").output()?;
    let said = String::from_utf8(output.stderr)?;
    ensure!(output.status.code() == Some(1), "{}: {said}", output.status);
    ensure!(said.contains("KUBEBUILDER_ASSETS") && said.contains("cargo xtask"), "{said}");
    Ok(())
}
