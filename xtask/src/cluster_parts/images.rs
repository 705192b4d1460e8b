//! The images of a cluster's pods, as archives for `ctr images import`, made once in the user's
//! cache: pause, which holds a Pod's namespaces, busybox, and agnhost, which Kubernetes' tests run in
//! nearly all their Pods. pause and agnhost are compiled from Kubernetes' source; the rest is Debian
//! 12's.

use fs_err as fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::image_names;
use crate::cache;
use crate::debian::{self, Archive};
use crate::debian_kubernetes::VERSION;
use crate::given;
use crate::kubernetes;
use crate::libraries;
use crate::oci::{Image, architecture, copy};
use crate::process::output_of;
use crate::workspace::Workspace;

/// The variable that names a folder with the archives.
pub(super) const VARIABLE: &str = "TOPO_LB_IMAGES";

/// The archives.
const ARCHIVES: [&str; 3] = ["pause.tar", "busybox.tar", "agnhost.tar"];

/// What is in an archive: all but its names.
fn image(archive: &str) -> Image<'static> {
    let (entrypoint, arguments): (&[&str], &[&str]) = match archive {
        "pause" => (&["/pause"], &[]),
        "busybox" => (&[], &["sh"]),
        _ => (&["/agnhost"], &["pause"]),
    };
    Image { names: &[], entrypoint, arguments, labels: &[] }
}

/// Debian's packages for agnhost's image.
const PACKAGES: [&str; 7] =
    ["busybox", "bind9-dnsutils", "curl", "iproute2", "libc-bin", "netcat-openbsd", "wget"];

/// Programs of these packages, and their names in the image. Its shell and the rest are busybox,
/// but for wget, which crashes there.
const OTHERS: [(&str, &str); 8] = [
    ("bin/ip", "ip"),
    ("bin/nc.openbsd", "nc"),
    ("bin/ss", "ss"),
    ("usr/bin/curl", "curl"),
    ("usr/bin/dig", "dig"),
    ("usr/bin/getent", "getent"),
    ("usr/bin/nslookup", "nslookup"),
    ("usr/bin/wget", "wget"),
];

/// The folder with the archives. Makes it if necessary.
///
/// # Errors
/// The folder that the environment names lacks one, or a download or a build fails.
pub(super) fn archives(workspace: &Workspace) -> Result<PathBuf> {
    if let Some(folder) = given::folder(VARIABLE, &ARCHIVES)? {
        return Ok(folder);
    }
    let programs = kubernetes::built(workspace)?;
    let tests = kubernetes::given_tests(workspace)?;
    let (end, listed) = match &tests {
        None => (String::new(), ""),
        Some(tests) => (format!("-for-{}", tests.version), tests.images.as_str()),
    };
    let folder = cache::folder(&format!("cluster-images-{VERSION}{end}"))?;
    cache::make_once(&folder, |room| {
        let root = unpacked(workspace, room)?;
        let contents = room.join("contents");
        // An earlier attempt may have ended in the middle.
        if contents.exists() {
            fs::remove_dir_all(&contents)?;
        }
        copy(&programs.join("pause"), &contents.join("pause/pause"))?;
        busybox(&root, &contents.join("busybox"))?;
        agnhost(&root, &programs, &contents.join("agnhost"))?;
        for names in image_names::ALL {
            let name = names.archive;
            let (content, archive) = (contents.join(name), room.join(format!("{name}.tar")));
            let image = Image { names: &names.with(listed), ..image(name) };
            image.write(workspace, &[(architecture(), &content)], &archive)?;
        }
        let archives = room.join("archives");
        fs::create_dir_all(&archives)?;
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

/// Puts together the files of busybox's image.
fn busybox(root: &Path, content: &Path) -> Result<()> {
    for folder in ["etc", "tmp", "lib"] {
        fs::create_dir_all(content.join(folder))?;
    }
    // Debian's dynamic linker also looks in /lib. On x86-64, programs expect it in /lib64.
    symlink("lib", content.join("lib64"))?;
    install(root, "bin/busybox", "busybox", content)?;
    let program = root.join("bin/busybox");
    let said = output_of(Command::new(&program).arg("--list"));
    let said = said.with_context(|| format!("{} does not run here", program.display()))?;
    for name in said.lines().filter(|name| *name != "busybox") {
        symlink("busybox", content.join("bin").join(name))?;
    }
    Ok(())
}

/// Puts together the files of agnhost's image.
fn agnhost(root: &Path, programs: &Path, content: &Path) -> Result<()> {
    busybox(root, content)?;
    for file in ["agnhost", "localhost.crt", "localhost.key"] {
        copy(&programs.join(file), &content.join(file))?;
    }
    // Tests of entrypoints call it by its second name.
    symlink("agnhost", content.join("agnhost-2"))?;
    fs::create_dir_all(content.join("uploads"))?;
    // As busybox's wget, which the tests expect: they try again themselves.
    fs::write(content.join("etc/wgetrc"), "tries = 1\n")?;
    for (from, name) in OTHERS {
        install(root, from, name, content)?;
    }
    Ok(())
}

/// Copies a program of the packages and its libraries. Replaces a link to busybox.
fn install(root: &Path, from: &str, name: &str, content: &Path) -> Result<()> {
    let (program, to) = (root.join(from), content.join("bin").join(name));
    if to.is_symlink() {
        fs::remove_file(&to)?;
    }
    copy(&program, &to)?;
    for library in libraries::below(root, &program)? {
        copy(&library, &content.join("lib").join(library.file_name().unwrap_or_default()))?;
    }
    Ok(())
}
