//! `plan --advise` of a large cluster, from the metrics of each agent.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use topo_lb_core::metrics::declared::{TCP_RECEIVED_BYTES, TCP_SENT_BYTES};
use topo_lb_tests::binary::Binary;
use topo_lb_tests::population::Population;
use topo_lb_tests::requirements;

use crate::control_plane::{MEGABYTE, resident};
use crate::ground::{Effort, Ground};
use crate::result::Figure;
use crate::sample::Sample;

/// Services whose connections one agent has counted.
const COUNTED: u32 = 100;

/// Services without a policy, of which each node's clients use some.
pub(crate) fn measure(
    ground: &Ground<'_>,
    effort: Effort,
    say: &dyn Fn(&str),
) -> Result<Vec<Figure>> {
    let (nodes, services) = effort.of((20, 20), (1_000, 1_000));
    say(&format!("plan --advise of {services} Services on {nodes} nodes"));
    let mut population = Population::new("node-00000", nodes, services, 10);
    population.annotates = false;
    let cluster = ground.manifests(&population, &[])?;
    let metrics = ground.cluster.folder().join("metrics");
    fs::create_dir(&metrics)?;
    for node in 0..nodes {
        fs::write(metrics.join(format!("node-{node:05}")), counted(&population, node)?)?;
    }
    let (mut seconds, mut megabytes) = (Sample::default(), Sample::default());
    for _ in 0..effort.of(1, 5) {
        let (spent, bytes) = advise(&cluster, &metrics)?;
        seconds.add(spent);
        megabytes.add(bytes);
    }
    let with = |figure: Figure| figure.with("nodes", nodes).with("services", services);
    Ok(vec![
        with(Figure::new("advise_seconds", "s", &seconds)).at_most(10.0),
        with(Figure::new("advise_mb", "MB", &megabytes)).at_most(500.0),
    ])
}

/// The lines that count bytes as the agent of this node writes them.
fn counted(population: &Population, node: u32) -> Result<String> {
    let mut text = String::new();
    for metric in [TCP_SENT_BYTES.name, TCP_RECEIVED_BYTES.name] {
        for number in 0..COUNTED.min(population.services) {
            let number = (node * 7 + number * 11) % population.services;
            let service = population.service(number);
            let of = |field: &str| service["metadata"][field].as_str().context("no name");
            let (namespace, name) = (of("namespace")?, of("name")?);
            for (place, locality) in ["zone", "region", "elsewhere"].into_iter().enumerate() {
                let bytes = 1_000_000 * (1 + u64::from(number) * 31 % 997) * (place as u64 + 1);
                let _ = writeln!(
                    text,
                    "{metric}{{namespace=\"{namespace}\",service=\"{name}\",port=\"http\",locality=\"{locality}\",\
                     tier=\"left\"}} {bytes}"
                );
            }
        }
    }
    text += "# EOF\n";
    Ok(text)
}

/// The time that it takes, and the most memory that it had, in MB.
fn advise(cluster: &Path, metrics: &Path) -> Result<(f64, f64)> {
    let mut command = Binary::new(requirements::agent()?).command(&["plan", "--advise", "--from"]);
    command.arg(cluster).arg("--metrics").arg(metrics);
    let begun = Instant::now();
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut most = 0.0_f64;
    // What it says fits into the pipe.
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        most = resident(child.id(), "VmHWM:").unwrap_or_default().max(most);
        sleep(Duration::from_millis(5));
    };
    let spent = begun.elapsed().as_secs_f64();
    let mut said = String::new();
    child.stdout.take().context("no output")?.read_to_string(&mut said)?;
    ensure!(status.success() && said.contains("kubectl annotate"), "{status}: {said}");
    Ok((spent, most / MEGABYTE))
}
