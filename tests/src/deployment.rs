//! What deploy/ renders to: kustomize overlays and the Helm chart, with the real tools.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use fs_err as fs;
use serde_json::{Value, json};

use crate::folder::Folder;
use crate::prefix::Prefix;
use crate::process::printed;
use crate::requirements::named;

/// The name of all objects, the namespace included.
pub const NAME: &str = "topo-lb";

/// The path of kubectl, which `TOPO_LB_KUBECTL` names.
pub fn kubectl() -> Result<PathBuf> {
    named("TOPO_LB_KUBECTL")?.context(UNNAMED)
}

/// The path of Helm, which `TOPO_LB_HELM` names.
pub fn helm() -> Result<PathBuf> {
    named("TOPO_LB_HELM")?.context(UNNAMED)
}

const UNNAMED: &str = "TOPO_LB_KUBECTL and TOPO_LB_HELM do not name kubectl and Helm: \
                       `cargo xtask test --only control-plane` fetches both, and sets them";

/// A path below deploy/: the checkout's, or that of a release, which `TOPO_LB_DEPLOY` names.
#[must_use]
pub fn deploy(place: &str) -> PathBuf {
    let of_release = std::env::var_os("TOPO_LB_DEPLOY").map(PathBuf::from);
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    of_release.unwrap_or_else(own).join(place)
}

/// The Helm chart: its folder, or the package of a release, which `TOPO_LB_CHART` names.
#[must_use]
pub fn chart_place() -> PathBuf {
    let of_release = std::env::var_os("TOPO_LB_CHART").map(PathBuf::from);
    of_release.unwrap_or_else(|| deploy("helm/topo-lb"))
}

/// The objects of an overlay, in the order of creation.
pub fn overlay(name: &str) -> Result<Vec<Value>> {
    kustomize(&deploy("overlays").join(name))
}

/// The objects of an overlay with components, as in the kustomization of an installation.
pub fn overlay_with(name: &str, components: &[&str]) -> Result<Vec<Value>> {
    let folder = Folder::make(Prefix::new().folder())?;
    compose(folder.path(), name, components, &json!([]))?;
    kustomize(folder.path())
}

/// What the component `prometheus` asks the operator for: the `PodMonitor`, or the `PrometheusRule`.
///
/// # Errors
/// It does not render, or has none.
pub fn monitoring(kind: &str) -> Result<Value> {
    let objects = overlay_with("opt-in", &["metrics", "prometheus"])?;
    one(&objects, kind).cloned()
}

/// Writes the kustomization of an overlay with components and patches. kustomize accepts only
/// relative paths.
pub(crate) fn compose(
    folder: &Path,
    overlay: &str,
    components: &[&str],
    patches: &Value,
) -> Result<()> {
    let root = deploy("").canonicalize().context("there is no deploy/")?;
    let folder = folder.canonicalize().context("the folder was made")?;
    let up = "../".repeat(folder.components().count() - 1);
    let there = |place: String| format!("{up}{}", root.join(place).display()).replace("//", "/");
    let components: Vec<_> =
        components.iter().map(|name| there(format!("components/{name}"))).collect();
    let kustomization = json!({
        "resources": [there(format!("overlays/{overlay}"))],
        "components": components,
        "patches": patches,
    });
    Ok(fs::write(folder.join("kustomization.yaml"), kustomization.to_string())?)
}

fn kustomize(folder: &Path) -> Result<Vec<Value>> {
    objects(&printed(Command::new(kubectl()?).arg("kustomize").arg(folder))?)
}

/// The objects of the chart with these values, as `helm install --namespace topo-lb` renders them.
pub fn chart(values: &[&str]) -> Result<Vec<Value>> {
    let values: Vec<_> = values.iter().flat_map(|value| ["--set", value]).collect();
    release(NAME, &[&["--skip-tests"], &values[..]].concat())
}

/// The objects of a release of the chart in the namespace topo-lb, with these flags of Helm.
pub fn release(name: &str, flags: &[&str]) -> Result<Vec<Value>> {
    let mut command = Command::new(helm()?);
    command.args(["template", name]).arg(deploy("helm/topo-lb")).args(["--namespace", NAME]);
    objects(&printed(command.args(flags))?)
}

fn objects(text: &str) -> Result<Vec<Value>> {
    let all: Vec<Value> = serde_saphyr::from_multiple(text).context("not YAML")?;
    ensure!(!all.is_empty(), "nothing was rendered");
    Ok(all)
}

/// The only object of this kind.
///
/// # Errors
/// There is none, or more than one.
pub fn one<'a>(objects: &'a [Value], kind: &str) -> Result<&'a Value> {
    let mut found = objects.iter().filter(|object| object["kind"] == kind);
    match (found.next(), found.next()) {
        (Some(object), None) => Ok(object),
        _ => bail!("there is not one {kind}"),
    }
}
