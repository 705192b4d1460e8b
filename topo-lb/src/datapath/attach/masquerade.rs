//! Who gives connections from outside to endpoints of other nodes an address of this node as their
//! source: the programs where one device leads to all of them, otherwise the kernel, by the masquerade
//! table.

use std::io;
use std::path::Path;

use topo_lb_common::maps as names;
use tracing::{info, warn};

use super::mark::Mark;
use super::repair::Repairs;
use crate::datapath::Datapath;
use crate::datapath::host::source_nat;
use crate::datapath::maps::{connections, snat};
use crate::datapath::masquerade;
use crate::device::SoleUplink;

/// Who does it.
#[derive(Debug, Default)]
pub(crate) enum SourceNat {
    /// Nobody: no device for clients outside was found yet.
    #[default]
    Nobody,
    /// The programs, with the addresses of this device.
    Programs(SoleUplink),
    /// The kernel. It stays so while this process runs, as connections need its table.
    Kernel,
}

impl Datapath {
    /// Leaves it to the programs if only `uplink` leads to other nodes, or else to the kernel. An error
    /// says what else leads to them.
    pub fn choose_source(&mut self, uplink: Result<SoleUplink, String>) {
        if self.masquerade.is_none() || matches!(self.source, SourceNat::Kernel) {
            return;
        }
        let uplink = uplink.and_then(|uplink| match &self.source {
            SourceNat::Programs(before) if *before == uplink => Ok(None),
            _ => self.leave_to_programs(uplink).map(Some),
        });
        match uplink {
            Ok(None) => {}
            Ok(Some(uplink)) => {
                info!(
                    device = uplink.device.name, addresses = ?uplink.addresses,
                    "connections from outside to endpoints of other nodes get their source by tc"
                );
                self.source = SourceNat::Programs(uplink);
            }
            Err(reason) => {
                info!(
                    "connections from outside to endpoints of other nodes get their source by the \
                     nftables table inet topo-lb: {reason}"
                );
                self.source = SourceNat::Kernel;
                // Before connections need it. The next inspection reports a failure.
                self.repair_masquerade(&mut Repairs::default());
                if let Err(error) = self.write_snat(None) {
                    warn!("{error}; the programs go on with it");
                }
            }
        }
    }

    fn leave_to_programs(&mut self, uplink: SoleUplink) -> Result<SoleUplink, String> {
        if let Some(hindrance) = source_nat::hindrance() {
            return Err(hindrance);
        }
        // New connections need no table from here on.
        self.write_snat(Some(&uplink))?;
        if Mark::of_masquerade(&self.options.pin_dir).is_set() {
            match connections::any_masqueraded(|name| self.ebpf.map(name)) {
                Ok(false) => self.remove_masquerade(),
                Ok(true) => return Err("connections need it that an earlier agent made".to_owned()),
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(uplink)
    }

    fn write_snat(&mut self, uplink: Option<&SoleUplink>) -> Result<(), String> {
        let Some(map) = self.ebpf.map_mut(names::SNAT) else { return Ok(()) };
        snat::write(map, uplink).map_err(|error| error.to_string())
    }

    /// Writes the masquerade table if it is missing or changed, unless the programs do without.
    pub fn repair_masquerade(&mut self, repairs: &mut Repairs) {
        match &self.source {
            SourceNat::Nobody => return,
            SourceNat::Programs(_) => match source_nat::hindrance() {
                Some(hindrance) => return self.choose_source(Err(hindrance)),
                None => return,
            },
            SourceNat::Kernel => {}
        }
        let Some(masquerade) = &mut self.masquerade else { return };
        let mark = Mark::of_masquerade(&self.options.pin_dir);
        match mark.set().map(|()| masquerade.keep()) {
            Ok(Ok(false)) => {}
            Ok(Ok(true)) => {
                repairs.done.push("the nftables table inet topo-lb was removed or changed".into());
            }
            Ok(Err(error)) => repairs.outside = Some(error.to_string()),
            Err(error) => {
                repairs.outside = Some(format!(
                    "{} cannot be made, so the nftables table inet topo-lb is not written: \
                     {error}",
                    mark.path().display()
                ));
            }
        }
    }

    /// Removes the masquerade table of an earlier agent. Call it when none of its programs is attached.
    pub fn remove_masquerade(&self) {
        if let Err(error) = remove(&self.options.pin_dir) {
            warn!("the nftables table inet topo-lb cannot be removed: {error}");
        }
    }
}

/// Removes the table and its mark. Returns whether there was a table.
///
/// # Errors
/// The kernel does not remove one of them; the next call tries again.
pub(crate) fn remove(pin_dir: &Path) -> io::Result<bool> {
    let mark = Mark::of_masquerade(pin_dir);
    if !mark.is_set() {
        return Ok(false);
    }
    let was_there = masquerade::remove()?;
    mark.remove()?;
    Ok(was_there)
}
