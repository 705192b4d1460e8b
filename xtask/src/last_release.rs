//! The agent of the last release, for tests of an upgrade from it and back. It is compiled once from
//! that release's source, by the commands of that source, and kept in the user's cache.

use fs_err as fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::cache;
use crate::image;
use crate::oci;
use crate::process::{output_of, run_logged};
use crate::progress;
use crate::summary::Outcome;
use crate::workspace::{Profile, Workspace};

/// The variable for the agent's binary.
pub(crate) const AGENT: &str = "TOPO_LB_LAST_RELEASE_AGENT";
/// The variable for the archive with its image.
pub(crate) const IMAGE: &str = "TOPO_LB_LAST_RELEASE_IMAGE";

/// The last release before the commit that is checked out.
#[derive(Debug)]
pub(crate) struct LastRelease {
    tag: String,
    commit: String,
}

impl LastRelease {
    /// Finds it by its tag, such as `v0.1.0`. At a release's own commit this is the release before it.
    /// None without such a tag, and without git or the history.
    pub(crate) fn find(workspace: &Workspace) -> Option<Self> {
        let git = |arguments: &[&str]| {
            let mut command = workspace.command("git");
            // The tags of a repository around this one are not topo-lb's.
            command.env("GIT_CEILING_DIRECTORIES", workspace.root.parent()?);
            Some(output_of(command.args(arguments))?.trim().to_owned())
        };
        let tag = git(&["describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^"])?;
        let commit = git(&["rev-parse", "--verify", &format!("{tag}^{{commit}}")])?;
        Some(Self { tag, commit })
    }

    /// The agent's binary. Compiles it if the cache lacks it.
    pub(crate) fn agent(&self, workspace: &Workspace) -> Result<PathBuf> {
        let folder = cache::folder(&format!("release-{}", self.commit))?;
        cache::make_once(&folder, |room| self.compile(workspace, room))?;
        Ok(folder.join("topo-lb"))
    }

    /// The archive with the image `topo-lb:last-release`. Builds it if the cache lacks it.
    pub(crate) fn image(&self, workspace: &Workspace) -> Result<PathBuf> {
        let agent = self.agent(workspace)?;
        let folder = cache::folder(&format!("release-{}-image", self.commit))?;
        cache::make_once(&folder, |room| {
            let made = room.join("made");
            fs::create_dir_all(&made)?;
            image::of_last_release(workspace, &agent, &made.join("topo-lb.tar"))?;
            Ok(made)
        })?;
        Ok(folder.join("topo-lb.tar"))
    }

    /// Compiles the agent below a folder. Returns the folder that has only its binary.
    fn compile(&self, workspace: &Workspace, room: &Path) -> Result<PathBuf> {
        progress::note(&format!("{} is compiled, once, into {}", self.tag, room.display()));
        let tree = workspace.at(room.join("source"));
        fs::create_dir_all(&tree.root)?;
        let archive = room.join("source.tar");
        let log = |step| workspace.log(&format!("last-release-{step}"));
        let mut pack = workspace.command("git");
        pack.args(["archive", "--output"]).arg(&archive).arg(&self.commit);
        run_logged(format!("source of {}", self.tag), &mut pack, &log("source"))?;
        let mut unpack = tree.command("tar");
        run_logged("unpacking it", unpack.arg("-xf").arg(&archive), &log("unpack"))?;

        // Its programs go to a target folder of its own, and what Cargo makes on the way goes to this
        // workspace's: most dependencies are compiled there already. As an argument, because the
        // environment would reach the build of the object, by another compiler.
        let shared = format!("build.build-dir={:?}", workspace.target);
        let cargo = |subcommand: &str| {
            let mut command = tree.cargo(subcommand);
            command.args(["--config", &shared, "--config", "build.incremental=false"]);
            command.env_remove("TOPO_LB_EBPF_OBJECT");
            command
        };
        let mut object = cargo("run");
        object.args(["--package", "xtask", "--", "build-ebpf"]);
        run_logged("its eBPF object", &mut object, &log("object"))?;
        let mut build = cargo("build");
        build.args(["--package", "topo-lb", "--bin", "topo-lb"]);
        run_logged("its agent", &mut build, &log("agent"))?;
        let made = room.join("made");
        oci::copy(&tree.program(Profile::Dev, "topo-lb"), &made.join("topo-lb"))?;
        Ok(made)
    }
}

/// The outcome of a stage that has passed, and has tested the upgrade if there is a release.
pub(crate) fn outcome(release: Option<&LastRelease>) -> Outcome {
    match release {
        Some(_) => Outcome::Passed(None),
        None => Outcome::NothingToCheck(
            "upgrade from a release NOT checked: git finds no release tag".to_owned(),
        ),
    }
}
