//! The maps of excluded and of steered Pods.

use std::collections::BTreeMap;
use std::path::Path;

use aya::maps::{Array, Map, MapData, MapError};
use topo_lb_common::exclusion::{Excluded, ExcludedKey, Levels, Treatment};
use topo_lb_common::maps;

use super::error::{ReadError, StoreError};
use super::pinned::{Hash, Raw, absent_is_fine, entries, failed, open};

/// The pinned maps, and their content.
pub struct ExcludedMap {
    cgroups: Hash<ExcludedKey, Excluded>,
    levels: Array<MapData, Raw<Levels>>,
    has: BTreeMap<u64, Treatment>,
    spans: Option<Levels>,
}

impl ExcludedMap {
    /// Opens the maps, and reads what an earlier agent left.
    ///
    /// # Errors
    /// They do not exist, or have another type.
    pub fn open(pin_dir: &Path) -> Result<Self, ReadError> {
        let cgroups: Hash<ExcludedKey, Excluded> = open(pin_dir, maps::EXCLUDED, Map::HashMap)?;
        let levels = open(pin_dir, maps::EXCLUSION, Map::Array)?;
        let mut has = BTreeMap::new();
        for pair in entries(&cgroups, maps::EXCLUDED) {
            let (ExcludedKey { cgroup }, value): (_, Excluded) = pair?;
            has.insert(cgroup, value.treatment());
        }
        Ok(Self { cgroups, levels, has, spans: None })
    }

    /// The cgroups that are in the map.
    #[must_use]
    pub const fn has(&self) -> &BTreeMap<u64, Treatment> {
        &self.has
    }

    /// Those of Pods that are treated so.
    pub fn of(&self, treatment: Treatment) -> impl Iterator<Item = u64> {
        self.has.iter().filter(move |(_, own)| **own == treatment).map(|(cgroup, _)| *cgroup)
    }

    /// Most Pods.
    #[must_use]
    pub const fn room(&self) -> usize {
        maps::MOST_EXCLUDED as usize
    }

    /// Writes exactly these cgroups, and the `levels` on which they are.
    ///
    /// # Errors
    /// The kernel refused some writes; all others are done.
    pub fn write(
        &mut self,
        wanted: &BTreeMap<u64, Excluded>,
        levels: Levels,
    ) -> Result<(), StoreError> {
        let (cgroups, has) = (&mut self.cgroups, &mut self.has);
        let surplus: Vec<u64> =
            has.keys().filter(|cgroup| !wanted.contains_key(cgroup)).copied().collect();
        // Before adding: new entries may need the room.
        let removed = each("remove", surplus, |cgroup| {
            absent_is_fine(cgroups.remove(&Raw(ExcludedKey { cgroup })))?;
            has.remove(&cgroup);
            Ok(())
        });
        let is_new =
            |(cgroup, value): &(&u64, &Excluded)| has.get(cgroup) != Some(&value.treatment());
        let new: Vec<u64> = wanted.iter().filter(is_new).map(|(cgroup, _)| *cgroup).collect();
        let added = each("write", new, |cgroup| {
            let value = wanted[&cgroup];
            cgroups.insert(Raw(ExcludedKey { cgroup }), Raw(value), 0)?;
            has.insert(cgroup, value.treatment());
            Ok(())
        });
        if self.spans != Some(levels) {
            self.levels.set(0, Raw(levels), 0).map_err(failed(maps::EXCLUSION, "write"))?;
            self.spans = Some(levels);
        }
        removed.and(added)
    }
}

/// Calls `act` for each cgroup. The error names all that failed, and the first's reason.
fn each(
    action: &'static str,
    cgroups: Vec<u64>,
    mut act: impl FnMut(u64) -> Result<(), MapError>,
) -> Result<(), StoreError> {
    /// Most cgroups that an error names.
    const NAMED: usize = 8;
    let mut first = None;
    let mut refused = Vec::new();
    for cgroup in cgroups {
        if let Err(error) = act(cgroup) {
            first.get_or_insert(error);
            refused.push(cgroup);
        }
    }
    let Some(error) = first else { return Ok(()) };
    let mut names: Vec<String> = refused.iter().take(NAMED).map(u64::to_string).collect();
    if refused.len() > NAMED {
        names.push(format!("{} more", refused.len() - NAMED));
    }
    let mut error = failed(maps::EXCLUDED, action)(error);
    if let StoreError::Map { reason, .. } = &mut error {
        *reason = format!("cgroups {}: {reason}", names.join(", "));
    }
    Err(error)
}

#[cfg(test)]
mod tests {
    use std::io;

    use aya::sys::SyscallError;

    use super::*;

    fn refusal(errno: i32) -> MapError {
        let io_error = io::Error::from_raw_os_error(errno);
        MapError::SyscallError(SyscallError { call: "bpf_map_update_elem", io_error })
    }

    #[test]
    fn a_cgroup_that_is_refused_keeps_no_other_out() {
        let mut done = Vec::new();
        let result = each("write", (1..=5).collect(), |cgroup| match cgroup {
            2 => Err(refusal(libc::ENOMEM)),
            4 => Err(refusal(libc::E2BIG)),
            _ => {
                done.push(cgroup);
                Ok(())
            }
        });
        assert_eq!(done, [1, 3, 5]);
        let error = result.expect_err("two are refused");
        assert!(error.may_pass(), "not the first error: {error}");
        let text = error.to_string();
        assert!(text.contains("cannot write: cgroups 2, 4: "), "{text}");
        assert!(text.contains("(os error 12)"), "{text}");
    }

    #[test]
    fn a_sentence_names_some_of_many() {
        let refuse = |_| Err(refusal(libc::ENOMEM));
        let text = each("write", (1..=100).collect(), refuse).expect_err("all").to_string();
        assert!(text.contains("cgroups 1, 2, 3, 4, 5, 6, 7, 8, 92 more: "), "{text}");
        assert!(each("write", Vec::new(), refuse).is_ok());
    }
}
