//! Folders of programs that the environment names, instead of what xtask builds or downloads.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::workspace::path_from;

/// The folder that a variable names.
///
/// # Errors
/// It lacks one of these files.
pub(crate) fn folder(variable: &str, files: &[&str]) -> Result<Option<PathBuf>> {
    let Some(folder) = path_from(variable) else {
        return Ok(None);
    };
    complete(folder, variable, files).map(Some)
}

fn complete(folder: PathBuf, variable: &str, files: &[&str]) -> Result<PathBuf> {
    for file in files {
        ensure!(
            folder.join(file).is_file(),
            "there is no {file} in {}: name a folder that has {} in {variable}, or unset it",
            folder.display(),
            files.join(", "),
        );
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_folder_that_lacks_a_program_is_refused_by_name() {
        let temporary = tempfile::tempdir().unwrap();
        let complete = || complete(temporary.path().to_owned(), "FOLDER", &["etcd", "kubelet"]);
        fs::write(temporary.path().join("etcd"), "").unwrap();
        let error = complete().unwrap_err().to_string();
        assert!(error.contains("no kubelet") && error.contains("FOLDER"), "{error}");
        fs::write(temporary.path().join("kubelet"), "").unwrap();
        complete().unwrap();
    }
}
