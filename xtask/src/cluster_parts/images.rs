//! The images of a cluster's pods, as archives for `ctr images import`, made once in the user's
//! cache: pause, which holds a Pod's namespaces, and agnhost, which Kubernetes' tests run in nearly
//! all their Pods. The programs are compiled from Kubernetes' source; what agnhost's image has beside
//! them is Debian 12's.

use fs_err as fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::docker_archive::Image;
use super::{given, kubernetes};
use crate::cache;
use crate::debian::{self, Archive};
use crate::debian_kubernetes::VERSION;
use crate::image::{architecture, copy};
use crate::libraries;
use crate::process::output_of;
use crate::workspace::Workspace;

/// The variable that names a folder with the archives.
pub(super) const VARIABLE: &str = "TOPO_LB_IMAGES";

/// The archives.
const ARCHIVES: [&str; 2] = ["pause.tar", "agnhost.tar"];

/// kubelet 1.20 and the tests name this version.
const PAUSE: &[&str] = &["k8s.gcr.io/pause:3.2"];

/// The image of nearly all tests of Kubernetes 1.20, under all names that these use. The tests of
/// DNS call only `dig` and `getent` of jessie-dnsutils, and those of EndpointSlices only want
/// nginx to run.
const AGNHOST: &[&str] = &[
    "k8s.gcr.io/e2e-test-images/agnhost:2.21",
    "gcr.io/kubernetes-e2e-test-images/jessie-dnsutils:1.0",
    "docker.io/library/nginx:1.14-alpine",
];

/// Debian's packages for agnhost's image.
const PACKAGES: [&str; 6] =
    ["busybox-static", "bind9-dnsutils", "curl", "iproute2", "libc-bin", "netcat-openbsd"];

/// Programs of these packages that take libraries, and their names in the image. Its shell and the
/// rest are busybox.
const DYNAMIC: [(&str, &str); 7] = [
    ("bin/ip", "ip"),
    ("bin/nc.openbsd", "nc"),
    ("bin/ss", "ss"),
    ("usr/bin/curl", "curl"),
    ("usr/bin/dig", "dig"),
    ("usr/bin/getent", "getent"),
    ("usr/bin/nslookup", "nslookup"),
];

/// The folder with the archives. Makes it if necessary.
///
/// # Errors
/// The folder that the environment names lacks one, or a download or a build fails.
pub(super) fn archives(workspace: &Workspace) -> Result<PathBuf> {
    if let Some(folder) = given(VARIABLE, &ARCHIVES)? {
        return Ok(folder);
    }
    let programs = kubernetes::cached(workspace)?;
    let folder = cache::folder(&format!("cluster-images-{VERSION}"))?;
    cache::make_once(&folder, |room| {
        let archives = room.join("archives");
        fs::create_dir_all(&archives)?;
        // An earlier attempt may have ended in the middle of a file.
        for content in ["pause", "agnhost"].map(|name| room.join(name)) {
            if content.exists() {
                fs::remove_dir_all(&content)?;
            }
        }
        copy(&programs.join("pause"), &room.join("pause/pause"))?;
        let pause = Image { names: PAUSE, entrypoint: "/pause", arguments: &[] };
        pause.write(workspace, &room.join("pause"), &room.join("pause.tar"))?;

        agnhost(&unpacked(workspace, room)?, &programs, &room.join("agnhost"))?;
        let agnhost = Image { names: AGNHOST, entrypoint: "/agnhost", arguments: &["pause"] };
        agnhost.write(workspace, &room.join("agnhost"), &room.join("agnhost.tar"))?;
        for name in ARCHIVES {
            fs::rename(room.join(name), archives.join(name))?;
        }
        Ok(archives)
    })?;
    Ok(folder)
}

/// Debian's packages with all that they depend on, unpacked.
fn unpacked(workspace: &Workspace, room: &Path) -> Result<PathBuf> {
    let root = room.join("root");
    let sources = debian::sources("bookworm");
    let archive = Archive::open_for(workspace, room, "cluster-images", &sources, architecture())?;
    let title = "programs of the tests' image from Debian";
    let packages = archive.download_with_dependencies(title, &PACKAGES)?;
    archive.unpack("unpacking them", &packages, &root)?;
    Ok(root)
}

/// Puts together the files of agnhost's image.
fn agnhost(root: &Path, programs: &Path, content: &Path) -> Result<()> {
    for file in ["agnhost", "localhost.crt", "localhost.key"] {
        copy(&programs.join(file), &content.join(file))?;
    }
    // Tests of entrypoints call it by its second name.
    symlink("agnhost", content.join("agnhost-2"))?;
    for folder in ["etc", "tmp", "uploads"] {
        fs::create_dir_all(content.join(folder))?;
    }
    // Debian's dynamic linker also looks in /lib. On x86-64, programs expect it in /lib64.
    symlink("lib", content.join("lib64"))?;
    for (from, name) in DYNAMIC {
        let program = root.join(from);
        copy(&program, &content.join("bin").join(name))?;
        for library in libraries::below(root, &program)? {
            copy(&library, &content.join("lib").join(library.file_name().unwrap_or_default()))?;
        }
    }
    copy(&root.join("bin/busybox"), &content.join("bin/busybox"))?;
    for name in busybox_programs(&content.join("bin/busybox"))? {
        let path = content.join("bin").join(name);
        if !path.exists() {
            symlink("busybox", path)?;
        }
    }
    Ok(())
}

/// The programs that busybox is.
fn busybox_programs(busybox: &Path) -> Result<Vec<String>> {
    let said = output_of(Command::new(busybox).arg("--list"));
    let said = said.with_context(|| format!("{} does not run here", busybox.display()))?;
    Ok(said.lines().map(str::to_owned).collect())
}
