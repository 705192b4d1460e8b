//! What accounting costs a short TCP connection: the same connections with the program attached, and
//! without, in turns.

use std::os::fd::AsFd as _;

use anyhow::{Context as _, Result};
use aya_obj::generated::bpf_attach_type::BPF_CGROUP_SOCK_OPS;
use fs_err as fs;
use topo_lb::datapath::host::syscall;
use topo_lb_tests::population::{Population, SERVICE_PORT};

use crate::exchange::{Act, Targets};
use crate::ground::{Effort, Ground, HERE};
use crate::result::Figure;
use crate::sample::Sample;

/// Connections of a turn.
const TURN: u32 = 2_000;
const SERVICES: u32 = 100;

pub(crate) fn measure(
    ground: &Ground<'_>,
    effort: Effort,
    say: &dyn Fn(&str),
) -> Result<Vec<Figure>> {
    say("accounting");
    let population = ground.population(SERVICES, ["a", "b"])?;
    let manifests = ground.manifests(&population, &[])?;
    let agent = ground.agent(("--manifests", &manifests), &[])?;
    let mut client = ground.inside("client")?;
    let targets = Targets::one((Population::frontend(SERVICES / 2), SERVICE_PORT).into());
    ground.reach(&mut client, targets)?;

    let link = agent.pins().join("links/accounting");
    let (_, info) = syscall::open_link(&link)?.context("the agent does not account")?;
    let program = syscall::program_by_id(info.program)?;
    // From now on, this process attaches it.
    fs::remove_file(&link)?;
    let node = ground.cluster.node(HERE)?;
    let cgroup = fs::File::open(node.cgroup_path())?;
    let (mut processor, mut latency) = (Sample::default(), Sample::default());
    for round in 0..=effort.of(8, 60) {
        let mut turns = [(0.0, 0.0); 2];
        // The order changes, because the second turn may find warmer caches.
        for on in [round % 2 == 0, round % 2 != 0] {
            let attached = on.then(|| {
                syscall::link_cgroup(program.as_fd(), cgroup.as_fd(), BPF_CGROUP_SOCK_OPS, 0)
            });
            let attached = attached.transpose()?;
            let before = node.processor_time()?;
            let mut times = Sample::default();
            let spent = client.times(Act::Exchange, targets, TURN)?;
            times.extend(spent.iter().map(|&nanoseconds| nanoseconds as f64));
            let used = node.processor_time()?.saturating_sub(before);
            turns[usize::from(on)] = (used.as_secs_f64(), times.median());
            drop(attached);
        }
        // The first round warms the caches.
        if round > 0 {
            let [(processor_off, latency_off), (processor_on, latency_on)] = turns;
            processor.add(processor_on / processor_off);
            latency.add(latency_on / latency_off);
        }
    }
    Ok(vec![
        Figure::new("accounting_processor_ratio", "ratio", &processor).at_most(1.03),
        Figure::new("accounting_exchange_ratio", "ratio", &latency).at_most(1.03),
    ])
}
