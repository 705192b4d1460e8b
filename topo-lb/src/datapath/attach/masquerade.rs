//! Keeps the masquerade table while clients outside of this node are served, and removes it after.

use std::io;
use std::path::Path;

use tracing::warn;

use super::mark::Mark;
use super::repair::Repairs;
use crate::datapath::Datapath;
use crate::datapath::masquerade;

impl Datapath {
    /// Writes the masquerade table if it is missing or changed.
    pub fn repair_masquerade(&mut self, repairs: &mut Repairs) {
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
