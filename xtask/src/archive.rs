//! Archives whose bytes follow from the files in them alone: names in order, one owner, one time.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::process::{output_of, run_logged};
use crate::workspace::Workspace;

/// Packs these files and folders of a folder. All get this time (seconds since 1970), and permissions
/// that differ only in whether a file can be executed.
pub(crate) fn tar(
    workspace: &Workspace,
    folder: &Path,
    names: &[&str],
    time: u64,
    archive: &Path,
) -> Result<()> {
    let mut pack = workspace.command("tar");
    pack.args(["--create", "--format=gnu", "--sort=name", "--mode=u=rwX,go=rX"]);
    pack.args(["--numeric-owner", "--owner=0", "--group=0", &format!("--mtime=@{time}"), "--file"]);
    pack.arg(archive).arg("--directory").arg(folder).args(names);
    run_logged(format!("packing {}", name(archive)), &mut pack, &workspace.log("archive"))
}

/// Compresses a file in its place; its name gets the end `.gz`.
pub(crate) fn gzip(workspace: &Workspace, file: &Path) -> Result<()> {
    let mut command = workspace.command("gzip");
    // Neither name nor time in the header.
    command.args(["--no-name", "--best", "--force"]).arg(file);
    run_logged(format!("compressing {}", name(file)), &mut command, &workspace.log("archive"))
}

/// The SHA-256 of a file, in hexadecimal.
pub(crate) fn digest(file: &Path) -> Result<String> {
    let said = output_of(std::process::Command::new("sha256sum").arg(file));
    // A backslash before the sum: the name has characters that were escaped.
    let sum = said.as_deref().and_then(|line| line.split_whitespace().next());
    let sum = sum.with_context(|| format!("`sha256sum {}` failed", file.display()))?;
    Ok(sum.trim_start_matches('\\').to_owned())
}

fn name(path: &Path) -> std::borrow::Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use fs_err as fs;

    use super::*;

    /// Packs two files, made in this order with these permissions.
    fn packed(order: [&str; 2], mode: u32) -> String {
        let (workspace, folder) = (Workspace::find().unwrap(), tempfile::tempdir().unwrap());
        let content = folder.path().join("content");
        fs::create_dir_all(content.join("below")).unwrap();
        for name in order {
            let file = content.join("below").join(name);
            fs::write(&file, name).unwrap();
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        }
        let archive = folder.path().join("it.tar");
        tar(&workspace, &content, &["below"], 7, &archive).unwrap();
        gzip(&workspace, &archive).unwrap();
        digest(&folder.path().join("it.tar.gz")).unwrap()
    }

    #[test]
    fn the_same_files_give_the_same_archive() {
        let one = packed(["a", "b"], 0o644);
        assert_eq!(one, packed(["b", "a"], 0o600), "order, time and umask do not matter");
        assert_ne!(one, packed(["a", "b"], 0o755), "a program differs from a text");
        assert_eq!(one.len(), 64);
    }
}
