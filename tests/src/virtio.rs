//! The cards of a guest: two virtio_net devices that its emulator connects to each other.

use anyhow::{Context as _, Result};
use fs_err as fs;

use crate::netns::batch;
use crate::scene::{HERE, Scene};
use crate::wait::{PATIENCE, until};
use crate::wiring::{mac_of_uplink, uplink};

/// The number of the agent's node, and those of the others.
const NUMBER: u8 = 1;
const OTHERS: [u8; 3] = [2, 3, 4];

/// The Ethernet address of the other card, as `cargo xtask test --kernel` gives it.
const FAR_MAC: &str = "02:54:4c:04:01:00";

/// Replaces the cable between the agent's node and the fabric by the two cards, with the names that its ends had. The
/// kernel gives the cards back when it removes the namespaces.
///
/// # Errors
/// This network namespace has no such cards.
pub fn connect(scene: &Scene<'_>) -> Result<()> {
    let (near, far) = (card(&mac_of_uplink(NUMBER))?, card(FAR_MAC)?);
    let (node, fabric) = (scene.cluster.node_netns(HERE)?, scene.cluster.fabric());
    node.ip(&["link delete eth0".to_owned()])?;
    batch(&[
        format!("link set {near} name eth0 netns {}", node.path().display()),
        format!("link set {far} name node{NUMBER} netns {}", fabric.path().display()),
    ])?;
    fabric.ip(&[format!("link set node{NUMBER} master br0 up")])?;
    node.ip(&uplink(NUMBER, OTHERS))
}

/// The name of the card with this address. After another test the kernel gives it back a little later.
fn card(mac: &str) -> Result<String> {
    let mut found = None;
    until(&format!("the virtio_net device with the address {mac}"), PATIENCE, || {
        found = find(mac)?;
        Ok(if found.is_some() { Ok(()) } else { Err("no such device") })
    })?;
    found.context("it was found")
}

fn find(mac: &str) -> Result<Option<String>> {
    for entry in fs::read_dir("/sys/class/net")? {
        let place = entry?.path();
        let driver = fs::read_link(place.join("device/driver")).unwrap_or_default();
        // A device may go meanwhile.
        let address = fs::read_to_string(place.join("address")).unwrap_or_default();
        if driver.ends_with("virtio_net") && address.trim() == mac {
            return Ok(place.file_name().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    Ok(None)
}
