//! Debian's kernels, one per line (for example 6.1).

use fs_err as fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::architecture::Architecture;
use crate::cache;
use crate::debian::{self, Archive, files_ending};
use crate::process::output_of;
use crate::workspace::Workspace;

/// A line of kernels that Debian maintains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Line {
    /// Debian 11's; the oldest that topo-lb supports.
    V5_10,
    /// Debian 12's.
    V6_1,
    /// Debian 13's.
    V6_12,
    /// Debian 13's for 64-bit ARM.
    Arm64,
    /// Debian 13's with `PREEMPT_RT`.
    RealTime,
    /// The newest one of Debian 13's backports.
    Backports,
    /// The newest one of Debian's unstable suite.
    Sid,
}

impl Line {
    /// Those that every run boots, and whose verifiers' counts are kept; this machine's architecture from old to new.
    pub(crate) const ALL: [Self; 4] = [Self::V5_10, Self::V6_1, Self::V6_12, Self::Arm64];
    /// Those of this machine's architecture, from old to new.
    pub(super) const HERE: [Self; 3] = [Self::V5_10, Self::V6_1, Self::V6_12];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::V5_10 => "5.10",
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::Arm64 => "arm64",
            Self::RealTime => "6.12-rt",
            Self::Backports => "backports",
            Self::Sid => "sid",
        }
    }

    pub(super) const fn architecture(self) -> Architecture {
        match self {
            Self::Arm64 => Architecture::Arm64,
            _ => Architecture::X86_64,
        }
    }

    /// The flavour of its package: Debian's small one for virtual machines if there is a choice.
    const fn flavour(self) -> &'static str {
        match self {
            Self::RealTime => "rt",
            _ => "cloud",
        }
    }

    pub(super) const fn suite(self) -> &'static str {
        match self {
            Self::V5_10 => "bullseye",
            Self::V6_1 => "bookworm",
            Self::V6_12 | Self::Arm64 | Self::RealTime => "trixie",
            Self::Backports => "trixie-backports",
            Self::Sid => "sid",
        }
    }

    /// The name in the user's cache.
    fn folder(self) -> String {
        format!("kernels/{}", self.name())
    }
}

/// An unpacked kernel.
#[derive(Debug)]
pub(super) struct DebianKernel {
    /// `uname -r`.
    pub(super) release: String,
    pub(super) image: PathBuf,
    /// The folder of its modules.
    pub(super) modules: PathBuf,
}

/// Whether these kernels are cached, or can be downloaded.
pub(super) fn are_obtainable(lines: &[Line]) -> bool {
    debian::is_obtainable() || lines.iter().all(|line| cache::has(&line.folder()))
}

/// The kernel of a line. Downloads it if necessary.
pub(super) fn ready(workspace: &Workspace, line: Line) -> Result<DebianKernel> {
    let folder = cache::folder(&line.folder())?;
    cache::make_once(&folder, |room| download(workspace, line, room))?;
    unpacked(&folder)
        .with_context(|| format!("remove {}, which is no kernel, and try again", folder.display()))
}

/// Downloads and unpacks a line's newest kernel. Returns its folder.
fn download(workspace: &Workspace, line: Line, room: &Path) -> Result<PathBuf> {
    let suite = line.suite();
    let architecture = line.architecture().name();
    // Depends on the suite's newest kernel of the flavour.
    let meta_package = format!("linux-image-{}-{architecture}", line.flavour());
    let sources = match line {
        // Neither has security fixes of its own.
        Line::Backports | Line::Sid => vec![debian::source("deb", "debian", suite)],
        _ => debian::sources(suite).into(),
    };
    let archive = Archive::open_for(workspace, room, "kernel", &sources, architecture)?;
    let depends = |package: &str| {
        let mut show = archive.apt("apt-cache", &["--no-all-versions", "show", package]);
        output_of(&mut show).map(|shown| parts(&shown))
    };
    let packages_of = |package: &str| -> Option<Vec<String>> {
        let image = depends(package)?.into_iter().find(|it| it.starts_with(IMAGE))?;
        // Since 7.0 the image's package is empty, and depends on those of the kernel and its modules.
        let others = depends(&image)?.into_iter().filter(|it| !it.starts_with(IMAGE));
        Some([image.clone()].into_iter().chain(others).collect())
    };
    let names = packages_of(&meta_package).with_context(|| {
        format!("Debian's {suite} has no {meta_package} that depends on a kernel")
    })?;
    let packages = room.join("packages");
    fs::create_dir_all(&packages)?;
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    archive.download(&format!("{} of Debian's {suite}", names[0]), &names, &packages)?;
    let root = room.join("root");
    archive.unpack("unpacking it", &packages, &root)?;
    // apt has verified the packages; this records which ones ran.
    let files = files_ending(&packages, ".deb")?;
    let mut sum = workspace.command("sha256sum");
    sum.args(files.iter().filter_map(|path| path.file_name())).current_dir(&packages);
    let sum = output_of(&mut sum);
    fs::write(root.join("SHA256SUM"), sum.context("sha256sum fails")?)?;
    Ok(root)
}

/// How the names of packages with kernels begin.
const IMAGE: &str = "linux-image-";

/// How the names of packages with what a kernel consists of begin.
const PARTS: [&str; 4] = [IMAGE, "linux-base-", "linux-binary-", "linux-modules-"];

/// The packages with a kernel's parts, from `apt-cache show` of one that depends on them.
fn parts(shown: &str) -> Vec<String> {
    let depends = shown.lines().find_map(|line| line.strip_prefix("Depends: ")).unwrap_or_default();
    let names = depends.split([',', '|']).filter_map(|name| name.split_whitespace().next());
    names
        .filter(|name| PARTS.iter().any(|part| name.starts_with(part)))
        .map(str::to_owned)
        .collect()
}

fn unpacked(root: &Path) -> Result<DebianKernel> {
    // Debian 13 has merged /lib into /usr/lib.
    let places = ["lib/modules", "usr/lib/modules"].map(|place| root.join(place));
    let folder = places.into_iter().find(|place| place.is_dir()).context("it has no modules")?;
    let mut found = debian::entries(&folder)?;
    ensure!(found.len() == 1, "{} kernels in {}", found.len(), folder.display());
    let modules = found.pop().context("one kernel")?;
    let release = modules.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // Since 7.0 the kernel is beside its modules.
    let images = [root.join("boot").join(format!("vmlinuz-{release}")), modules.join("vmlinuz")];
    let image = images.into_iter().find(|path| path.is_file());
    let image = image.with_context(|| format!("it has no kernel {release}"))?;
    Ok(DebianKernel { release, image, modules })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_what_the_packages_depend_on() {
        let shown = "Package: linux-image-cloud-amd64\nSource: linux-signed-amd64\n\
                     Depends: linux-image-6.1.0-56-cloud-amd64 (= 6.1.192-2)\n\
                     Description: Linux for cloud\n";
        assert_eq!(parts(shown), ["linux-image-6.1.0-56-cloud-amd64"]);
        let split = "Package: linux-image-7.2-cloud-amd64\nDepends: dracut | initramfs-tools (>= 0.120), \
                     linux-base-7.2-cloud-amd64 (= 7.2), linux-binary-7.2-cloud-amd64 (= 7.2), \
                     linux-modules-7.2-cloud-amd64 (= 7.2)\n";
        let names =
            ["base", "binary", "modules"].map(|part| format!("linux-{part}-7.2-cloud-amd64"));
        assert_eq!(parts(split), names);
        assert!(parts("Package: x\nDepends: libc6 (>= 2), y\n").is_empty());
        assert!(parts("").is_empty());
    }

    #[test]
    fn image_and_modules_are_found_wherever_the_package_has_them() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for folder in ["boot", "usr/lib/modules/6.12.1-cloud-amd64"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        assert!(unpacked(root).is_err());
        fs::write(root.join("boot/vmlinuz-6.12.1-cloud-amd64"), "").unwrap();
        let kernel = unpacked(root).unwrap();
        assert_eq!(kernel.release, "6.12.1-cloud-amd64");
        assert!(kernel.modules.ends_with("usr/lib/modules/6.12.1-cloud-amd64"));
        fs::rename(kernel.image, kernel.modules.join("vmlinuz")).unwrap();
        assert!(unpacked(root).unwrap().image.starts_with(kernel.modules));
    }
}
