//! `cargo xtask release`: all files of a release, in one folder.

pub(crate) mod by_hand;
mod krew;
pub(crate) mod promises;
mod provenance;
mod sbom;
mod source;
pub(crate) mod written;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use fs_err as fs;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::architecture::Architecture;
use crate::archive::{digest, gzip, tar};
use crate::cluster_tools;
use crate::image::{self, VERSION, size};
use crate::install;
use crate::needs::Need;
use crate::oci::copy;
use crate::process::{caught, run_logged};
use crate::progress;
use crate::shipped;
use crate::workspace::{Workspace, find_program};
pub(crate) use source::Source;

/// Makes all files of a release: programs, the image, the chart, manifests, and what they are made of.
///
/// The same commit gives the same files, from any checkout, with the same compiler. The folder appears
/// whole, or not at all. docs/releases.md says what each file is for, and how to verify it.
#[derive(Debug, Default, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask release
  cargo xtask release --arch amd64 --allow-dirty     # one architecture, from what is not committed
  cargo xtask release --sign-key cosign.key && (cd dist && sha256sum --check SHA256SUMS)
  cargo xtask release --check                        # is every promise kept? as root, for hours
  cargo xtask release --check --json > check.json    # the same as JSON")]
pub(crate) struct Args {
    /// Only for this architecture (may be given more than once)
    #[arg(long, value_name = "ARCHITECTURE")]
    arch: Vec<Architecture>,
    /// The folder; one that is there is replaced
    #[arg(long, value_name = "FOLDER", default_value = "dist")]
    output: PathBuf,
    /// Sign the checksums by cosign with this key: a file, or what else cosign takes
    #[arg(long, value_name = "KEY", env = "COSIGN_KEY")]
    sign_key: Option<String>,
    /// Also release what is not committed; the provenance then names no commit
    #[arg(long)]
    allow_dirty: bool,
    /// Instead, check what a release of this commit promises, without a network: what can be read first, then
    /// two releases are compared, and one is installed on a real cluster. Lists what a maintainer does by hand
    #[arg(long, conflicts_with_all = ["arch", "output", "allow_dirty"])]
    pub(crate) check: bool,
    /// Also print what was checked as JSON, and nothing else, on standard output
    #[arg(long, requires = "check")]
    pub(crate) json: bool,
}

/// The overlays of deploy/ that become one file each.
const OVERLAYS: [&str; 4] = ["all", "cleanup", "kube-proxy-replacement", "opt-in"];

/// The list of the files' checksums, which a signature covers.
pub(crate) const SUMS: &str = "SHA256SUMS";

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    // First what takes no time, as it can fail.
    let cosign = find_program("cosign");
    ensure!(
        args.sign_key.is_none() || cosign.is_some(),
        "--sign-key needs cosign, which is not installed: https://docs.sigstore.dev/cosign"
    );
    let output = workspace.root.join(&args.output);
    replaceable(&output)?;
    let source = Source::find(workspace)?;
    ensure!(
        args.allow_dirty || source.commit.is_some(),
        "a release is made from a commit: {}; commit it, or add --allow-dirty",
        source.why_no_commit
    );
    install::ready(workspace, &[Need::ClusterTools].into())?;
    let programs = shipped::build(workspace, &args.arch)?;

    // Beside its place: renaming takes one file system. Dropping it removes it.
    let parent = output.parent().context("the file system's root is no place for a release")?;
    fs::create_dir_all(parent)?;
    sweep(parent)?;
    let prefix = format!("{DRAFT}{}-", std::process::id());
    let draft = tempfile::Builder::new().prefix(&prefix).tempdir_in(parent)?;
    let release = Release { workspace, folder: draft.path().join("dist"), time: source.time };
    fs::create_dir(&release.folder)?;
    for (architecture, program) in &programs {
        release.program(draft.path(), *architecture, program, &source)?;
    }
    image::of_shipped(workspace, &programs, &release.place(&format!("topo-lb-{VERSION}-oci.tar")))?;
    release.deployment(draft.path())?;
    krew::write(&release, &programs)?;
    provenance::write(&release, &source)?;
    release.sums()?;
    match (&args.sign_key, cosign) {
        (Some(key), Some(cosign)) => release.sign(&cosign, key)?,
        _ => progress::note("not signed: --sign-key names no key"),
    }
    ensure!(caught() == 0, "interrupted");
    publish(&release.folder, &output)?;
    for file in files(&output)? {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        progress::note(&format!("{:>9}  {name}", size(&file)?));
    }
    progress::note(&output.display().to_string());
    Ok(())
}

/// A release during its making.
struct Release<'a> {
    workspace: &'a Workspace,
    folder: PathBuf,
    /// The time of the files in archives: seconds since 1970.
    time: u64,
}

impl Release<'_> {
    fn place(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A compressed archive of these entries of a folder.
    fn archive(&self, folder: &Path, names: &[&str], name: &str) -> Result<()> {
        let archive = self.place(name);
        tar(self.workspace, folder, names, self.time, &archive)?;
        gzip(self.workspace, &archive)?;
        // Helm knows a chart by the name without `.tar`.
        let end = if name.ends_with(".tar") { "tar.gz" } else { "tgz" };
        Ok(fs::rename(format!("{}.gz", archive.display()), archive.with_extension(end))?)
    }

    /// The archive of a program with its licences, which `kubectl topo` is, too; and what it is made of.
    fn program(
        &self,
        room: &Path,
        architecture: Architecture,
        program: &Path,
        source: &Source,
    ) -> Result<()> {
        let name = archive_name(architecture);
        let content = room.join(architecture.name());
        copy(program, &content.join("topo-lb"))?;
        for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
            copy(&self.workspace.root.join(licence), &content.join(licence))?;
        }
        let names = ["LICENSE-APACHE", "LICENSE-MIT", "topo-lb"];
        self.archive(&content, &names, &format!("{name}.tar"))?;
        let sbom = sbom::of(self.workspace, architecture, program, source)?;
        Ok(fs::write(self.place(&format!("{name}.spdx.json")), sbom)?)
    }

    /// The chart, a file per overlay, the custom resources, and deploy/ itself.
    fn deployment(&self, room: &Path) -> Result<()> {
        let deploy = self.workspace.root.join("deploy");
        self.chart()?;
        let whole = format!("topo-lb-{VERSION}-deploy.tar");
        self.archive(&self.workspace.root, &["deploy"], &whole)?;
        copy(
            &deploy.join("crds/topo-lb.io.yaml"),
            &self.place(&format!("topo-lb-{VERSION}-crds.yaml")),
        )?;
        let tools = cluster_tools::programs(self.workspace)?;
        let kubectl = tools.iter().find(|(variable, _)| variable.ends_with("KUBECTL"));
        let (_, kubectl) = kubectl.context("no kubectl")?;
        for overlay in OVERLAYS {
            // A client without any cluster.
            let mut render = self.workspace.command(kubectl);
            render.env("KUBECONFIG", room.join("none")).arg("kustomize");
            render.arg(deploy.join("overlays").join(overlay)).arg("--output");
            render.arg(self.place(&format!("topo-lb-{VERSION}-{overlay}.yaml")));
            let log = self.workspace.log("release-kustomize");
            run_logged(format!("rendering deploy/overlays/{overlay}"), &mut render, &log)?;
        }
        Ok(())
    }

    /// The chart as `helm package` packs it, with the time of the commit.
    fn chart(&self) -> Result<()> {
        let helm = self.workspace.root.join("deploy/helm");
        let ignored = ignored(&fs::read_to_string(helm.join("topo-lb/.helmignore"))?)?;
        let names = files(&helm.join("topo-lb"))?.into_iter().filter_map(|path| {
            let name = path.file_name()?.to_str()?.to_owned();
            (!ignored.contains(&name)).then(|| format!("topo-lb/{name}"))
        });
        let names: Vec<_> = names.collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        self.archive(&helm, &names, &format!("topo-lb-{VERSION}.chart"))
    }

    /// The names of all files, and their SHA-256.
    fn digests(&self) -> Result<Vec<(String, String)>> {
        let name =
            |file: &Path| file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        files(&self.folder)?.iter().map(|file| Ok((name(file), digest(file)?))).collect()
    }

    fn sums(&self) -> Result<()> {
        let lines = self.digests()?.into_iter().map(|(name, sum)| format!("{sum}  {name}\n"));
        Ok(fs::write(self.place(SUMS), lines.collect::<String>())?)
    }

    /// Signs the checksums, and so all files: docs/releases.md says why nothing else is signed.
    fn sign(&self, cosign: &Path, key: &str) -> Result<()> {
        let mut command = self.workspace.command(cosign);
        command.args(["sign-blob", "--yes", "--key", key, "--bundle"]);
        command.arg(self.place(&format!("{SUMS}.cosign.json"))).arg(self.place(SUMS));
        run_logged(format!("signing {SUMS}"), &mut command, &self.workspace.log("release-sign"))
    }
}

/// The name of a program's archive, without its end.
fn archive_name(architecture: Architecture) -> String {
    format!("topo-lb-{VERSION}-linux-{}", architecture.name())
}

/// What a .helmignore names: entries of the chart's folder, without patterns.
fn ignored(text: &str) -> Result<Vec<String>> {
    let lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let name = |line: &str| {
        let name = line.trim_end_matches('/');
        let is_plain = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
        ensure!(
            name.chars().all(is_plain),
            ".helmignore says `{line}`: a release understands only names of the chart's own entries"
        );
        Ok(name.to_owned())
    };
    lines.map(name).collect()
}

/// The files of a folder, by name.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = crate::debian::entries(folder)?;
    files.sort();
    Ok(files)
}

/// Refuses to replace a folder that is no release.
fn replaceable(output: &Path) -> Result<()> {
    let is_empty = || crate::debian::entries(output).is_ok_and(|entries| entries.is_empty());
    if output.exists() && !output.join(SUMS).is_file() && !is_empty() {
        bail!(
            "{} is no release, and is left alone: name another folder with --output",
            output.display()
        );
    }
    Ok(())
}

/// Puts a whole release into its place, in one step. One that is there goes to the folder that is removed.
fn publish(made: &Path, output: &Path) -> Result<()> {
    if !output.exists() {
        return Ok(fs::rename(made, output)?);
    }
    let exchanged = renameat_with(CWD, made, CWD, output, RenameFlags::EXCHANGE);
    exchanged.with_context(|| format!("cannot put the release into {}", output.display()))
}

/// The begin of the name of a folder in which a release is made; the process id follows.
const DRAFT: &str = ".release-";

/// Removes the folders of releases that were killed.
fn sweep(parent: &Path) -> Result<()> {
    for entry in crate::debian::entries(parent)? {
        let name = entry.file_name().unwrap_or_default().to_string_lossy();
        let process = name.strip_prefix(DRAFT).and_then(|rest| rest.split('-').next());
        let is_alive = |process: &str| Path::new("/proc").join(process).exists();
        if process.is_some_and(|it| it.parse::<u32>().is_ok() && !is_alive(it)) {
            fs::remove_dir_all(&entry)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
