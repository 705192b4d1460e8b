//! What a release promises, tried: the same bytes from another checkout, and all that an installation
//! takes.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;

use super::{Args, SUMS, Source, archive_name};
use crate::architecture::Architecture;
use crate::image::VERSION;
use crate::process::{output_of, run_logged};
use crate::workspace::Workspace;

/// A release, and its deploy/ unpacked beside it.
#[derive(Debug)]
pub(crate) struct Dist {
    /// The folder of the release.
    folder: PathBuf,
    /// What its archive of deploy/ has.
    pub(crate) deploy: PathBuf,
}

impl Dist {
    /// The archive of the image.
    pub(crate) fn image(&self) -> PathBuf {
        self.folder.join(format!("topo-lb-{VERSION}-oci.tar"))
    }

    /// How many files it has.
    pub(crate) fn files(&self) -> Result<usize> {
        Ok(super::files(&self.folder)?.len())
    }

    /// The chart.
    pub(crate) fn chart(&self) -> PathBuf {
        self.folder.join(format!("topo-lb-{VERSION}.tgz"))
    }
}

/// Makes the release of the checked-out commit twice, in two checkouts, and tries its program.
///
/// # Errors
/// The two differ, or something in it does not do what it should.
pub(crate) fn run(workspace: &Workspace) -> Result<Dist> {
    let folder = workspace.target.join("xtask/dist");
    let args = Args { output: folder.clone(), ..Args::default() };
    // Before it is made: the checkout may move on meanwhile.
    let commit = Source::find(workspace)?.commit.unwrap_or_default();
    super::run(workspace, &args)?;
    is_the_same_from_another_checkout(workspace, &commit, &folder)?;

    let mut sums = workspace.command("sha256sum");
    sums.args(["--check", "--strict", "--quiet", SUMS]).current_dir(&folder);
    run_logged(format!("comparing {SUMS}"), &mut sums, &workspace.log("release-sums"))?;
    for architecture in Architecture::ALL.into_iter().filter(|it| it.is_here()) {
        tries_itself_out(workspace, &folder, architecture)?;
    }

    let deploy = workspace.target.join("xtask/dist-deploy");
    if deploy.exists() {
        fs::remove_dir_all(&deploy)?;
    }
    unpack(workspace, &folder.join(format!("topo-lb-{VERSION}-deploy.tar.gz")), &deploy)?;
    Ok(Dist { folder, deploy: deploy.join("deploy") })
}

/// Compares the checksums with those of a release from a clone elsewhere, with folders of its own.
fn is_the_same_from_another_checkout(
    workspace: &Workspace,
    commit: &str,
    folder: &Path,
) -> Result<()> {
    let room = tempfile::Builder::new().prefix("topo-lb-release-").tempdir()?;
    let clone = room.path().join("another checkout");
    let mut git = workspace.command("git");
    git.args(["clone", "--quiet"]).arg(&workspace.root).arg(&clone);
    run_logged("another checkout", &mut git, &workspace.log("release-clone"))?;
    let mut git = workspace.command("git");
    git.args(["checkout", "--quiet", "--detach", commit]).current_dir(&clone);
    run_logged("the same commit", &mut git, &workspace.log("release-checkout"))?;
    let mut again = workspace.command(workspace.cargo_path());
    again.args(["xtask", "release", "--output", "dist"]).current_dir(&clone);
    again.env_remove("CARGO_TARGET_DIR");
    run_logged("the release, from there", &mut again, &workspace.log("release-again"))?;
    let [one, other] = [folder, &clone.join("dist")].map(|it| fs::read_to_string(it.join(SUMS)));
    let (one, other) = (one?, other?);
    let differ: Vec<_> = one.lines().filter(|line| !other.lines().any(|it| it == *line)).collect();
    ensure!(
        one == other,
        "the same commit gave other files in another checkout: {}",
        differ.join(", ")
    );
    Ok(())
}

/// Runs `topo-lb try` out of the archive of this machine's architecture.
fn tries_itself_out(
    workspace: &Workspace,
    folder: &Path,
    architecture: Architecture,
) -> Result<()> {
    let room = tempfile::tempdir()?;
    let archive = folder.join(format!("{}.tar.gz", archive_name(architecture)));
    unpack(workspace, &archive, room.path())?;
    let program = room.path().join("topo-lb");
    let version = output_of(workspace.command(&program).arg("--version"));
    let version = version.with_context(|| format!("{} does not run", program.display()))?;
    ensure!(version.trim() == format!("topo-lb {VERSION}"), "it calls itself {version}");
    let mut command = workspace.command(&program);
    command.arg("try").env_clear();
    run_logged("topo-lb try, of the release", &mut command, &workspace.log("release-try"))
}

fn unpack(workspace: &Workspace, archive: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    let mut command = workspace.command("tar");
    command.arg("--extract").arg("--file").arg(archive).arg("--directory").arg(to);
    run_logged(
        format!("unpacking {}", archive.display()),
        &mut command,
        &workspace.log("release-unpack"),
    )
}
