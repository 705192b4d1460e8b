//! Whether clients outside come by devices on which programs can serve them.

use super::Finding;
use topo_lb_kernel::device::{self, Pattern};

/// The name of this check. The self-probe needs none of these devices.
pub(super) const DEVICES: &str = "devices";

/// Looks at those that the agent would choose. `patterns`: of `--external-devices`.
pub(super) fn finding(patterns: &[Pattern]) -> Finding {
    let uplinks = match device::uplinks(patterns) {
        Ok(uplinks) => uplinks,
        Err(error) => {
            let sentence = format!("the devices of this host cannot be listed: {error}");
            return Finding::failed(DEVICES, sentence, "run it as root on the node");
        }
    };
    if let Some(sentence) = device::unserved(&uplinks.unserved) {
        return Finding::failed(DEVICES, sentence, &device::remedy());
    }
    let names: Vec<_> = uplinks.served.into_iter().map(|device| device.name).collect();
    if names.is_empty() {
        return if patterns.is_empty() {
            Finding::limited(DEVICES, "no Ethernet device is one of clients outside")
                .advised("name them with --external-devices")
        } else {
            let named: Vec<_> = patterns.iter().map(ToString::to_string).collect();
            let named = named.join(",");
            let sentence = format!(
                "clients outside are not served, as no Ethernet device matches --external-devices {named}"
            );
            Finding::failed(DEVICES, sentence, "`ip -br link` shows the names of all")
        };
    }
    Finding::ok(DEVICES, format!("clients outside are served at {}", names.join(", ")))
}
