//! Makes the cluster, and keeps it until a signal.

use std::io::{Read as _, Write as _, stdin, stdout};
use std::net::SocketAddr;
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use fs_err::File;
use rustix::process::{Signal, kill_process};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use topo_lb_tests::cluster::Cluster;
use topo_lb_tests::deployment::monitoring;
use topo_lb_tests::folder::Folder;
use topo_lb_tests::kubernetes::door::Door;
use topo_lb_tests::kubernetes::parts::Parts;
use topo_lb_tests::kubernetes::state::{Node, State};
use topo_lb_tests::kubernetes::{Kubernetes, MOST_NODES, Proxy, names, plan};
use topo_lb_tests::progress::Progress;
use topo_lb_tests::prometheus::Prometheus;

use crate::Shape;

/// What a cluster writes: images in each node, logs, etcd.
const LEAST_DISK: u64 = 2 << 30;

/// The port of an agent's metrics on its node, as in the chart and in `deploy/components/metrics`.
const METRICS: u16 = 19_876;

/// The folder with plugins of kubectl, beside the kubeconfig.
pub(crate) const PLUGINS: &str = "plugins";

/// Set when nobody needs to wait any longer.
static IS_READY: AtomicBool = AtomicBool::new(false);

/// Returns only on failure; a signal ends the process, and removes the cluster.
pub(crate) fn run(shape: &Shape) -> Result<()> {
    ensure!(
        (1..=MOST_NODES).contains(&shape.nodes),
        "--nodes takes 1 to {MOST_NODES}: each node is a containerd and a kubelet on this machine"
    );
    let parts = Parts::given()?;
    check_disk(&std::env::temp_dir())?;
    thread::spawn(end_with_starter);
    let progress = Progress::new();
    let names = names(shape.nodes);
    let mut state = State {
        keeper: process::id(),
        proxy: shape.proxy,
        kubernetes: parts.version()?,
        kubeconfig: None,
        prometheus: None,
        nodes: Vec::new(),
    };
    let cluster = progress.step("networks and cgroups", || Cluster::make(&plan(&names)))?;
    let place = Folder::make(State::folder(cluster.prefix()))?;
    state.write(place.path())?;
    let kubernetes = Kubernetes::start(&cluster, &parts, shape.proxy, progress)?;
    let prometheus = shape
        .prometheus
        .then(|| progress.step("Prometheus", || prometheus(&cluster, &kubernetes, shape.proxy)));
    let prometheus = prometheus.transpose()?;
    state.prometheus =
        prometheus.as_ref().map(|(_, door)| format!("http://127.0.0.1:{}", door.port()));
    let kubeconfig = kubernetes.kubeconfig()?;
    state.nodes = kubernetes
        .workers()
        .iter()
        .map(|worker| Node {
            name: worker.name().to_owned(),
            address: worker.address().to_owned(),
            netns: cluster.prefix().name(worker.name()),
            programs: worker
                .programs()
                .into_iter()
                .map(|(name, id)| (name.to_owned(), id))
                .collect(),
        })
        .collect();
    plugin(&kubeconfig.with_file_name(PLUGINS))?;
    state.kubeconfig = Some(kubeconfig.clone());
    state.write(place.path())?;
    IS_READY.store(true, Ordering::Relaxed);
    let mut output = stdout();
    writeln!(output, "{}", kubeconfig.display())
        .and_then(|()| output.flush())
        .context("nobody waits for the cluster")?;
    detach(&cluster.folder().join("keeper.log"))?;
    loop {
        thread::park();
    }
}

/// Makes a folder with `kubectl-topo`: the agent's own program, which is beside this one.
fn plugin(folder: &Path) -> Result<()> {
    let program = std::env::current_exe()?.with_file_name("topo-lb");
    fs_err::create_dir(folder)?;
    Ok(fs_err::os::unix::fs::symlink(program, folder.join("kubectl-topo"))?)
}

/// Starts a Prometheus that scrapes all nodes, and the machine's way to it. Agents that run serve their metrics there;
/// those that are installed later do with the component `metrics`, or the chart's `listen.onNode`.
fn prometheus<'a>(
    cluster: &'a Cluster,
    kubernetes: &Kubernetes<'_>,
    proxy: Proxy,
) -> Result<(Prometheus<'a>, Door)> {
    if let Some(overlay) = proxy.overlay() {
        kubernetes.apply(overlay, &["metrics"])?;
        kubernetes.wait_for_agents()?;
    }
    let monitor = monitoring("PodMonitor")?;
    let rules = monitoring("PrometheusRule")?["spec"].take();
    let mut agents = Vec::new();
    for worker in kubernetes.workers() {
        agents.push((worker.name(), SocketAddr::new(worker.address().parse()?, METRICS)));
    }
    let prometheus = Prometheus::start(cluster, &agents, &monitor, &rules)?;
    Ok((prometheus, Door::open(cluster, Prometheus::address())?))
}

/// Leaves the terminal and the pipes of the process that has started this one.
fn detach(log: &Path) -> Result<()> {
    let log = File::create(log)?;
    dup2_stdin(File::open("/dev/null")?).context("cannot replace the input")?;
    dup2_stdout(&log).context("cannot replace the output")?;
    dup2_stderr(&log).context("cannot replace the error output")
}

/// Ends this process, and with it the cluster, if its starter ends before the cluster is ready.
fn end_with_starter() {
    // It never writes: this returns when it has ended, or when the input is replaced.
    let _ = stdin().read(&mut [0]);
    if !IS_READY.load(Ordering::Relaxed) {
        // This process exists.
        let _ = kill_process(rustix::process::getpid(), Signal::TERM);
    }
}

fn check_disk(folder: &Path) -> Result<()> {
    let room = rustix::fs::statvfs(folder).with_context(|| format!("no {}", folder.display()))?;
    let free = room.f_bavail * room.f_frsize;
    ensure!(
        free >= LEAST_DISK,
        "{} has {} MB left, and a cluster needs {} MB: TMPDIR names another folder",
        folder.display(),
        free >> 20,
        LEAST_DISK >> 20
    );
    Ok(())
}
