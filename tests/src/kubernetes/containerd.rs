//! containerd of a node: its configuration, the pods' network, and images.

use std::env;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use fs_err as fs;
use fs_err::os::unix::fs::symlink;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::json;

use crate::process::{Running, printed};
use crate::wait::until_is;

use super::machine::Machine;
use super::parts::{Parts, sbin};
use super::{LAST_RELEASE, VERSION};

/// Its socket on the node.
pub(crate) const SOCKET: &str = "/run/containerd/containerd.sock";

/// The image of the container that holds a pod's namespaces.
const PAUSE: &str = "registry.k8s.io/pause:3.10";

/// The name of topo-lb's image in deploy/.
pub(crate) const REGISTRY: &str = "registry.example.com/topo-lb";

const PATIENCE: Duration = Duration::from_secs(30);

/// Starts containerd for pods of this range, and imports the images.
pub(crate) fn start(machine: &Machine<'_>, parts: &Parts, pods: &str) -> Result<Running> {
    let folder = machine.folder();
    link_iptables(machine, parts)?;
    let plugins = parts.containerd("ptp")?;
    let plugins = plugins.parent().context("a program is in a folder")?;
    let network = folder.join("cni");
    fs::create_dir_all(&network)?;
    let ipam = json!({
        "type": "host-local", "ranges": [[{"subnet": pods}]], "routes": [{"dst": "0.0.0.0/0"}],
    });
    let conflist = json!({"cniVersion": "0.4.0", "name": "lab", "plugins": [
        {"type": "ptp", "ipam": ipam},
        {"type": "portmap", "capabilities": {"portMappings": true}},
    ]});
    fs::write(network.join("10-lab.conflist"), conflist.to_string())?;
    let snapshotter = snapshotter(machine)?;
    let config = folder.join("containerd.toml");
    let cri = "plugins.\"io.containerd.grpc.v1.cri\"";
    let text = format!(
        "version = 2\n\
         [{cri}]\n\
         sandbox_image = \"{PAUSE}\"\n\
         restrict_oom_score_adj = true\n\
         disable_apparmor = true\n\
         [{cri}.containerd]\n\
         snapshotter = \"{snapshotter}\"\n\
         [{cri}.containerd.runtimes.runc]\n\
         runtime_type = \"io.containerd.runc.v2\"\n\
         [{cri}.cni]\n\
         bin_dir = \"{}\"\n\
         conf_dir = \"{}\"\n",
        plugins.display(),
        network.display(),
    );
    fs::write(&config, text)?;
    let mut command = Command::new(parts.containerd("containerd")?);
    command.envs(parts.environment(&folder.join("bin"))?).arg("--config").arg(&config);
    let running = machine.start("containerd", command)?;
    let control = || {
        let mut command = Command::new(parts.containerd("ctr")?);
        command.args(["--namespace", "k8s.io"]);
        Ok::<_, anyhow::Error>(command)
    };
    let look = || {
        let mut command = control()?;
        command.arg("version");
        Ok(machine.run(command).map_or_else(|error| format!("{error:#}"), |_| String::new()))
    };
    until_is("containerd's answer", PATIENCE, look, String::is_empty)?;
    for image in parts.images() {
        let mut command = control()?;
        command.args(["images", "import", "--snapshotter", snapshotter]).arg(image);
        machine.run(command)?;
    }
    // An archive has no registry's name.
    let mut list = control()?;
    list.args(["images", "list", "--quiet"]);
    let images = machine.run(list)?;
    for version in [VERSION, LAST_RELEASE] {
        let end = format!("topo-lb:{version}");
        if let Some(ours) = images.lines().find(|name| name.ends_with(&end)) {
            let mut tag = control()?;
            tag.args(["images", "tag", "--force", ours, &format!("{REGISTRY}:{version}")]);
            machine.run(tag)?;
        }
    }
    Ok(running)
}

/// overlayfs where the kernel allows it on the folder's file system, which saves disk space.
fn snapshotter(machine: &Machine<'_>) -> Result<&'static str> {
    let folder = machine.folder().join("overlay");
    let [lower, upper, work, at] = ["lower", "upper", "work", "at"].map(|name| folder.join(name));
    for place in [&lower, &upper, &work, &at] {
        fs::create_dir_all(place)?;
    }
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.display(),
        upper.display(),
        work.display()
    );
    let options = std::ffi::CString::new(options).context("a path has a zero byte")?;
    let mounted = mount("overlay", &at, "overlay", MountFlags::empty(), options.as_c_str());
    if mounted.is_ok() {
        unmount(&at, UnmountFlags::DETACH).context("cannot unmount an overlay")?;
    }
    Ok(if mounted.is_ok() { "overlayfs" } else { "native" })
}

/// Makes a folder with links of the names by which other programs call iptables: the kernel's own
/// tables where it has them, otherwise those of nftables.
fn link_iptables(machine: &Machine<'_>, parts: &Parts) -> Result<()> {
    let folder = machine.folder().join("bin");
    fs::create_dir_all(&folder)?;
    let installed = |name: &str| {
        let path = env::var_os("PATH").unwrap_or_default();
        let folders = env::split_paths(&path).chain(sbin());
        folders.map(|folder| folder.join(name)).find(|path| path.is_file())
    };
    let mut look = Command::new("iptables-legacy");
    look.args(["-t", "nat", "-S"]).env("XTABLES_LOCKFILE", "/run/xtables.lock");
    look.envs(parts.environment(&folder)?);
    machine.enter(&mut look)?;
    let tables = if printed(&mut look).is_ok() { "legacy" } else { "nft" };
    for family in ["iptables", "ip6tables"] {
        for end in ["", "-save", "-restore"] {
            let program = installed(&format!("{family}-{tables}{end}"));
            let program = program
                .context("`iptables` is not installed; on Debian: apt-get install iptables")?;
            symlink(program, folder.join(format!("{family}{end}")))?;
        }
    }
    Ok(())
}
