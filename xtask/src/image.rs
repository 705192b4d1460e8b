//! `cargo xtask image`: builds the image of deploy/ without a daemon.

use fs_err as fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::build_ebpf;
use crate::libraries;
use crate::needs::Need;
use crate::oci::{architecture, copy};
use crate::process::{display, output_of, run_logged};
use crate::progress;
use crate::workspace::{Profile, Workspace};

/// Builds the agent for release and puts it into an OCI image, for this machine's architecture.
///
/// The image holds the agent and the shared libraries that it links, nothing else, and goes to
/// target/image as an OCI archive. `skopeo copy` brings it to a registry, `podman load`, `docker load`
/// (25 or later) or `ctr images import` to a node.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask image
  skopeo copy oci-archive:target/image/topo-lb-0.1.0-amd64.tar docker://registry.example.com/topo-lb:0.1.0")]
pub(crate) struct Args {}

/// All packages of the workspace have one version.
const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(crate) fn run(workspace: &Workspace, _: &Args) -> Result<()> {
    build_ebpf::ready(workspace, &[Need::Root, Need::Image])?;
    let mut build = workspace.cargo("build");
    build.args(["--profile", Profile::Deployed.name(), "--package", "topo-lb"]);
    let log = workspace.log("build-image-agent");
    run_logged("compiling the agent, optimised for size", &mut build, &log)?;
    let agent = workspace.program(Profile::Deployed, "topo-lb");
    Image::new(workspace)?.make(&agent, VERSION, &archive(workspace, ""))
}

/// Builds the image for a cluster on this machine, unless the agent is the same as before: the agent
/// that suites start, which takes less time to compile than the one of [`run`]. Needs what [`run`]
/// needs. Returns the archive.
pub(crate) fn for_cluster(workspace: &Workspace, agent: &Path) -> Result<PathBuf> {
    let archive = archive(workspace, "-dev");
    let built = |path: &Path| fs::metadata(path).and_then(|it| it.modified());
    if built(&archive).ok() <= built(agent).ok() {
        Image::new(workspace)?.make(agent, VERSION, &archive)?;
    }
    Ok(archive)
}

/// Builds the image of the last release's agent, with the tag `last-release`.
pub(crate) fn of_last_release(workspace: &Workspace, agent: &Path, archive: &Path) -> Result<()> {
    Image::new(workspace)?.make(agent, "last-release", archive)
}

/// The path of an image's archive.
fn archive(workspace: &Workspace, variant: &str) -> PathBuf {
    let name = format!("topo-lb-{VERSION}-{}{variant}.tar", architecture());
    workspace.target.join("image").join(name)
}

/// An image during its build. Dropping it removes its temporary folder.
struct Image<'a> {
    workspace: &'a Workspace,
    work: PathBuf,
}

impl<'a> Image<'a> {
    fn new(workspace: &'a Workspace) -> Result<Self> {
        let work = workspace.target.join("image").join(format!("work-{}", std::process::id()));
        fs::create_dir_all(&work)?;
        Ok(Self { workspace, work })
    }

    /// Builds the image of this version, and tries it.
    fn make(&self, agent: &Path, version: &str, archive: &Path) -> Result<()> {
        let content = self.work.join("content");
        let files = self.collect(agent, &content)?;
        // Whole: kubelets do not find an image whose name in the archive has no registry.
        let tag = format!("docker.io/library/topo-lb:{version}");
        let mut build = self.buildah("build");
        // A fixed timestamp: the same agent gives the same image.
        build.args(["--timestamp", "0", "--layers=false", "--tag", &tag]);
        build.args(["--label", &format!("org.opencontainers.image.version={version}")]);
        build.args(["--file", "deploy/Containerfile"]).arg(&content);
        self.step("image", &mut build)?;

        // buildah would append to an existing archive.
        if archive.exists() {
            fs::remove_file(archive)?;
        }
        let digest = self.work.join("digest");
        let place = format!("oci-archive:{}:{tag}", archive.display());
        let mut push = self.buildah("push");
        push.arg("--digestfile").arg(&digest).args([&tag, &place]);
        self.step("OCI archive", &mut push)?;
        self.try_out(&place, agent)?;

        for file in &files {
            let path = content.join(file);
            progress::note(&format!("{:>9}  /{}", size(&path)?, file.display()));
        }
        let digest = fs::read_to_string(&digest)?;
        progress::note(&format!("{:>9}  {}", size(archive)?, archive.display()));
        progress::note(&format!("{:>9}  {}", "digest", digest.trim()));
        Ok(())
    }

    /// Copies the agent and its libraries to their places in the image. Returns these paths.
    fn collect(&self, agent: &Path, content: &Path) -> Result<Vec<PathBuf>> {
        let mut files = vec![PathBuf::from("topo-lb")];
        copy(agent, &content.join("topo-lb"))?;
        for library in libraries::of(agent)? {
            let relative = library.strip_prefix("/").unwrap_or(&library);
            copy(&library, &content.join(relative))?;
            files.push(relative.to_owned());
        }
        Ok(files)
    }

    /// Runs the agent with only the archive's content. It must say what it says outside.
    fn try_out(&self, place: &str, agent: &Path) -> Result<()> {
        let mut create = self.buildah("from");
        let container = output_of(create.arg(place));
        let container = container.with_context(|| format!("`{}` failed", display(&create)))?;
        let mut mount = self.buildah("mount");
        let root = output_of(mount.arg(container.trim()));
        let root = root.with_context(|| format!("`{}` failed", display(&mount)))?;
        let mut inside = self.workspace.command("chroot");
        let said = output_of(inside.arg(root.trim()).args(["/topo-lb", "--version"]));
        let outside = output_of(self.workspace.command(agent).arg("--version"));
        ensure!(
            said.is_some() && said == outside,
            "the agent does not run in the image: `{}` said {said:?}, and outside {outside:?}",
            display(&inside)
        );
        Ok(())
    }

    /// buildah with a separate storage, which works on any file system.
    fn buildah(&self, subcommand: &str) -> Command {
        let mut command = self.workspace.command("buildah");
        command.args(["--storage-driver", "vfs", "--root"]).arg(self.work.join("storage"));
        command.arg("--runroot").arg(self.work.join("run")).arg(subcommand);
        // Its temporary files are as large as the image: where there is room for one.
        command.env("TMPDIR", &self.work);
        if subcommand == "build" {
            // A container may not be allowed to make namespaces.
            command.args(["--isolation", "chroot"]);
        }
        command
    }

    fn step(&self, title: &str, command: &mut Command) -> Result<()> {
        run_logged(title, command, &self.workspace.log("image"))
    }
}

impl Drop for Image<'_> {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.work) {
            progress::warn(&format!("cannot remove {}: {error}", self.work.display()));
        }
    }
}

/// The size in MB (10^6 bytes), as registries show it.
fn size(path: &Path) -> Result<String> {
    let bytes = fs::metadata(path)?.len();
    Ok(format!("{}.{} MB", bytes / 1_000_000, bytes / 100_000 % 10))
}
