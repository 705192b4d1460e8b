//! The agent: one task owns what the cluster looks like and what is installed.

use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures::{FutureExt as _, Stream, StreamExt as _};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{debug, info, warn};

use crate::datapath::bpf::BpfStore;
use crate::datapath::commit::commit;
use crate::datapath::load::{Datapath, Options};
use crate::datapath::store::Store as _;
use crate::device::{self, Changes, Pattern};
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
/// Pause before a plan that could not be carried out is tried again; doubles up to
/// [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

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
            // Read once here: what is wrong at start is told at once, and nothing is attached.
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
    let mut events = events(&config.source).await?;
    let mut reconciler =
        Reconciler::new(config.node.clone(), config.scope, !config.devices.is_empty());

    first_listing(&mut events, &mut reconciler).await?;
    known_node(&reconciler, &config)?;

    // Only now: what fails above leaves nothing in the kernel.
    let mut datapath = Datapath::open(config.datapath.clone())?;
    let store = BpfStore::open(&config.datapath.pin_dir)?;
    let mut kernel = Kernel::read(store)?;
    let began = Instant::now();
    let plan = reconciler.plan_all(&kernel.installed);
    kernel.carry_out(&plan).context("the first plan could not be carried out")?;
    reconciler.carried_out(&plan);
    told(&plan, began);
    datapath.attach()?;
    let mut devices = Devices::follow(&config.devices, &mut datapath)?;
    info!(
        node = %config.node,
        services = reconciler.state().services().count(),
        writes = plan.steps.len(),
        pin_dir = %config.datapath.pin_dir.display(),
        "datapath attached"
    );
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
        take_in(event, &mut reconciler);
        for _ in 1..BATCH {
            match events.next().now_or_never() {
                Some(Some(event)) => take_in(event, &mut reconciler),
                _ => break,
            }
        }
        if reconciler.settled() {
            continue;
        }
        let began = Instant::now();
        let plan = reconciler.plan(&kernel.installed);
        match kernel.carry_out(&plan) {
            Ok(()) => {
                reconciler.carried_out(&plan);
                told(&plan, began);
                pause = None;
            }
            Err(error) => {
                let next = pause.map_or(FIRST_PAUSE, |pause| (pause * 2).min(LONGEST_PAUSE));
                warn!(
                    "{error:#}; every Service stays as it was or as planned; trying again in {next:?}"
                );
                pause = Some(next);
            }
        }
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
            Some(event) => take_in(event, reconciler),
            None => bail!("the source of the cluster's state ended before it was complete"),
        }
    }
}

fn take_in(event: Event, reconciler: &mut Reconciler) {
    match event {
        Event::Update(update) => reconciler.observe(update),
        Event::Synced => {}
        Event::Trouble(sentence) => warn!("{sentence}"),
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

fn told(plan: &Plan, began: Instant) {
    if !plan.steps.is_empty() {
        debug!(writes = plan.steps.len(), took = ?began.elapsed(), "programmed");
    }
    if !plan.left_out.is_empty() {
        let names: Vec<String> = plan.left_out.iter().take(8).map(ToString::to_string).collect();
        warn!(
            count = plan.left_out.len(),
            "the maps are full: {} and others like them are left to kube-proxy; start the agent with larger --max-services or --max-endpoints",
            names.join(", ")
        );
    }
}

/// The kernel's maps and the agent's books of them.
struct Kernel {
    store: BpfStore,
    installed: Installed,
}

impl Kernel {
    fn read(mut store: BpfStore) -> anyhow::Result<Self> {
        let installed = store.installed()?;
        Ok(Self { store, installed })
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
}
