//! Keeps the masquerade table while clients outside of this node are served, and removes it after.
//!
//! An empty directory beside the pins marks that there can be a table: elsewhere nothing is asked of
//! nftables, which would load kernel modules.

use std::fs;
use std::io;
use std::path::Path;

use tracing::warn;

use super::repair::Repairs;
use crate::datapath::Datapath;
use crate::datapath::masquerade;

const MARK: &str = "masquerade";

impl Datapath {
    /// Writes the masquerade table if it is missing or changed.
    pub fn repair_masquerade(&mut self, repairs: &mut Repairs) {
        let Some(masquerade) = &mut self.masquerade else { return };
        match mark(&self.options.pin_dir).map(|()| masquerade.keep()) {
            Ok(Ok(false)) => {}
            Ok(Ok(true)) => {
                repairs.done.push("the nftables table inet topo-lb was removed or changed".into());
            }
            Ok(Err(error)) => repairs.outside = Some(error.to_string()),
            Err(error) => {
                repairs.outside = Some(format!(
                    "{}/{MARK} cannot be made, so the nftables table inet topo-lb is not written: \
                     {error}",
                    self.options.pin_dir.display()
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

fn mark(pin_dir: &Path) -> io::Result<()> {
    match fs::create_dir(pin_dir.join(MARK)) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Removes the table and its mark. Returns whether there was a table.
///
/// # Errors
/// The kernel does not remove one of them; the next call tries again.
pub(crate) fn remove(pin_dir: &Path) -> io::Result<bool> {
    let mark = pin_dir.join(MARK);
    if !mark.exists() {
        return Ok(false);
    }
    let was_there = masquerade::remove()?;
    fs::remove_dir(mark)?;
    Ok(was_there)
}
