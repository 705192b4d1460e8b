//! Images, as the Open Container Initiative specifies them (image-spec 1.1). An archive of an image
//! layout takes `tar`, `gzip` and `sha256sum` to write, and neither a daemon nor root. `skopeo` and
//! `ctr images import` read it, and so do Podman and Docker from 25 on.

use std::path::Path;

use anyhow::{Context as _, Result};
use fs_err as fs;
use serde_json::{Value, json};

use crate::archive::{digest, gzip, tar};
use crate::workspace::Workspace;

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// The name of this machine's architecture (Go's GOARCH).
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

/// What an archive says about its image.
#[derive(Debug)]
pub(crate) struct Image<'a> {
    /// Its names, with registries and tags: kubelets find no image by a shorter name.
    pub(crate) names: &'a [&'a str],
    /// The program; empty if a container names it.
    pub(crate) entrypoint: &'a [&'a str],
    /// The arguments, unless a container names others.
    pub(crate) arguments: &'a [&'a str],
    /// Its labels.
    pub(crate) labels: &'a [(&'a str, &'a str)],
}

impl Image<'_> {
    /// Writes the archive of an image that has, for each architecture, the files of a folder as its
    /// only layer. The same files give the same archive. Returns the digest of the index, by which a
    /// registry knows the image.
    pub(crate) fn write(
        &self,
        workspace: &Workspace,
        contents: &[(&str, &Path)],
        archive: &Path,
    ) -> Result<String> {
        let folder = tempfile::tempdir_in(archive.parent().unwrap_or(archive))?;
        let blobs = Blobs(&folder.path().join("blobs/sha256"));
        fs::create_dir_all(blobs.0)?;
        let mut manifests = Vec::new();
        for (architecture, content) in contents {
            let layer = folder.path().join(format!("layer-{architecture}.tar"));
            tar(workspace, content, &["."], 0, &layer)?;
            let config = self.config(architecture, &digest(&layer)?).to_string();
            gzip(workspace, &layer)?;
            let manifest = json!({
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": blobs.add(CONFIG, config)?,
                "layers": [blobs.take(LAYER, &layer.with_extension("tar.gz"))?],
            });
            let mut manifest = blobs.add(MANIFEST, manifest.to_string())?;
            manifest["platform"] = json!({ "architecture": architecture, "os": "linux" });
            manifests.push(manifest);
        }
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests });
        let index = blobs.add(INDEX, index.to_string())?;
        let named = self.names.iter().map(|name| {
            let mut index = index.clone();
            // containerd reads the first one, everybody else the second one.
            index["annotations"] = json!({
                "io.containerd.image.name": name,
                "org.opencontainers.image.ref.name": name,
            });
            index
        });
        let layout = json!({
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": named.collect::<Vec<_>>(),
        });
        fs::write(folder.path().join("index.json"), layout.to_string())?;
        fs::write(folder.path().join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
        let parts = ["oci-layout", "index.json", "blobs"];
        tar(workspace, folder.path(), &parts, 0, archive)?;
        Ok(index["digest"].as_str().unwrap_or_default().to_owned())
    }

    /// The image's configuration; `layer` is the SHA-256 of its uncompressed layer, in hexadecimal.
    fn config(&self, architecture: &str, layer: &str) -> Value {
        let path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
        let labels: serde_json::Map<_, _> =
            self.labels.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        json!({
            "architecture": architecture,
            "os": "linux",
            "config": {
                "Entrypoint": self.entrypoint,
                "Cmd": self.arguments,
                "Env": [path],
                "Labels": labels,
            },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer}")] },
        })
    }
}

/// The folder of a layout whose files are named by their digests.
struct Blobs<'a>(&'a Path);

impl Blobs<'_> {
    /// Adds a text. Returns its descriptor.
    fn add(&self, kind: &str, text: String) -> Result<Value> {
        let file = self.0.join("new");
        fs::write(&file, text)?;
        self.take(kind, &file)
    }

    /// Moves a file into the folder. Returns its descriptor.
    fn take(&self, kind: &str, file: &Path) -> Result<Value> {
        let (sum, size) = (digest(file)?, fs::metadata(file)?.len());
        fs::rename(file, self.0.join(&sum)).context("cannot keep a blob")?;
        Ok(json!({ "mediaType": kind, "digest": format!("sha256:{sum}"), "size": size }))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::process::output_of;

    #[test]
    fn an_archive_leads_from_its_name_to_the_layer_of_each_architecture() {
        let (workspace, folder) = (Workspace::find().unwrap(), tempfile::tempdir().unwrap());
        let content = folder.path().join("content");
        fs::create_dir_all(&content).unwrap();
        fs::write(content.join("program"), "it").unwrap();
        let image = Image {
            names: &["example.com/it:1", "example.com/it:2"],
            entrypoint: &["/program"],
            arguments: &["run"],
            labels: &[("of", "a test")],
        };
        let write = |name: &str| {
            let archive = folder.path().join(name);
            let contents = [("amd64", &*content), ("arm64", &*content)];
            (image.write(&workspace, &contents, &archive).unwrap(), archive)
        };
        let (index, archive) = write("one.tar");
        assert_eq!(digest(&archive).unwrap(), digest(&write("two.tar").1).unwrap());

        let unpack = |file: &str| {
            let mut tar = Command::new("tar");
            let said = output_of(tar.args(["-xOf"]).arg(&archive).arg(file)).unwrap();
            serde_json::from_str::<Value>(&said).unwrap()
        };
        let follow = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().unwrap();
            unpack(&digest.replace("sha256:", "blobs/sha256/"))
        };
        let layout = unpack("index.json");
        for (manifest, name) in layout["manifests"].as_array().unwrap().iter().zip(image.names) {
            assert_eq!(manifest["annotations"]["org.opencontainers.image.ref.name"], *name);
            assert_eq!(manifest["digest"], index);
        }
        let manifests = &follow(&layout["manifests"][1])["manifests"];
        for (at, architecture) in ["amd64", "arm64"].into_iter().enumerate() {
            assert_eq!(manifests[at]["platform"]["architecture"], architecture);
            let config = follow(&follow(&manifests[at])["config"]);
            assert_eq!(config["architecture"], architecture);
            assert_eq!(config["config"]["Entrypoint"], json!(["/program"]));
            assert_eq!(config["config"]["Labels"]["of"], "a test");
        }
    }
}
