//! `cargo xtask image`: builds the image of deploy/ without a daemon.

use fs_err as fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::architecture::Architecture;
use crate::libraries;
use crate::oci::{self, architecture, copy};
use crate::process::output_of;
use crate::progress;
use crate::shipped;
use crate::workspace::Workspace;

/// Builds the agent for release and puts it into an OCI image, for amd64 and arm64.
///
/// The image holds the agent, a static program, and nothing else. It goes to target/image as an OCI
/// archive. `skopeo copy --all` brings it to a registry, `podman load`, `docker load` (25 or later) or
/// `ctr images import` to a node.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask image
  cargo xtask image --arch amd64      # only for this architecture
  skopeo copy --all oci-archive:target/image/topo-lb-0.1.0.tar docker://registry.example.com/topo-lb:0.1.0")]
pub(crate) struct Args {
    /// Only for this architecture (may be given more than once)
    #[arg(long, value_name = "ARCHITECTURE")]
    arch: Vec<Architecture>,
}

/// All packages of the workspace have one version.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What an image says of itself.
const TITLE: (&str, &str) = ("org.opencontainers.image.title", "topo-lb");
const DESCRIPTION: (&str, &str) = (
    "org.opencontainers.image.description",
    "Keeps Kubernetes Service traffic close to the client, in the kernel, and explains every decision",
);
const LICENCES: (&str, &str) = ("org.opencontainers.image.licenses", "MIT OR Apache-2.0");

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let programs = shipped::build(workspace, &args.arch)?;
    let variant = match &programs[..] {
        [(one, _)] => format!("-{}", one.name()),
        _ => String::new(),
    };
    of_shipped(workspace, &programs, &archive(workspace, &variant)?)
}

/// Builds the image of these static programs.
pub(crate) fn of_shipped(
    workspace: &Workspace,
    programs: &[(Architecture, PathBuf)],
    archive: &Path,
) -> Result<()> {
    let programs: Vec<_> = programs.iter().map(|(it, path)| (it.name(), path.as_path())).collect();
    make(workspace, &programs, VERSION, archive)
}

/// Builds the image for a cluster on this machine, unless the agent is the same as before: the agent
/// that suites start, which takes less time to compile than the one of [`run`]. Returns the archive.
pub(crate) fn for_cluster(workspace: &Workspace, agent: &Path) -> Result<PathBuf> {
    let archive = archive(workspace, &format!("-{}-dev", architecture()))?;
    let built = |path: &Path| fs::metadata(path).and_then(|it| it.modified());
    if built(&archive).ok() <= built(agent).ok() {
        make(workspace, &[(architecture(), agent)], VERSION, &archive)?;
    }
    Ok(archive)
}

/// Builds the image of the last release's agent, with the tag `last-release`.
pub(crate) fn of_last_release(workspace: &Workspace, agent: &Path, archive: &Path) -> Result<()> {
    make(workspace, &[(architecture(), agent)], "last-release", archive)
}

/// The path of an image's archive.
fn archive(workspace: &Workspace, variant: &str) -> Result<PathBuf> {
    let folder = workspace.target.join("image");
    fs::create_dir_all(&folder)?;
    Ok(folder.join(format!("topo-lb-{VERSION}{variant}.tar")))
}

/// Builds the image of agents, by architecture, and of the libraries that they link.
fn make(
    workspace: &Workspace,
    agents: &[(&str, &Path)],
    version: &str,
    archive: &Path,
) -> Result<()> {
    let work = tempfile::tempdir_in(archive.parent().unwrap_or(archive))?;
    let mut contents = Vec::new();
    for (architecture, agent) in agents {
        let content = work.path().join(architecture);
        copy(agent, &content.join("topo-lb"))?;
        if !libraries::needed(&fs::read(agent)?)?.is_empty() {
            for library in libraries::of(agent)? {
                let relative = library.strip_prefix("/").unwrap_or(&library);
                copy(&library, &content.join(relative))?;
            }
        }
        if *architecture == oci::architecture() {
            try_out(workspace, agent, &content)?;
        }
        contents.push((*architecture, content));
    }
    let contents: Vec<_> = contents.iter().map(|(it, folder)| (*it, folder.as_path())).collect();
    let image = oci::Image {
        // Whole: kubelets do not find an image whose name in the archive has no registry.
        names: &[&format!("docker.io/library/topo-lb:{version}")],
        entrypoint: &["/topo-lb"],
        arguments: &[],
        labels: &[TITLE, DESCRIPTION, LICENCES, ("org.opencontainers.image.version", version)],
    };
    // A name of its own until it is whole.
    let draft = work.path().join("archive.tar");
    let digest = image.write(workspace, &contents, &draft)?;
    fs::rename(&draft, archive)?;
    progress::note(&format!("{:>9}  {}", size(archive)?, archive.display()));
    progress::note(&format!("{:>9}  {digest}", "digest"));
    Ok(())
}

/// Runs the agent with only the image's files. It must say what it says outside.
fn try_out(workspace: &Workspace, agent: &Path, content: &Path) -> Result<()> {
    let outside = output_of(workspace.command(agent).arg("--version"));
    let outside = outside.with_context(|| format!("{} does not run here", agent.display()))?;
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let inside =
        output_of(workspace.command("chroot").arg(content).args(["/topo-lb", "--version"]));
    ensure!(
        inside.as_ref() == Some(&outside),
        "the agent does not run in the image: it said {inside:?}, and outside {outside:?}"
    );
    Ok(())
}

/// The size in MB (10^6 bytes), as registries show it.
pub(crate) fn size(path: &Path) -> Result<String> {
    let bytes = fs::metadata(path)?.len();
    Ok(format!("{}.{} MB", bytes / 1_000_000, bytes / 100_000 % 10))
}
