//! The agent's map store without an agent: the time to write Services to new maps, and the kernel's
//! memory of the maps of IPv4 Services.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use topo_lb_common::maps;
use topo_lb_core::plan::commit::take_over;
use topo_lb_core::plan::store::Store as _;
use topo_lb_core::plan::{Capacity, Step};
use topo_lb_core::reconcile::Reconciler;
use topo_lb_core::topology::Scope;
use topo_lb_kernel::datapath::maps::bpf::BpfStore;
use topo_lb_kernel::datapath::programs::object::TcpPeer;
use topo_lb_kernel::datapath::{Datapath, Options};
use topo_lb_tests::map_memory;
use topo_lb_tests::permit::permit;
use topo_lb_tests::population::Population;
use topo_lb_tests::requirements::BPFFS;

use crate::ground::{Effort, Ground, HERE};
use crate::result::Figure;
use crate::sample::Sample;

/// Services that the maps have room for.
const ROOM: u32 = 65_536;

pub(crate) fn measure(
    ground: &Ground<'_>,
    population: &Population,
    effort: Effort,
) -> Result<Vec<Figure>> {
    let services = population.services;
    let options = Options {
        pin_dir: Path::new(BPFFS).join(ground.cluster.prefix().name("store")),
        cgroup_root: ground.cluster.agents().path().to_owned(),
        capacity: Capacity { services: ROOM, ..Capacity::default() },
        tcp_peer: TcpPeer::Endpoint,
        accounting: false,
        exclusions: false,
        observe: false,
        count_all: false,
        serves_guests: false,
        tc_attach: Default::default(),
        xdp: Default::default(),
        all_frontends: None,
    };
    let mut reconciler = Reconciler::new(HERE.into(), Scope::All, false);
    for update in population.updates()? {
        reconciler.observe(update);
    }
    let (mut whole, mut published, mut memory) = (Sample::default(), Sample::default(), 0.0);
    for _ in 0..effort.of(2, 15) {
        let _permit = permit();
        // Never attached: it removes its maps when it is dropped.
        let datapath = Datapath::open(options.clone())?;
        let (all, publishing) = write(&mut reconciler, datapath.maps_directory(), services)?;
        whole.add(milliseconds(all));
        published.add(milliseconds(publishing));
        memory = megabytes(datapath.maps_directory(), &[maps::SERVICES4, maps::RECORDS4])?;
    }
    let time = |maps: &str, sample| {
        Figure::new("services_write_ms", "ms", sample).with("services", services).with("maps", maps)
    };
    let memory = Figure::single("services_memory_mb", "MB", memory).with("services", ROOM);
    Ok(vec![
        time("services4, records4", &published).at_most(6.0),
        time("all", &whole),
        memory.at_most(9.5),
    ])
}

/// Writes everything to empty maps. Returns the time of all writes, and of those to `services4` and
/// `records4`.
fn write(
    reconciler: &mut Reconciler,
    pin_dir: &Path,
    services: u32,
) -> Result<(Duration, Duration)> {
    let mut store = BpfStore::open(pin_dir)?;
    let installed = take_over(&mut store)?;
    reconciler.expect_all(&installed);
    let plan = reconciler.plan(&installed);
    let publishes = |step: &Step| matches!(step, Step::Publish { .. });
    let count = plan.steps.iter().filter(|step| publishes(step)).count();
    ensure!(count == services as usize, "{count} of {services} Services are planned");
    ensure!(!plan.steps.contains(&Step::Grace), "a plan for empty maps waits");
    let (mut all, mut publishing) = (Duration::ZERO, Duration::ZERO);
    for part in plan.steps.chunk_by(|one, next| publishes(one) == publishes(next)) {
        let begun = Instant::now();
        let mut steps = part;
        while !steps.is_empty() {
            steps = &steps[store.write(steps)?..];
        }
        all += begun.elapsed();
        if publishes(&part[0]) {
            publishing += begun.elapsed();
        }
    }
    reconciler.carried_out(&plan, &installed);
    Ok((all, publishing))
}

/// What the kernel accounts for these maps, in 10⁶ bytes.
pub(crate) fn megabytes(pin_dir: &Path, names: &[&str]) -> Result<f64> {
    let each = names.iter().map(|name| map_memory::of(&pin_dir.join(name)));
    Ok(each.sum::<Result<u64>>()? as f64 / 1e6)
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
