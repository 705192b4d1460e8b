//! Makes the cluster, and keeps it until a signal.

use std::io::{Read as _, Write as _, stdin, stdout};
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use fs_err::File;
use rustix::process::{Signal, kill_process};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use topo_lb_tests::cluster::Cluster;
use topo_lb_tests::folder::Folder;
use topo_lb_tests::kubernetes::parts::Parts;
use topo_lb_tests::kubernetes::state::{Node, State};
use topo_lb_tests::kubernetes::{Kubernetes, MOST_NODES, names, plan};
use topo_lb_tests::progress::Progress;

use crate::Shape;

/// What a cluster writes: images in each node, logs, etcd.
const LEAST_DISK: u64 = 2 << 30;

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
        nodes: Vec::new(),
    };
    let cluster = progress.step("networks and cgroups", || Cluster::make(&plan(&names)))?;
    let place = Folder::make(State::folder(cluster.prefix()))?;
    state.write(place.path())?;
    let kubernetes = Kubernetes::start(&cluster, &parts, shape.proxy, progress)?;
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
