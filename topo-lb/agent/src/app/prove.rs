//! Runs the self-probe in the background.

use std::path::Path;

use tokio::task::JoinHandle;

use crate::readiness::SelfProbe;
use crate::telemetry::Telemetry;
use topo_lb_kernel::datapath::inspect::self_probe::{self, ProbeError};

/// Tests whether the hooks work, for readiness; takes some tens of milliseconds on a thread of its
/// own. The caller logs an error.
pub(super) fn prove(telemetry: &Telemetry, cgroup_root: &Path) -> JoinHandle<Option<ProbeError>> {
    let (say, cgroup_root) = (telemetry.prover(), cgroup_root.to_owned());
    tokio::task::spawn_blocking(move || match self_probe::run(&cgroup_root) {
        Ok(()) => {
            say(SelfProbe::Passed);
            None
        }
        Err(error) => {
            say(SelfProbe::Failed(error.to_string()));
            Some(error)
        }
    })
}
