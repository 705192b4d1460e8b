//! What decides whether the kernels' verifiers accept the programs, as one digest. The repository keeps the
//! digest of what `--bless` has seen accepted; with the same digest, a verifier has nothing new to say.

use std::path::PathBuf;

use anyhow::Result;
use fs_err as fs;
use walkdir::WalkDir;

use super::debian_kernel::DebianKernel;
use crate::archive::digest;
use crate::workspace::Workspace;

/// Besides the object and the kernels: what sets the programs' constants and the sizes of maps, and the suite.
const SOURCES: [&str; 6] = [
    "topo-lb/kernel/src/datapath/host",
    "topo-lb/kernel/src/datapath/programs",
    "tests/src/packets.rs",
    "tests/src/verifier.rs",
    "tests/src/verifier",
    "tests/tests/datapath/verifier.rs",
];

/// SHA-256 of all of it, in hexadecimal. It is the same wherever the repository is checked out.
///
/// # Errors
/// A file cannot be read, or the list of them cannot be written.
pub(super) fn of(workspace: &Workspace, kernels: &[DebianKernel]) -> Result<String> {
    let mut list = format!("object {}\n", digest(&workspace.object())?);
    for kernel in kernels {
        list.push_str(&format!("kernel {}\n", kernel.release));
    }
    for source in SOURCES {
        for entry in WalkDir::new(workspace.root.join(source)).sort_by_file_name() {
            let entry = entry?;
            if entry.file_type().is_file() {
                let name = entry.path().strip_prefix(&workspace.root)?.display();
                list.push_str(&format!("{name} {}\n", digest(entry.path())?));
            }
        }
    }
    let path = path(workspace);
    fs::create_dir_all(path.parent().unwrap_or(&path))?;
    fs::write(&path, list)?;
    digest(&path)
}

/// The list that the last digest is of: two of them tell why the digests differ.
fn path(workspace: &Workspace) -> PathBuf {
    workspace.target.join("virtual-machine/verified-inputs")
}
