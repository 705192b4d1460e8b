//! Pictures for the documentation, which tests take while `cargo xtask pictures` runs them.

use std::env;
use std::path::PathBuf;

use anyhow::Result;
use fs_err as fs;

/// The folder of the pictures, if they are wanted.
#[must_use]
pub fn folder() -> Option<PathBuf> {
    env::var_os("TOPO_LB_WRITE_PICTURES").map(PathBuf::from)
}

/// Writes a picture, if pictures are wanted.
///
/// # Errors
/// It cannot be written.
pub fn keep(name: &str, picture: impl AsRef<[u8]>) -> Result<()> {
    if let Some(folder) = folder() {
        fs::write(folder.join(name), picture)?;
    }
    Ok(())
}
