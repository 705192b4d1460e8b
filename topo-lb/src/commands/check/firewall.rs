//! Firewalls of the host that clients outside have to pass.

use super::Finding;
use topo_lb_kernel::nftables;

/// Which chains drop what is forwarded unless a rule accepts it: what clients outside send to Pods is forwarded. No
/// finding without such a chain, or where nobody can be asked. That a firewall drops is no fault, and its rules are not read.
pub(super) fn finding() -> Option<Finding> {
    let chains = nftables::chains_that_drop_forwarded().ok().filter(|it| !it.is_empty())?;
    let chains = chains.join(", ");
    let sentence = format!(
        "clients' packets to Pods are forwarded, and of those these chains of nftables drop what no rule accepts: {chains}"
    );
    Some(Finding::ok("firewall", sentence).advised(
        "if clients outside time out, see whether their rules accept what goes to Pods and comes from them: \
         docs/compatibility.md#firewalls",
    ))
}
