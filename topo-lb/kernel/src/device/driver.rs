//! What drives a device, and whether that runs programs of XDP itself.

use std::fs::read_link;
use std::path::Path;

use super::Device;
use super::link::links;

/// Some of those that do so in Linux 6.12 (`ndo_bpf`), as `device/driver` names them. One that is missing here is tried,
/// too: the list is only for advice.
const WITH_XDP: &str = "am65-cpsw-nuss atlantic bnxt_en cpsw ena fec fsl_dpaa2_eth fsl_enetc gve i40e ice igb igc \
                        ionic ixgbe ixgbevf mana mlx4_en mlx5_core mvneta mvpp2 nfp nicvf qede rvu_nicpf rvu_nicvf \
                        sfc tsnep virtio_net vmxnet3";

/// Why the program of XDP does not belong on a device, although its driver may take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// The reason.
    pub why: &'static str,
    /// Nothing could be carried there.
    pub always: bool,
}

/// Whether a device is no place for the program of XDP.
#[must_use]
pub fn unfit_for_xdp(device: &Device) -> Option<Unfit> {
    let (why, always) = match driver(device)?.as_str() {
        // `xdp_master_redirect`, net/core/filter.c.
        "bond" => ("a program on a bond sees the bond's ports and not the bond", true),
        // `veth_xdp_xmit`, drivers/net/veth.c.
        "veth" => (
            "it is a veth device, which loses what a program sends back if its other end has no program or GRO",
            false,
        ),
        // `netvsc_vf_setxdp`, drivers/net/hyperv/netvsc_bpf.c.
        "hv_netvsc" => (
            "Hyper-V's driver gives the program to the accelerated function below it, where it sees another device",
            false,
        ),
        _ => return None,
    };
    Some(Unfit { why, always })
}

/// What drives a device: its kind, or of hardware, which has none, its driver. The kind is asked first, as `/sys` may
/// be of another network namespace. `None`: nobody says.
#[must_use]
pub fn driver(device: &Device) -> Option<String> {
    let path = Path::new("/sys/class/net").join(&device.name).join("device/driver");
    let hardware = || Some(read_link(path).ok()?.file_name()?.to_string_lossy().into_owned());
    let kind = || links().ok()?.into_iter().find(|link| link.device == *device)?.kind;
    kind().or_else(hardware)
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
