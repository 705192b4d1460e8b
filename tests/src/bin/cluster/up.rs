//! Starts the process that keeps the cluster, and waits until the cluster is ready.

use std::env;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use topo_lb_tests::deployment::kubectl;
use topo_lb_tests::interrupt::exit_code;
use topo_lb_tests::kubernetes::state::State;

use crate::Shape;
use crate::keep::PLUGINS;

/// The exit code of a program that SIGINT has ended.
const INTERRUPTED: u8 = 130;

pub(crate) fn run(shape: &Shape) -> ExitCode {
    match start(shape) {
        Ok(code) => code,
        Err(error) => exit_code(Err(error)),
    }
}

fn start(shape: &Shape) -> Result<ExitCode> {
    if let Some(state) = State::of_machine()? {
        match state.kubeconfig {
            Some(path) => bail!(
                "a cluster is up already (KUBECONFIG={}): `cargo xtask cluster down` removes it",
                path.display()
            ),
            None => bail!("a cluster is coming up already: `cargo xtask cluster down` stops it"),
        }
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, stop.clone()).context("cannot catch signals")?;
    }
    let mut keeper = spawn(shape)?;
    let output = keeper.stdout.take().context("the keeper's output is a pipe")?;
    let reader = thread::spawn(move || {
        let mut line = String::new();
        // The end of the output is an empty line: the keeper has ended.
        let _ = BufReader::new(output).read_line(&mut line);
        line
    });
    let mut told = false;
    while !reader.is_finished() {
        if stop.load(Ordering::Relaxed) && !told {
            told = true;
            end(&keeper);
        }
        thread::sleep(Duration::from_millis(20));
    }
    let kubeconfig = reader.join().unwrap_or_default();
    if told || kubeconfig.is_empty() {
        // It has removed everything, and has said why.
        keeper.wait().context("cannot wait for the keeper")?;
        return Ok(ExitCode::from(if told { INTERRUPTED } else { 1 }));
    }
    ensure!(kubeconfig.ends_with('\n'), "the keeper was cut short");
    let kubeconfig = kubeconfig.trim();
    let kubectl = kubectl()?;
    let folder = kubectl.parent().unwrap_or(&kubectl).display();
    let plugins = Path::new(kubeconfig).with_file_name(PLUGINS);
    eprintln!("\nexport KUBECONFIG={kubeconfig} PATH=$PATH:{folder}:{}\n", plugins.display());
    if let Some(url) = State::of_machine()?.and_then(|state| state.prometheus) {
        eprintln!("Prometheus: {url}\n");
    }
    println!("{kubeconfig}");
    Ok(ExitCode::SUCCESS)
}

fn spawn(shape: &Shape) -> Result<Child> {
    use std::os::unix::process::CommandExt as _;
    let me = env::current_exe().context("cannot find the path of this program")?;
    let mut command = Command::new(me);
    command
        .args(["keep", "--nodes", &shape.nodes.to_string(), "--proxy", shape.proxy.name()])
        .args(shape.prometheus.then_some("--prometheus"))
        // It ends if its input does before the cluster is ready: this process was killed.
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    // SAFETY: between fork and exec this makes one system call; it neither allocates nor locks.
    unsafe {
        // Ctrl-C on the terminal, and its end, must not reach the cluster.
        command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?));
    }
    command.spawn().context("cannot start the process that keeps the cluster")
}

fn end(keeper: &Child) {
    // It may have ended meanwhile.
    let _ = kill_process(Pid::from_child(keeper), Signal::TERM);
}
