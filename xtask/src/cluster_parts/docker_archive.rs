//! Writes an image of one layer as an archive, in the format of `docker save`: `ctr images import`
//! reads it, and so do Podman and Docker. It takes `tar` and `sha256sum`, and no root.

use fs_err as fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::oci::architecture;
use crate::process::{output_of, run_logged};
use crate::workspace::Workspace;

/// What an archive says about its image.
#[derive(Debug)]
pub(super) struct Image<'a> {
    /// Its names, with tags.
    pub(super) names: &'a [&'a str],
    /// The program; empty if a container names it.
    pub(super) entrypoint: &'a [&'a str],
    /// The arguments, unless a container names others.
    pub(super) arguments: &'a [&'a str],
}

impl Image<'_> {
    /// Writes the archive of an image that has the files of `content`. The same files give the same
    /// layer. Writes files of the same names beside the archive, and overwrites them.
    pub(super) fn write(
        &self,
        workspace: &Workspace,
        content: &Path,
        archive: &Path,
    ) -> Result<()> {
        let folder = archive.parent().unwrap_or(archive);
        let layer = folder.join("layer.tar");
        let mut pack = workspace.command("tar");
        pack.args(["--create", "--sort=name", "--mtime=@0", "--numeric-owner", "--owner=0"]);
        pack.args(["--group=0", "--file"]).arg(&layer).arg("--directory").arg(content).arg(".");
        let log = workspace.log("cluster-images-tar");
        run_logged(format!("layer of {}", self.names[0]), &mut pack, &log)?;

        let config = self.config(&digest(workspace, &layer)?);
        fs::write(folder.join("config.json"), config.to_string())?;
        let manifest =
            json!([{ "Config": "config.json", "RepoTags": self.names, "Layers": ["layer.tar"] }]);
        fs::write(folder.join("manifest.json"), manifest.to_string())?;
        let mut pack = workspace.command("tar");
        pack.arg("--create").arg("--file").arg(archive).arg("--directory").arg(folder);
        pack.args(["manifest.json", "config.json", "layer.tar"]);
        run_logged(format!("archive of {}", self.names[0]), &mut pack, &log)
    }

    /// The image's configuration; `layer` is the SHA-256 of its only layer, in hexadecimal.
    fn config(&self, layer: &str) -> serde_json::Value {
        let path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
        json!({
            "architecture": architecture(),
            "os": "linux",
            "config": { "Entrypoint": self.entrypoint, "Cmd": self.arguments, "Env": [path] },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer}")] },
        })
    }
}

/// The SHA-256 of a file, in hexadecimal.
fn digest(workspace: &Workspace, file: &Path) -> Result<String> {
    let said = output_of(workspace.command("sha256sum").arg(file));
    let sum = said.as_deref().and_then(|line| line.split_whitespace().next());
    Ok(sum.with_context(|| format!("`sha256sum {}` failed", file.display()))?.to_owned())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn an_archive_names_its_image_and_the_digest_of_its_layer() {
        let (workspace, folder) = (Workspace::find().unwrap(), tempfile::tempdir().unwrap());
        let (content, archive) = (folder.path().join("content"), folder.path().join("image.tar"));
        fs::create_dir_all(&content).unwrap();
        fs::write(content.join("program"), "it").unwrap();
        let image =
            Image { names: &["example.com/it:1"], entrypoint: &["/program"], arguments: &["run"] };
        image.write(&workspace, &content, &archive).unwrap();

        let unpack = |file: &str| {
            let mut tar = Command::new("tar");
            let said = output_of(tar.args(["-xOf"]).arg(&archive).arg(file)).unwrap();
            serde_json::from_str::<serde_json::Value>(&said).unwrap()
        };
        let manifest = &unpack("manifest.json")[0];
        assert_eq!(manifest["RepoTags"], json!(["example.com/it:1"]));
        let config = unpack(manifest["Config"].as_str().unwrap());
        assert_eq!(config["config"]["Entrypoint"], json!(["/program"]));
        assert_eq!(config["config"]["Cmd"], json!(["run"]));
        let layer = digest(&workspace, &folder.path().join("layer.tar")).unwrap();
        assert_eq!(layer.len(), 64);
        assert_eq!(config["rootfs"]["diff_ids"], json!([format!("sha256:{layer}")]));
    }
}
