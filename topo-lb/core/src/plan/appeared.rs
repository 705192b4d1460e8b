//! ClusterIPs that UDP clients can dial from now on: sockets that connected before reach nobody.

use super::finished::Plan;
use super::installed::Installed;
use super::step::Step;
use crate::cluster::{Frontend, Protocol};

/// The UDP frontends that `plan` gives endpoints, and that had none before it. `installed` is the state
/// before the plan.
pub fn appeared<'a>(
    plan: &'a Plan,
    installed: &'a Installed,
) -> impl Iterator<Item = Frontend> + 'a {
    plan.steps.iter().filter_map(|step| match step {
        Step::Publish { frontend, entry, .. } => {
            let served = installed.get(frontend).is_some_and(|before| before.entry.count > 0);
            (is_udp(frontend) && entry.count > 0 && !served).then_some(*frontend)
        }
        _ => None,
    })
}

/// The UDP frontends with endpoints.
pub fn all(installed: &Installed) -> impl Iterator<Item = Frontend> + '_ {
    let served =
        installed.placed().filter(|(frontend, placed)| is_udp(frontend) && placed.entry.count > 0);
    served.map(|(frontend, _)| *frontend)
}

fn is_udp(frontend: &Frontend) -> bool {
    frontend.protocol == Protocol::Udp
}
