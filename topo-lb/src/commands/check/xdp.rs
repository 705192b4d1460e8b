//! Whether the fast path of XDP would pay on this node.

use super::Finding;
use topo_lb_kernel::device::{self, Pattern};

const XDP: &str = "XDP";

/// Looks at the uplinks that the agent would choose. `patterns`: of `--external-devices`. `None`: there are none.
pub(super) fn finding(patterns: &[Pattern]) -> Option<Finding> {
    let uplinks = device::uplinks(patterns).ok()?.served;
    if uplinks.is_empty() {
        return None;
    }
    let uplink = match device::sole_uplink(&uplinks, &[]) {
        Ok(Ok(sole)) => sole.device,
        Ok(Err(reason)) => {
            let sentence = format!(
                "--xdp auto would carry nothing: the kernel gives connections to other nodes their source, \
                 as {reason}"
            );
            return Some(Finding::ok(XDP, sentence));
        }
        Err(_) => return None,
    };
    let name = &uplink.name;
    let sentence = match device::driver(&uplink) {
        Some(driver) if device::may_run_xdp(&driver) => format!(
            "--xdp auto can carry established connections from outside to endpoints of other nodes at {name}, \
             whose driver is {driver}, while nothing leaves connections to the kernel"
        ),
        driver => format!(
            "--xdp auto may carry nothing: the driver of {name} ({}) is none that is known to run programs",
            driver.as_deref().unwrap_or("unknown")
        ),
    };
    Some(Finding::ok(XDP, sentence))
}
