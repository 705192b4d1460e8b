//! The agent: one task owns what the cluster looks like and what is installed.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures::{Stream, StreamExt as _};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{debug, info, warn};

use crate::cluster::{ServiceId, Update};
use crate::datapath::attach;
use crate::datapath::bpf::BpfStore;
use crate::datapath::commit::commit;
use crate::datapath::load::{Datapath, Options};
use crate::datapath::store::Store as _;
use crate::device::{self, Changes, Pattern};
use crate::heap;
use crate::plan::{Installed, Plan};
use crate::reconcile::Reconciler;
use crate::source::{self, Event};
use crate::topology::Scope;

/// Where the cluster is described.
#[derive(Clone, Debug)]
pub enum Source {
    /// Files, followed.
    Manifests(PathBuf),
    /// A Kubernetes API.
    Kube(source::kube::KubeTarget),
}

/// What the agent is to do.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the cluster is described.
    pub source: Source,
    /// This node.
    pub node: Arc<str>,
    /// Which Services are handled.
    pub scope: Scope,
    /// Devices whose packets are translated.
    pub devices: Vec<Pattern>,
    /// The hooks and the maps.
    pub datapath: Options,
}

/// Events that are taken in before one plan is made, so that a flood becomes few writes.
const BATCH: usize = 1024;
/// How long events are gathered into one plan: what changes together, as a reading of manifests or a
/// Service and its slices, takes effect together.
const GATHER: Duration = Duration::from_millis(1);
/// Pause before a plan that could not be carried out is tried again; doubles up to
/// [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A first listing that takes longer is remarked upon.
const UNREMARKED: Duration = Duration::from_secs(2);

/// Runs until SIGTERM or SIGINT, and then leaves the datapath in place.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        result = follow(config) => result,
        _ = terminate.recv() => { info!("stopping on SIGTERM; the datapath stays in place"); Ok(()) }
        _ = interrupt.recv() => { info!("stopping on SIGINT; the datapath stays in place"); Ok(()) }
    }
}

type Events = Pin<Box<dyn Stream<Item = Event> + Send>>;

async fn events(source: &Source) -> anyhow::Result<Events> {
    Ok(match source {
        Source::Manifests(path) => {
            // Read once here: what is broken at start is told at once, and nothing is attached.
            // What costs single objects is told by the one who follows.
            source::file::read(path)?;
            Box::pin(source::file::follow(path.clone())?)
        }
        Source::Kube(target) => {
            let server = source::kube::connect(target).await?;
            Box::pin(source::kube::follow(server))
        }
    })
}

async fn follow(config: Config) -> anyhow::Result<()> {
    // First: what is wrong with this host is told at once, and not when an API server answers.
    Datapath::check_host(&config.datapath)?;
    let mut events = events(&config.source).await?;
    let mut reconciler =
        Reconciler::new(config.node.clone(), config.scope, !config.devices.is_empty());

    {
        let mut listing = pin!(first_listing(&mut events, &mut reconciler));
        if let Ok(listed) = tokio::time::timeout(UNREMARKED, &mut listing).await {
            listed?;
        } else {
            info!(node = %config.node, "still waiting for all of the cluster; {}", meanwhile(&config));
            listing.await?;
        }
    }
    known_node(&reconciler, &config)?;

    // Only now: what fails above leaves nothing in the kernel.
    let mut datapath = Datapath::open(config.datapath.clone())?;
    let mut kernel = Kernel::read(BpfStore::open(&config.datapath.pin_dir)?)?;
    reconciler.expect_all(&kernel.installed);
    let writes =
        kernel.settle(&mut reconciler).context("the first plan could not be carried out")?;
    datapath.attach()?;
    let mut devices = Devices::follow(&config.devices, &mut datapath)?;
    info!(
        node = %config.node,
        services = reconciler.state().services().count(),
        writes,
        pin_dir = %config.datapath.pin_dir.display(),
        "datapath attached"
    );
    heap::trim();
    let mut events = pin!(events);
    let mut pause = None;
    loop {
        let event = tokio::select! {
            event = next(&mut events, pause) => event,
            result = devices.changed() => {
                result.context("the kernel says no more which devices there are")?;
                devices.attach(&mut datapath, false);
                continue;
            }
        };
        let Some(event) = event else { bail!("the source of the cluster's state has ended") };
        let mut listed = take_in(event, &mut reconciler);
        let together = tokio::time::Instant::now() + GATHER;
        for _ in 1..BATCH {
            match tokio::time::timeout_at(together, events.next()).await {
                Ok(Some(event)) => listed |= take_in(event, &mut reconciler),
                _ => break,
            }
        }
        match kernel.settle(&mut reconciler) {
            Ok(_) => pause = None,
            Err(error) => {
                let next = pause.map_or(FIRST_PAUSE, |pause| (pause * 2).min(LONGEST_PAUSE));
                warn!(
                    "{error:#}; every Service stays as it was or as planned; trying again in {next:?}"
                );
                pause = Some(next);
            }
        }
        if listed {
            heap::trim();
        }
    }
}

/// What becomes of connections until the cluster is known.
fn meanwhile(config: &Config) -> &'static str {
    if attach::is_attached(&config.datapath.pin_dir) {
        "connections go on by what the last agent left in the kernel"
    } else {
        "connections are untouched until then"
    }
}

/// The next event; after a pause, if one is due, that nothing new has come.
async fn next(
    events: &mut (impl Stream<Item = Event> + Unpin),
    pause: Option<Duration>,
) -> Option<Event> {
    match pause {
        None => events.next().await,
        Some(pause) => {
            tokio::time::timeout(pause, events.next()).await.unwrap_or(Some(Event::Synced))
        }
    }
}

/// The devices that tc is on.
struct Devices {
    patterns: Vec<Pattern>,
    /// None where no device is to be chosen.
    changes: Option<Changes>,
}

impl Devices {
    /// Attaches to those that are there, and hears of those that come from now on.
    fn follow(patterns: &[Pattern], datapath: &mut Datapath) -> anyhow::Result<Self> {
        if patterns.is_empty() {
            datapath.remove_tc();
            return Ok(Self { patterns: Vec::new(), changes: None });
        }
        // Listening begins before looking: nothing comes in between.
        let changes = Changes::listen().context("cannot follow the devices of this host")?;
        let devices = Self { patterns: patterns.to_vec(), changes: Some(changes) };
        devices.attach(datapath, true);
        Ok(devices)
    }

    /// Returns after some device has come, gone, or changed.
    async fn changed(&mut self) -> std::io::Result<()> {
        match &mut self.changes {
            Some(changes) => changes.changed().await,
            None => std::future::pending().await,
        }
    }

    fn attach(&self, datapath: &mut Datapath, renew: bool) {
        match device::chosen(&self.patterns) {
            Ok(devices) => datapath.attach_devices(&devices, renew),
            Err(error) => warn!("the devices of this host cannot be listed: {error}"),
        }
    }
}

/// Takes in all there is before anything is planned: half a cluster would refuse connections that
/// the whole one allows.
async fn first_listing(events: &mut Events, reconciler: &mut Reconciler) -> anyhow::Result<()> {
    loop {
        match events.next().await {
            Some(Event::Synced) => return Ok(()),
            Some(event) => {
                take_in(event, reconciler);
            }
            None => bail!("the source of the cluster's state ended before it was complete"),
        }
    }
}

/// Whether what it takes in was a listing of all objects of a kind, which takes much memory.
fn take_in(event: Event, reconciler: &mut Reconciler) -> bool {
    match event {
        Event::Update(update) => {
            let listed = matches!(
                update,
                Update::AllNodes(..) | Update::AllSlices(..) | Update::AllServices(..)
            );
            reconciler.observe(update);
            listed
        }
        Event::Synced => false,
        Event::Trouble(sentence) => {
            warn!("{sentence}");
            false
        }
    }
}

fn known_node(reconciler: &Reconciler, config: &Config) -> anyhow::Result<()> {
    if reconciler.state().node(&config.node).is_some() {
        return Ok(());
    }
    let names: Vec<&str> = reconciler.state().nodes().map(|(name, _)| name).collect();
    let known = match names.as_slice() {
        [] => "there is no Node at all".to_owned(),
        few if few.len() <= 8 => format!("the Nodes are {}", few.join(", ")),
        many => {
            format!("{} other Nodes are there, {} among them", many.len(), many[..4].join(", "))
        }
    };
    bail!(
        "no Node is named {:?}: {known}; name this node with --node-name or NODE_NAME",
        &*config.node
    )
}

/// The kernel's maps and the agent's books of them.
struct Kernel {
    store: BpfStore,
    installed: Installed,
    /// Services that people were told have no room.
    told: BTreeSet<ServiceId>,
}

impl Kernel {
    fn read(mut store: BpfStore) -> anyhow::Result<Self> {
        // The agent before may have been killed before it waited for what it replaced.
        store.grace()?;
        let installed = store.installed()?;
        Ok(Self { store, installed, told: BTreeSet::new() })
    }

    /// Plans, and carries out what was planned, until there is nothing to plan. Returns the number
    /// of steps done.
    fn settle(&mut self, reconciler: &mut Reconciler) -> anyhow::Result<usize> {
        let mut steps = 0;
        while !reconciler.settled() {
            let began = Instant::now();
            let plan = reconciler.plan(&self.installed);
            self.carry_out(&plan)?;
            reconciler.carried_out(&plan);
            if !plan.steps.is_empty() {
                debug!(writes = plan.steps.len(), took = ?began.elapsed(), "programmed");
            }
            steps += plan.steps.len();
        }
        self.tell(reconciler.left_out());
        Ok(steps)
    }

    /// After a failure the books are made anew from the maps.
    fn carry_out(&mut self, plan: &Plan) -> anyhow::Result<()> {
        let result = commit(plan, &mut self.store, &mut self.installed);
        if result.is_err() {
            self.store.grace()?;
            self.installed = self.store.installed()?;
        }
        Ok(result?)
    }

    /// Says which Services have no room, when these are others than before.
    fn tell(&mut self, left_out: &BTreeSet<ServiceId>) {
        if *left_out == self.told {
            return;
        }
        self.told.clone_from(left_out);
        if left_out.is_empty() {
            info!("every Service has room in the maps again");
            return;
        }
        let names: Vec<String> = left_out.iter().take(8).map(ToString::to_string).collect();
        warn!(
            count = left_out.len(),
            "the maps are full: left to kube-proxy are {}{}; run `topo-lb cleanup` and start the \
             agent with a larger --max-services or --max-endpoints",
            names.join(", "),
            if left_out.len() > names.len() { " and others" } else { "" }
        );
    }
}
