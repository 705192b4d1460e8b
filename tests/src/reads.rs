//! Reads records on every CPU while one thread replaces them: no read may be of two generations, or of
//! another Service.
//!
//! The programs of `topo-lb-reads.o` look frontends up and choose endpoints with the code of the
//! hooks; plans and writes are the agent's.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use aya::maps::{MapData, PerCpuArray};
use aya::programs::{SchedClassifier, TestRun as _, TestRunOptions};
use aya::util::nr_cpus;
use aya::{Ebpf, EbpfLoader};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use topo_lb_common::maps;
use topo_lb_common::stress::{PORT, Reads, SERVICES, count, port};
use topo_lb_core::cluster::{
    self, Change, Frontend, Placement, Port, Protocol, Service, ServiceId, Slice, SliceId, Update,
};
use topo_lb_core::plan::commit::{commit, take_over};
use topo_lb_core::plan::store::Store as _;
use topo_lb_core::plan::{Installed, Plan, Step};
use topo_lb_core::reconcile::Reconciler;
use topo_lb_core::topology::Scope;
use topo_lb_kernel::datapath::maps::bpf::BpfStore;

use crate::address::{Endpoint, Family, cluster_ip};
use crate::folder::Folder;
use crate::packets::{Raw, object_path};
use crate::prefix::{self, Prefix};
use crate::requirements::{self, BPFFS};
use crate::{interrupt, residue};

/// When the writer uses a replaced record, and its slots, again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// After a grace period, as the agent does.
    AfterGrace,
    /// At once: the new record is written over the one that programs read. Such a run must find
    /// wrong reads, or it would not find those of the agent either.
    AtOnce,
}

/// When a run ends.
#[derive(Clone, Copy, Debug)]
pub struct Until {
    /// After this time.
    pub elapsed: Duration,
    /// Or after so many reads.
    pub reads: u64,
    /// Or after the first wrong read.
    pub wrong: bool,
}

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// The reads of all CPUs.
    pub reads: Reads,
    /// Records written.
    pub writes: u64,
    /// How long it took.
    pub took: Duration,
}

impl Outcome {
    /// Reads that a client of the agent must not see.
    #[must_use]
    pub fn wrong(&self) -> u64 {
        self.reads.wrong + self.reads.absent + self.reads.torn
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reads, writes, took } = self;
        write!(
            f,
            "{} reads and {writes} writes in {:.1} s: {} look-ups repeated, {} wrong ({} of another \
             generation or Service, {} not found, {} given up)",
            reads.reads,
            took.as_secs_f64(),
            reads.repeated,
            self.wrong(),
            reads.wrong,
            reads.absent,
            reads.torn
        )
    }
}

/// The programs, one per address family.
const PROGRAMS: [&str; 2] = ["reads4", "reads6"];
/// Runs per system call: fewer than a hundred microseconds.
const REPEAT: u32 = 32;
/// Entries of maps that nothing here uses.
const UNUSED: u32 = 1_024;

/// Reads on every CPU, and replaces records on the first.
///
/// # Errors
/// The object is not built, or the kernel refuses something. Wrong reads are in the outcome.
pub fn run(reuse: Reuse, until: Until) -> Result<Outcome> {
    requirements::check()?;
    interrupt::arm()?;
    residue::sweep(|name| prefix::owner(name).is_some_and(prefix::is_dead))?;
    let pins = Folder::make(Path::new(BPFFS).join(Prefix::new().name("reads")))?;
    let ebpf = load(pins.path())?;
    let mut writer = Writer::new(pins.path(), reuse)?;
    writer.replace(|| true)?;
    writer.check_indexes()?;
    let [four, six] = PROGRAMS.map(|name| program(&ebpf, name));
    let programs = [four?, six?];

    let cpus = sched_getaffinity(None).context("cannot read the CPUs")?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| cpus.is_set(*cpu)).collect();
    let (stop, writes) = (AtomicBool::new(false), AtomicU64::new(0));
    let begun = Instant::now();
    thread::scope(|scope| {
        let mut threads: Vec<_> =
            cpus.iter().map(|cpu| scope.spawn(|| read(*cpu, programs, &stop))).collect();
        threads.push(scope.spawn(|| {
            run_on(cpus[0])?;
            while !stop.load(Ordering::Relaxed) {
                writes.fetch_add(writer.replace_some()?, Ordering::Relaxed);
            }
            Ok(())
        }));
        let mut result = Ok(());
        while result.is_ok()
            && begun.elapsed() < until.elapsed
            && !threads.iter().any(thread::ScopedJoinHandle::is_finished)
        {
            thread::sleep(Duration::from_millis(20));
            match reads(&ebpf) {
                Ok(reads) if reads.reads >= until.reads || until.wrong && reads.wrong > 0 => break,
                other => result = other.map(|_| ()),
            }
        }
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            let end = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result = result.and(end);
        }
        result
    })?;
    let outcome =
        Outcome { reads: reads(&ebpf)?, writes: writes.into_inner(), took: begun.elapsed() };
    ensure!(outcome.reads.reads > 0 && outcome.writes > 0, "nothing was done: {outcome}");
    Ok(outcome)
}

/// Loads the programs with maps of the default sizes, pinned for the agent's store.
fn load(pins: &Path) -> Result<Ebpf> {
    let path = object_path().with_file_name("topo-lb-reads.o");
    let cpus = nr_cpus().map_err(|(_, error)| error).context("cannot count the CPUs")?;
    let mut loader = EbpfLoader::new();
    loader.btf(None).map_max_entries(maps::REPLY_FILTER, UNUSED);
    loader.map_max_entries(maps::COUNTERS, maps::DEFAULT_SERVICES * u32::try_from(cpus)?);
    for name in maps::ALL {
        if maps::TC.contains(&name) {
            loader.map_max_entries(name, UNUSED);
        } else {
            loader.map_pin_path(name, pins.join(name));
        }
    }
    let mut ebpf = loader.load_file(&path).with_context(|| {
        format!("cannot load {}: build it with cargo xtask build-ebpf", path.display())
    })?;
    for name in PROGRAMS {
        let program = ebpf.program_mut(name).context(name)?;
        <&mut SchedClassifier>::try_from(program)?.load().context("the verifier refuses it")?;
    }
    Ok(ebpf)
}

fn program<'a>(ebpf: &'a Ebpf, name: &str) -> Result<&'a SchedClassifier> {
    Ok(ebpf.program(name).with_context(|| name.to_owned())?.try_into()?)
}

/// The sum of all CPUs' counts.
fn reads(ebpf: &Ebpf) -> Result<Reads> {
    let map = PerCpuArray::<&MapData, Raw<Reads>>::try_from(ebpf.map("reads").context("a map")?)?;
    let mut sum = Reads::default();
    for Raw(one) in map.get(&0, 0)?.iter() {
        sum.reads += one.reads;
        sum.repeated += one.repeated;
        sum.absent += one.absent;
        sum.torn += one.torn;
        sum.wrong += one.wrong;
    }
    Ok(sum)
}

fn run_on(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("cannot run on CPU {cpu}"))
}

/// Runs the programs on one CPU until `stop` is set.
fn read(cpu: usize, programs: [&SchedClassifier; 2], stop: &AtomicBool) -> Result<()> {
    run_on(cpu)?;
    // The kernel takes nothing shorter than an Ethernet header.
    let packet = [0; 64];
    while !stop.load(Ordering::Relaxed) {
        for program in programs {
            let mut options = TestRunOptions::new();
            options.data_in = Some(&packet);
            options.repeat = REPEAT;
            program.test_run(options)?;
            // A grace period ends when each CPU has scheduled.
            thread::yield_now();
        }
    }
    Ok(())
}

/// The agent's pure core and store.
struct Writer {
    reconciler: Reconciler,
    store: BpfStore,
    installed: Installed,
    reuse: Reuse,
    /// The record of each frontend, with [`Reuse::AtOnce`].
    records: BTreeMap<Frontend, u32>,
    /// Of each Service of each family.
    generations: [[u32; SERVICES as usize]; 2],
    random: fastrand::Rng,
}

impl Writer {
    fn new(pins: &Path, reuse: Reuse) -> Result<Self> {
        let mut store = BpfStore::open(pins)?;
        let installed = take_over(&mut store).context("cannot read the maps")?;
        Ok(Self {
            reconciler: Reconciler::new(Arc::from("stress"), Scope::All, false),
            store,
            installed,
            reuse,
            records: BTreeMap::new(),
            generations: [[0; SERVICES as usize]; 2],
            random: fastrand::Rng::with_seed(1),
        })
    }

    /// Replaces the records of some Services. Returns how many.
    fn replace_some(&mut self) -> Result<u64> {
        let share = self.random.u32(1..=SERVICES);
        let mut random = self.random.fork();
        self.replace(|| random.u32(..SERVICES) < share)
    }

    /// Replaces the records of all Services that `is_chosen`, as the agent does.
    fn replace(&mut self, mut is_chosen: impl FnMut() -> bool) -> Result<u64> {
        let mut writes = 0;
        for family in Family::BOTH {
            for service in (0..SERVICES as u8).filter(|_| is_chosen()) {
                self.change(family, service);
                writes += 1;
            }
        }
        while !self.reconciler.settled() {
            let plan = self.reconciler.plan(&self.installed);
            match self.reuse {
                Reuse::AfterGrace => commit(&plan, &mut self.store, &mut self.installed)?,
                Reuse::AtOnce => self.overwrite(&plan)?,
            }
            self.reconciler.carried_out(&plan, &self.installed);
        }
        Ok(writes)
    }

    /// Carries a plan out without a grace period, and with one record for each frontend.
    fn overwrite(&mut self, plan: &Plan) -> Result<()> {
        for step in &plan.steps {
            let mut in_place = step.clone();
            if let Step::Publish { frontend, record, .. } = &mut in_place {
                *record = *self.records.entry(*frontend).or_insert(*record);
            }
            if !matches!(step, Step::Grace | Step::Free { .. }) {
                self.store.write(&[in_place])?;
            }
            self.installed.record(step);
        }
        Ok(())
    }

    /// The next generation of a Service.
    fn change(&mut self, family: Family, service: u8) {
        let generation = &mut self.generations[family as usize][usize::from(service)];
        *generation += 1;
        let generation = *generation;
        // In the order of their numbers, with which the programs compare the Services' indexes.
        let name: Arc<str> = format!("{family:?}-{service:02}").to_lowercase().into();
        let namespace: Arc<str> = Arc::from("default");
        let id = ServiceId { namespace: Arc::clone(&namespace), name: Arc::clone(&name) };
        let port_of = |port| vec![Port { name: "tcp".into(), port, protocol: Protocol::Tcp }];
        if generation == 1 {
            self.reconciler.observe(Update::Service(Change::Applied(Service {
                id: id.clone(),
                cluster_ips: vec![cluster_ip(service, family)],
                ports: port_of(PORT),
                ..Service::default()
            })));
        }
        let endpoints = (0..count(generation) as u16)
            .map(|place| Endpoint { service, generation, place }.address(family))
            .map(|address| cluster::Endpoint::new(address, Placement::default()));
        self.reconciler.observe(Update::Slice(Change::Applied(Slice {
            id: SliceId { namespace, name },
            service: Some(id),
            ports: port_of(port(generation)),
            endpoints: endpoints.collect(),
            headless: false,
            mirrored: false,
            triggered: None,
            ready_since: Vec::new(),
        })));
    }

    /// Fails unless the indexes of a family's Services are in the order of their numbers.
    fn check_indexes(&self) -> Result<()> {
        let names = self.store.names()?;
        ensure!(names.len() == 2 * SERVICES as usize, "{} Services", names.len());
        for (index, name) in names {
            let number = format!("{:02}", index % SERVICES);
            ensure!(name.contains(&number), "Service {name} has index {index}");
        }
        Ok(())
    }
}
