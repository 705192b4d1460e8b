//! Removes the cluster, whatever state it is in.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use topo_lb_tests::kubernetes::state::State;
use topo_lb_tests::progress::Progress;
use topo_lb_tests::wait::patient;
use topo_lb_tests::{prefix, residue};

/// How long the keeper may take to remove everything.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn run() -> Result<()> {
    let kept = State::of_machine()?;
    if let Some(state) = &kept {
        Progress::new().step("ending the cluster", || {
            end(state.keeper);
            Ok(())
        })?;
    }
    // What a keeper has left that was killed, too.
    let is_ours = |name: &str| prefix::owner(name).is_some_and(prefix::is_dead);
    let found = residue::find(is_ours)?;
    residue::sweep(is_ours)?;
    let left = residue::find(is_ours)?;
    ensure!(left.is_empty(), "cannot remove {left:?}");
    match (kept.is_some(), found.len()) {
        (true, 0) => eprintln!("nothing is left"),
        (false, 0) => eprintln!("no cluster is up"),
        (_, count) => {
            eprintln!("removed {count} things that were left of a cluster; nothing is left")
        }
    }
    Ok(())
}

/// Has the keeper remove everything, and kills it if it takes too long.
fn end(keeper: u32) {
    let Some(id) = i32::try_from(keeper).ok().and_then(Pid::from_raw) else { return };
    let begun = Instant::now();
    // Fails if it has ended, which the loop sees.
    let _ = kill_process(id, Signal::TERM);
    while Path::new("/proc").join(keeper.to_string()).exists() {
        if begun.elapsed() > patient(PATIENCE) {
            let _ = kill_process(id, Signal::KILL);
        }
        thread::sleep(Duration::from_millis(20));
    }
}
