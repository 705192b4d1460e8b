//! Parts of images, as the Open Container Initiative specifies them.

use std::path::Path;

use anyhow::Result;
use fs_err as fs;

/// OCI's name of the architecture (Go's GOARCH).
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Copies a file; for a link, copies its target under the link's name.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().unwrap_or(to))?;
    fs::copy(from, to)?;
    Ok(())
}
