//! The agent: one task owns what the cluster looks like and what is installed.

mod devices;
mod exclusions;
mod first_listing;
mod gather;
mod guard;
mod kernel;
mod precedence;
mod quarantine;
mod retry;
mod wanted;

use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures::{Stream, StreamExt as _};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tracing::{info, warn};

use crate::admin;
use crate::agent_state::AgentState;
use crate::datapath::attach::hooks;
use crate::datapath::inspect::overridden::Tolerated;
use crate::datapath::inspect::self_probe::{self, ProbeError};
use crate::datapath::programs::load::{Datapath, Options};
use crate::device::Pattern;
use crate::events::publish::EventPublisher;
use crate::events::{self, counted};
use crate::exclusion::Rules;
use crate::heap;
use crate::metrics::Figures;
use crate::plan::WhenFull;
use crate::readiness::Proof;
use crate::reconcile::Reconciler;
use crate::socket::terminator::{self, SocketTerminator};
use crate::source::kube::KubeTarget;
use crate::source::saved::{self, Saver};
use crate::source::{self, Event};
use crate::telemetry::Telemetry;
use crate::topology::Scope;
use devices::Devices;
use exclusions::Pods;
use first_listing::first_listing;
use gather::gather;
use guard::{Finding, Guard};
use kernel::Kernel;
use retry::{Retry, Turn, next_turn};
use wanted::WantedNodes;

/// Where the cluster is described.
#[derive(Clone, Debug)]
pub enum Source {
    /// Files, followed.
    Manifests(PathBuf),
    /// A Kubernetes API.
    Kube(KubeTarget),
}

/// What the agent is to do.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the cluster is described.
    pub source: Source,
    /// This node.
    pub node: Arc<str>,
    /// Where the state is saved, and started from while the source does not answer.
    pub state_dir: Option<PathBuf>,
    /// Which Services are handled.
    pub scope: Scope,
    /// Which Pods are left alone.
    pub exclusions: Rules,
    /// What becomes of Services that have no room in the maps.
    pub when_full: WhenFull,
    /// Devices whose packets are translated.
    pub devices: Vec<Pattern>,
    /// Programs of others that may run before ours.
    pub tolerated: Vec<Tolerated>,
    /// The hooks and the maps.
    pub datapath: Options,
    /// Where HTTP is served.
    pub admin: admin::Options,
    /// TCP sockets whose endpoint serves no more are ended, too.
    pub terminate_tcp: bool,
}

/// How often the agent looks whether its pins and links are still there.
const INSPECTION: Duration = Duration::from_secs(1);
/// A first listing that takes longer is remarked upon.
const UNREMARKED: Duration = Duration::from_secs(2);

/// Runs until SIGTERM or SIGINT, and then leaves the datapath in place.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = async {
        let by = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        info!("stopping on {by}; the datapath stays in place");
    };
    follow(config, pin!(stop)).await
}

type Events = Pin<Box<dyn Stream<Item = Event> + Send>>;

/// What is followed, which Nodes of it, who saves it, and what is said of Pods.
async fn events(config: &Config) -> anyhow::Result<(Events, WantedNodes, Saver, Pods)> {
    let mut wanted = WantedNodes::default();
    let (events, saver, pods): (Events, _, _) = match &config.source {
        Source::Manifests(path) => {
            // Read once here: what is broken at start is told at once, and nothing is attached.
            // What costs single objects is told by the one who follows.
            source::file::read(path)?;
            if config.state_dir.is_some() {
                info!("nothing is saved: manifests are there without an API server");
            }
            let (events, pods) = exclusions::split(source::file::follow(path.clone())?);
            (Box::pin(events), Saver::new(None), pods)
        }
        Source::Kube(target) => {
            let server = source::kube::connect(target).await?;
            let folder = config
                .state_dir
                .as_deref()
                .map(|state| saved::Folder::new(state, server.identity().clone()));
            let saved = folder.as_ref().and_then(|folder| last_known(folder, &server, config));
            let pods = source::kube::pods(server.clone(), &config.node).boxed();
            // The last agent needed the other Nodes that are in there; this one may, too.
            if let Some(saved) = &saved {
                wanted.begin_with(saved.known_nodes());
            }
            let nodes = source::kube::Nodes::new(Arc::clone(&config.node), wanted.subscribe());
            let live = Box::pin(source::kube::follow(server, nodes));
            (Box::pin(saved::before(saved, live)), Saver::new(folder), pods)
        }
    };
    Ok((events, wanted, saver, pods))
}

/// What was saved, if it is of use.
fn last_known(
    folder: &saved::Folder,
    server: &source::kube::Server,
    config: &Config,
) -> Option<saved::Saved> {
    // Where the API server is may be known from there alone.
    folder.load(&config.node, |update| server.observe(update)).unwrap_or_else(|error| {
        warn!("{error}");
        None
    })
}

async fn follow(
    config: Config,
    mut stop: Pin<&mut impl Future<Output = ()>>,
) -> anyhow::Result<()> {
    // First: what is wrong with this host is told at once, and not when an API server answers.
    Datapath::check_host(&config.datapath)?;
    let (events, mut wanted, saver, pods) = events(&config).await?;
    let mut events: Events = Box::pin(source::with_local_addresses(events));
    let lists_all = !config.devices.is_empty() || config.terminate_tcp;
    let reconciler =
        Reconciler::new(config.node.clone(), config.scope, lists_all).when_full(config.when_full);
    let (telemetry, socket_file) = telemetry(&config)?;
    let proof = prove(&telemetry, &config);
    let figures = Arc::clone(&telemetry.figures);
    let mut agent = AgentState::new(reconciler, saver, telemetry);

    let begun = async {
        let listing = first_listing(&mut events, &mut agent, &mut wanted, &config);
        let ((), prepared) = tokio::try_join!(listing, prepare(proof, config.datapath.clone()))?;
        anyhow::Ok(prepared)
    };
    let (unready, mut datapath) = tokio::select! {
        prepared = begun => prepared?,
        () = &mut stop => {
            socket_file.remove();
            return Ok(());
        }
        never = beat(&figures) => never,
    };
    // What fails up to here leaves nothing in the kernel: the datapath takes its maps away.
    known_node(&agent.reconciler, &config)?;
    agent.telemetry.complete();
    let attached = hooks::is_attached(&config.datapath.pin_dir);
    datapath.copy_old_state();
    let mut kernel = Kernel::read(datapath.maps_directory())?;
    // Maps that take the places of others are empty.
    agent.write_gate.begin(attached && kernel.installed.placed().next().is_some());
    agent
        .telemetry
        .left_before(kernel.left_before.iter().map(|(name, lack)| (&**name, lack.meanwhile)));
    agent.reconciler.expect_all(&kernel.installed);
    let writes = kernel.settle(&mut agent).context("the first plan could not be carried out")?;
    exclusions::begin(&config, pods, datapath.maps_directory(), &figures).await?;
    datapath.attach()?;
    let say = agent.telemetry.precedence();
    let root = &config.datapath.cgroup_root;
    precedence::watch(root, &config.tolerated, datapath.programs()?, say)
        .context("cannot start a thread")?;
    let mut terminator = terminator(&config, &figures)?;
    // What has gone while no agent ran. Only now the pins are those that the programs use.
    terminator.end(&kernel.take_gone());
    let mut devices = Devices::follow(&config.devices, &mut datapath)?;
    agent.telemetry.begin();
    if let Some(error) = unready {
        warn!("the agent is not ready: {error}");
    }
    info!(
        node = %config.node,
        services = agent.reconciler.state().services().count(),
        writes,
        pin_dir = %config.datapath.pin_dir.display(),
        "datapath attached"
    );
    heap::trim();
    let mut events = pin!(events);
    let mut retry = Retry::default();
    let mut guard = Guard::default();
    let mut inspection = tokio::time::interval(INSPECTION);
    inspection.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let mut listed = false;
        tokio::select! {
            turn = next_turn(&mut inspection, events.next(), &retry) => match turn {
                Turn::Inspect => {
                    figures.beat();
                    match guard.take(datapath.repair(), Instant::now()) {
                        Finding::Quiet => {}
                        Finding::Disturbed(why) => agent.telemetry.prover()(Proof::Failed(why)),
                        // Not before: a probe that meets no program of ours tells nothing.
                        Finding::Over => drop(prove(&agent.telemetry, &config)),
                    }
                    devices.attach(&mut datapath);
                    terminator.end(&[]);
                    continue;
                }
                Turn::Event(event) => {
                    let Some(event) = event else {
                        bail!("the source of the cluster's state has ended")
                    };
                    listed = gather(event, &mut events, &mut agent).await;
                }
                Turn::Attempt => {}
            },
            Some(question) = agent.telemetry.questions.recv() => {
                let (reconciler, names) = (&agent.reconciler, devices.names());
                agent.telemetry.answer(question, reconciler, &kernel.installed, names);
                continue;
            }
            result = devices.changed() => {
                result.context("the device notification socket failed")?;
                devices.attach(&mut datapath);
                continue;
            }
            () = agent.saver.due() => {
                agent.saver.save(agent.reconciler.snapshot());
                continue;
            }
            () = &mut stop => {
                agent.saver.finish(agent.reconciler.snapshot()).await;
                terminator.finish();
                socket_file.remove();
                return Ok(());
            }
        }
        if let Some(settled) = retry.attempt(|| kernel.settle(&mut agent)) {
            wanted.want(&agent.reconciler);
            match settled {
                Ok(_) => terminator.end(&kernel.take_gone()),
                Err((error, pause)) => {
                    agent.telemetry.failed(&error.to_string());
                    warn!(
                        "{error}; every Service stays as it was or as planned; retries in {pause:?}"
                    );
                }
            }
        }
        if listed {
            heap::trim();
        }
    }
}

/// Who is told what happens here, and the file of the probes' socket.
fn telemetry(config: &Config) -> anyhow::Result<(Telemetry, admin::SocketFile)> {
    let figures = Arc::<Figures>::default();
    let mut has_listener = false;
    let publisher = match &config.source {
        // Without credentials nobody may write Events.
        Source::Manifests(_) | Source::Kube(KubeTarget::Server(_)) => {
            EventPublisher::silent(Arc::clone(&figures))
        }
        Source::Kube(target) => {
            has_listener = true;
            EventPublisher::start(target.clone(), Arc::clone(&config.node), Arc::clone(&figures))
        }
    };
    let telemetry = Telemetry::new(Arc::clone(&figures), publisher);
    if has_listener {
        let pin_dir = config.datapath.pin_dir.clone();
        tokio::spawn(counted::follow(telemetry.state_query(), pin_dir));
    }
    if let Source::Kube(target @ (KubeTarget::Kubeconfig(_) | KubeTarget::Inferred)) =
        &config.source
    {
        let (target, node) = (target.clone(), Arc::clone(&config.node));
        events::node::start(target, node, telemetry.readiness(), Arc::clone(&figures));
    }
    let sources = admin::Sources {
        node: Arc::clone(&config.node),
        scope: config.scope,
        pin_dir: config.datapath.pin_dir.clone(),
        figures,
        readiness: telemetry.readiness(),
        state_query: telemetry.state_query(),
    };
    let socket_file = admin::start(&config.admin, sources).context("cannot serve HTTP")?;
    Ok((telemetry, socket_file))
}

/// Who ends sockets whose endpoint is gone.
fn terminator(config: &Config, figures: &Arc<Figures>) -> anyhow::Result<SocketTerminator> {
    let options = terminator::Options {
        pin_dir: config.datapath.pin_dir.clone(),
        cgroup_root: config.datapath.cgroup_root.clone(),
        tcp: config.terminate_tcp,
    };
    SocketTerminator::start(options, Arc::clone(figures)).context("cannot start a thread")
}

/// Finds out whether the hooks fire, for readiness; some tens of milliseconds on a thread of its own.
/// What is wrong is for the caller to tell.
fn prove(telemetry: &Telemetry, config: &Config) -> JoinHandle<Option<ProbeError>> {
    let (say, cgroup_root) = (telemetry.prover(), config.datapath.cgroup_root.clone());
    tokio::task::spawn_blocking(move || match self_probe::run(&cgroup_root) {
        Ok(()) => {
            say(Proof::Given);
            None
        }
        Err(error) => {
            say(Proof::Failed(error.to_string()));
            Some(error)
        }
    })
}

/// Loads the programs and makes the maps, while the cluster is still being listed: the verifier takes a
/// quarter of a second. Returns what the self-probe found wrong, too.
async fn prepare(
    proof: JoinHandle<Option<ProbeError>>,
    options: Options,
) -> anyhow::Result<(Option<ProbeError>, Datapath)> {
    // The probe comes first: if its child and the maps wanted memory at once, a limit that is too small
    // would have the kernel end the agent before it can say so.
    let proof = tokio::time::timeout(UNREMARKED, proof).await;
    let datapath = tokio::task::spawn_blocking(move || Datapath::open(options)).await??;
    Ok((proof.ok().and_then(Result::ok).flatten(), datapath))
}

/// Shows for ever that the owner of the state is not stuck.
async fn beat(figures: &Figures) -> ! {
    loop {
        figures.beat();
        tokio::time::sleep(INSPECTION).await;
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
