//! Marks of the layout of the pinned maps: an empty directory each, beside the pins.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::datapath::error::LoadError;

/// Number of the layout of all maps. A map whose meaning changes gets another shape or another
/// name, and this number is raised, so that an older agent does not touch the maps.
pub(super) const LAYOUT: u32 = 1;

/// Prefix of the empty directory that names the layout of the pins.
const MARK: &str = "layout-";

/// The highest marked layout, if any.
pub(super) fn marked(pin_dir: &Path) -> Option<u32> {
    marks(pin_dir).into_iter().map(|(layout, _)| layout).max()
}

/// All marks, by layout.
pub(super) fn marks(pin_dir: &Path) -> Vec<(u32, PathBuf)> {
    let entries = fs::read_dir(pin_dir).into_iter().flatten().flatten();
    let parse = |entry: fs::DirEntry| {
        let layout = entry.file_name().to_str()?.strip_prefix(MARK)?.parse().ok()?;
        Some((layout, entry.path()))
    };
    entries.filter_map(parse).collect()
}

/// Marks the pins with this layout. Returns the mark's path if it is new.
///
/// # Errors
/// The directory cannot be created.
pub(crate) fn mark(pin_dir: &Path) -> Result<Option<PathBuf>, LoadError> {
    let path = pin_dir.join(format!("{MARK}{LAYOUT}"));
    match fs::create_dir(&path) {
        Ok(()) => Ok(Some(path)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(LoadError::PinDirectory(path, error)),
    }
}
