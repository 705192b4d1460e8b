//! Starts the agent, up to attached programs.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, bail};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::config::Config;
use super::devices::Devices;
use super::ejector::Ejector;
use super::first_listing::{UNREMARKED, first_listing};
use super::kernel::Kernel;
use super::lookout::Lookout;
use super::observer::Observer;
use super::peers::Peers;
use super::prove::prove;
use super::resolver::Resolver;
use super::running::{INSPECTION, Running};
use super::untranslated::Counting;
use super::wider::Wider;
use super::{exclusions, precedence, serve, source};
use crate::agent_state::AgentState;
use crate::metrics::Figures;
use topo_lb_core::ejection::Silence;
use topo_lb_core::flag::{NODE_NAME, OBSERVE};
use topo_lb_core::homecoming::Homecoming;
use topo_lb_core::plan::Capacity;
use topo_lb_core::reconcile::Reconciler;
use topo_lb_kernel::datapath::attach::accounting::AccountingError;
use topo_lb_kernel::datapath::attach::hooks;
use topo_lb_kernel::datapath::host::connection_room::Host;
use topo_lb_kernel::datapath::inspect::self_probe::ProbeError;
use topo_lb_kernel::datapath::{Datapath, Options};
use topo_lb_kernel::observe::Observed;
use topo_lb_kernel::socket::terminator::{self, SocketTerminator};
use topo_lb_kube::heap;
use topo_lb_kube::source::clock::now;

/// Starts the agent; `None` if it is stopped before the cluster is known.
pub(super) async fn start(
    config: Config,
    stop: Pin<&mut impl Future<Output = ()>>,
) -> anyhow::Result<Option<Running>> {
    // First: problems of this host are reported before an API server answers.
    Datapath::check_host(&config.datapath)?;
    say_shortage(&config.datapath);
    let (mut events, mut wanted, saver, pods) = source::open(&config).await?;
    let lists_all =
        !config.devices.is_empty() || config.replacement.is_some() || config.terminate_tcp;
    let reconciler =
        Reconciler::new(config.node.clone(), config.scope, lists_all).when_full(config.when_full);
    let reconciler = reconciler.exposing(config.exposing.clone());
    let reconciler = reconciler.steering(!config.exclusions.steered.is_empty());
    let reconciler = reconciler.narrowing(config.replacement.is_some());
    let observed = config.datapath.observe.then(Arc::<Observed>::default);
    let (telemetry, socket_file) = serve::serve(&config, observed.clone())?;
    let cgroup_root = config.datapath.cgroup_root.clone();
    let self_probe = prove(&telemetry, &cgroup_root);
    let figures = Arc::clone(&telemetry.figures);
    let mut state = AgentState::new(reconciler, saver, telemetry);
    state.silence = Silence::new(config.island_after, Instant::now());

    let begun = async {
        let pin_dir = &config.datapath.pin_dir;
        let listing = first_listing(&mut events, &mut state, &mut wanted, pin_dir);
        let ((), prepared) =
            tokio::try_join!(listing, prepare(self_probe, config.datapath.clone()))?;
        anyhow::Ok(prepared)
    };
    let (unready, mut datapath) = tokio::select! {
        prepared = begun => prepared?,
        () = stop => {
            socket_file.remove();
            return Ok(None);
        }
        never = beat(&figures) => never,
    };
    // A failure up to here leaves nothing in the kernel: the datapath removes its maps.
    check_node(&state.reconciler)?;
    state.telemetry.complete();
    let attached = hooks::is_attached(&config.datapath.pin_dir);
    datapath.copy_old_state();
    let mut kernel = Kernel::read(datapath.maps_directory())?;
    // After a renewal, the new maps are empty.
    state.write_gate.begin(attached && kernel.installed.placed().next().is_some());
    state.telemetry.unprogrammed_before(
        kernel.unprogrammed_before.iter().map(|(name, lack)| (&**name, lack.meanwhile)),
    );
    // Endpoints that became Ready lately go on where they were.
    state.reconciler.pass(now());
    state.reconciler.expect_all(&kernel.installed);
    let writes = kernel.settle(&mut state).context("the first plan could not be carried out")?;
    exclusions::begin(
        config.exclusions.clone(),
        pods,
        &cgroup_root,
        datapath.maps_directory(),
        &figures,
    )
    .await?;
    datapath.attach()?;
    if let Err(error) = datapath.mark_mode() {
        warn!("connections of before the start count as those of this mode: {error}");
    }
    let observer = Observer::start(&config, observed, &figures);
    datapath.guard_node_ports();
    let unseen = match config.datapath.observe {
        true => Some(format!("the agent only observes ({OBSERVE})")),
        false => None,
    };
    let uncounted = account(&mut datapath);
    let (count_all, why) = (config.datapath.count_all, uncounted.as_deref());
    let pods = config.pod_ranges.clone();
    let counting = Counting::start(&mut datapath, count_all, why, pods, &figures);
    let ejector = Ejector::start(&mut datapath, unseen.or(uncounted), &mut state);
    let lookout = Lookout::new(datapath.maps_directory(), &state);
    let resolver = config
        .dns
        .clone()
        .map(|options| Resolver::start(options, datapath.maps_directory().to_owned(), &mut state));
    while state.has_more_to_write() {
        if let Err(error) = kernel.settle(&mut state) {
            warn!("{error}; the agent retries with the next change");
            break;
        }
    }
    if config.exposing.is_none() {
        datapath.forget_all_frontends();
    }
    let say = state.telemetry.precedence();
    let pin_dir = &config.datapath.pin_dir;
    precedence::watch(&cgroup_root, pin_dir, &config.tolerated, datapath.programs()?, say)
        .context("cannot start a thread")?;
    let options = terminator::Options {
        pin_dir: config.datapath.pin_dir.clone(),
        cgroup_root: cgroup_root.clone(),
        tcp: config.terminate_tcp,
        early: config.replacement.is_some(),
    };
    let mut terminator = SocketTerminator::start(options, Arc::clone(&figures.sockets))
        .context("cannot start a thread")?;
    // Gone while no agent ran. Only now, the pins are those of the attached programs.
    let appeared = kernel.take_appeared(&state);
    terminator.end(&kernel.take_gone(), appeared);
    let mut peers = Peers::start(&config, datapath.maps_directory(), &state)?;
    let devices = Devices::follow(&config, &mut datapath, figures)?;
    if let Some(peers) = &mut peers {
        peers.lead(datapath.direct_uplink());
    }
    state.telemetry.begin();
    if let Some(error) = unready {
        warn!("the agent is not ready: {error}");
    }
    info!(
        node = %config.node,
        services = state.reconciler.state().services().count(),
        writes,
        pin_dir = %config.datapath.pin_dir.display(),
        "datapath attached"
    );
    heap::trim();
    Ok(Some(Running {
        state,
        kernel,
        datapath,
        events,
        wanted,
        devices,
        peers,
        terminator,
        homecoming: Homecoming::default(),
        wider: Wider::default(),
        observer,
        counting,
        ejector,
        lookout,
        resolver,
        socket_file,
        cgroup_root,
    }))
}

/// Says if the limit on the memory of this process is too small for full tables of connections.
fn say_shortage(options: &Options) {
    let Capacity { services, slots, flows, connections, .. } = options.capacity;
    if connections > 0
        && let Some((sentence, remedy)) =
            Host::this().sized(services, slots, flows).shortage(connections)
    {
        warn!("{sentence}; {remedy}");
    }
}

/// Loads the programs and creates the maps while the cluster is still being listed: the verifier
/// takes a quarter of a second. Returns also the error of the self-probe.
async fn prepare(
    self_probe: JoinHandle<Option<ProbeError>>,
    options: Options,
) -> anyhow::Result<(Option<ProbeError>, Datapath)> {
    // The probe comes first: if its child and the maps needed memory at once, a limit that is too
    // small would make the kernel kill the agent before it can report that.
    let self_probe = tokio::time::timeout(UNREMARKED, self_probe).await;
    let datapath = tokio::task::spawn_blocking(move || Datapath::open(options)).await??;
    Ok((self_probe.ok().and_then(Result::ok).flatten(), datapath))
}

/// Starts to account TCP connections, or says and returns why not.
fn account(datapath: &mut Datapath) -> Option<String> {
    let result = datapath.account();
    match &result {
        Ok(None) => info!("what TCP connections to Services move is counted"),
        Ok(Some(error)) => {
            info!("what TCP connections to Services move is counted when they end: {error}");
        }
        Err(error @ (AccountingError::Off | AccountingError::NoStorage)) => {
            info!("what TCP connections to Services move is not counted: {error}");
        }
        Err(error) => warn!("what TCP connections to Services move is not counted: {error}"),
    }
    result.err().map(|error| error.to_string())
}

/// Records progress until the loop of the agent task starts.
async fn beat(figures: &Figures) -> ! {
    loop {
        figures.beat();
        tokio::time::sleep(INSPECTION).await;
    }
}

/// Checks that the cluster has a Node with this name.
fn check_node(reconciler: &Reconciler) -> anyhow::Result<()> {
    if reconciler.state().node(reconciler.node()).is_some() {
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
        "no Node is named {:?}: {known}; name this node with {NODE_NAME} or NODE_NAME",
        reconciler.node()
    )
}
