//! Many Services that come and go at once, beside many more that have had connections: what the agent
//! does with the new and the old ones must not depend on what it has counted of the others.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use topo_lb_fake_api::{SERVICES, SLICES};
use topo_lb_kernel::datapath::maps::totals;
use topo_lb_tests::agent::Agent;
use topo_lb_tests::population::{Population, SERVICE_PORT};
use topo_lb_tests::records::Records;
use topo_lb_tests::wait::{PATIENCE, until};

use crate::api;
use crate::control_plane::{follow, processor_seconds, wait_for_watches};
use crate::exchange::{Act, Targets};
use crate::ground::{Effort, Ground, HERE};
use crate::result::Figure;
use crate::sample::Sample;

/// An agent that has used no processor time for so long has done what it had to do.
const REST: Duration = Duration::from_secs(1);

pub(crate) fn measure(
    ground: &Ground<'_>,
    effort: Effort,
    say: &dyn Fn(&str),
) -> Result<Vec<Figure>> {
    let (dialled, changed) = effort.of((900, 100), (9_000, 1_000));
    say(&format!(
        "control plane, {changed} Services come and go beside {dialled} with connections"
    ));
    let all = ground.population(dialled + changed, ["a", "b"])?;
    let before = Population { services: dialled, ..all.clone() };
    let server = api::start(ground.cluster.node_netns(HERE)?, before.objects())?;
    let agent = follow(ground, &server)?;
    wait_for_watches(&server)?;
    let mut client = ground.inside("client")?;
    for service in 0..dialled {
        let target = Targets::one((Population::frontend(service), SERVICE_PORT).into());
        client.times(Act::Exchange, target, 1)?;
    }
    let counted = totals::read(agent.pins())?.len();
    ensure!(counted >= dialled as usize, "the agent has counted only {counted} of {dialled}");

    let records = Records::open(&agent)?;
    let (mut added, mut deleted) = (Sample::default(), Sample::default());
    let mut before = rested(&agent)?;
    for _ in 0..effort.of(1, 5) {
        for (how, times) in [("ADDED", &mut added), ("DELETED", &mut deleted)] {
            for service in dialled..dialled + changed {
                server.change(SERVICES, how, all.service(service));
                for slice in all.slices(service, |_| true) {
                    server.change(SLICES, how, slice);
                }
            }
            until("the change of all these Services", PATIENCE, || {
                let is_done = |service: &u32| records.of(*service).is_ok() == (how == "ADDED");
                let missing = (dialled..dialled + changed).filter(|service| !is_done(service));
                let missing = missing.count();
                Ok(if missing == 0 { Ok(()) } else { Err(format!("{missing} are missing")) })
            })?;
            let after = rested(&agent)?;
            times.add(after - before);
            before = after;
        }
    }
    let figure = |name, sample| {
        let figure = Figure::new(name, "s", sample);
        let figure = figure.with("services", dialled + changed).with("changed", changed);
        if effort.quick { figure } else { figure.at_most(0.3) }
    };
    Ok(vec![
        figure("services_added_cpu_seconds", &added),
        figure("services_deleted_cpu_seconds", &deleted),
    ])
}

/// The processor seconds of an agent so far, when it has nothing to do any more.
fn rested(agent: &Agent<'_>) -> Result<f64> {
    let mut rest = (Instant::now(), processor_seconds(agent)?);
    until("an agent that rests", PATIENCE, || {
        let seconds = processor_seconds(agent)?;
        if seconds > rest.1 {
            rest = (Instant::now(), seconds);
        }
        Ok(if rest.0.elapsed() > REST { Ok(()) } else { Err("it works") })
    })?;
    Ok(rest.1)
}
