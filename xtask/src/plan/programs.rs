//! Programs that the lab, the bench and the image call.

use super::draft::Draft;

impl Draft<'_> {
    pub(super) fn lab(&mut self) {
        self.program("ip", "iproute2", self.machine.ip);
        self.program("bpftool", "bpftool", self.machine.bpftool);
    }

    pub(super) fn peers(&mut self) {
        self.program("nft", "nftables", self.machine.nft);
    }

    pub(super) fn image(&mut self) {
        self.program("buildah", "buildah", self.machine.buildah);
    }
}
