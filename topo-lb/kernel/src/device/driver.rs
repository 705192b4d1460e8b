//! What drives a device, and whether that runs programs of XDP itself.

use std::fs::read_link;
use std::path::Path;

use super::Device;
use super::link::links;

/// Drivers that do so in Linux 6.12 (`ndo_bpf`) and in which a program sees the device that it is on: not a bond,
/// where it sees the ports. One that is missing here is tried, too: the list is only for advice.
const WITH_XDP: &str = "atlantic bnxt_en cpsw dpaa2_eth ena fec fsl_enetc gve hv_netvsc i40e ice igb igc ixgbe \
                        ixgbevf mana mlx4_en mlx5_core mvneta mvpp2 nfp qede sfc stmmac thunder-nicvf tsnep veth \
                        virtio_net vmxnet3";

/// What drives a device: of hardware its driver, of others their kind. `None`: nobody says.
#[must_use]
pub fn driver(device: &Device) -> Option<String> {
    let path = Path::new("/sys/class/net").join(&device.name).join("device/driver");
    let hardware = || Some(read_link(path).ok()?.file_name()?.to_string_lossy().into_owned());
    let kind = || links().ok()?.into_iter().find(|link| link.device == *device)?.kind;
    hardware().or_else(kind)
}

/// Whether a driver is known to run programs of XDP.
#[must_use]
pub fn may_run_xdp(driver: &str) -> bool {
    WITH_XDP.split(' ').any(|known| known == driver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_drives_the_loopback_device_and_virtual_machines_have_xdp() {
        assert_eq!(driver(&Device { index: 1, name: "lo".to_owned() }), None);
        assert!(may_run_xdp("virtio_net") && !may_run_xdp("r8169") && !may_run_xdp("bond"));
    }
}
