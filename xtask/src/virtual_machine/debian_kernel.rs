//! Debian's kernels, one per line (for example 6.1).

use fs_err as fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use super::boot::Cores;
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
}

impl Line {
    /// All; this machine's architecture from old to new.
    pub(crate) const ALL: [Self; 4] = [Self::V5_10, Self::V6_1, Self::V6_12, Self::Arm64];
    /// Those of this machine's architecture, from old to new.
    pub(super) const HERE: [Self; 3] = [Self::V5_10, Self::V6_1, Self::V6_12];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::V5_10 => "5.10",
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::Arm64 => "arm64",
        }
    }

    pub(super) const fn architecture(self) -> Architecture {
        match self {
            Self::V5_10 | Self::V6_1 | Self::V6_12 => Architecture::X86_64,
            Self::Arm64 => Architecture::Arm64,
        }
    }

    /// The processors of its machine. One line has one: grace periods differ there.
    pub(super) const fn cores(self) -> Cores {
        match self {
            Self::V6_12 => Cores::OnePreempted,
            Self::V5_10 | Self::V6_1 | Self::Arm64 => Cores::Two,
        }
    }

    pub(super) const fn suite(self) -> &'static str {
        match self {
            Self::V5_10 => "bullseye",
            Self::V6_1 => "bookworm",
            Self::V6_12 | Self::Arm64 => "trixie",
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
    pub(super) line: Line,
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
    unpacked(line, &folder)
        .with_context(|| format!("remove {}, which is no kernel, and try again", folder.display()))
}

/// Downloads and unpacks a line's newest kernel. Returns its folder.
fn download(workspace: &Workspace, line: Line, room: &Path) -> Result<PathBuf> {
    let suite = line.suite();
    let architecture = line.architecture().name();
    // Depends on the suite's newest small kernel, which is built for virtual machines.
    let meta_package = format!("linux-image-cloud-{architecture}");
    let sources = debian::sources(suite);
    let archive = Archive::open_for(workspace, room, "kernel", &sources, architecture)?;
    let mut show = archive.apt("apt-cache", &["--no-all-versions", "show", &meta_package]);
    let shown = output_of(&mut show);
    let package = shown.as_deref().and_then(image_package).with_context(|| {
        format!("Debian's {suite} has no {meta_package} that depends on a kernel")
    })?;
    let packages = room.join("packages");
    fs::create_dir_all(&packages)?;
    archive.download(&format!("{package} of Debian's {suite}"), &[package], &packages)?;
    let root = room.join("root");
    archive.unpack("unpacking it", &packages, &root)?;
    // apt has verified the package; this records which one ran.
    let files = files_ending(&packages, ".deb")?;
    let mut sum = workspace.command("sha256sum");
    sum.args(files.iter().filter_map(|path| path.file_name())).current_dir(&packages);
    let sum = output_of(&mut sum);
    fs::write(root.join("SHA256SUM"), sum.context("sha256sum fails")?)?;
    Ok(root)
}

/// The kernel package's name, from `apt-cache show` of the meta package.
fn image_package(shown: &str) -> Option<&str> {
    let depends = shown.lines().find_map(|line| line.strip_prefix("Depends: "))?;
    let mut names = depends.split([',', '|']).filter_map(|name| name.split_whitespace().next());
    names.find(|name| name.starts_with("linux-image-"))
}

fn unpacked(line: Line, root: &Path) -> Result<DebianKernel> {
    let image = find(&root.join("boot"), "vmlinuz-")?;
    let name = image.file_name().unwrap_or_default().to_string_lossy();
    let release = name.trim_start_matches("vmlinuz-").to_owned();
    // Debian 13 has merged /lib into /usr/lib.
    let places = ["lib/modules", "usr/lib/modules"].map(|place| root.join(place).join(&release));
    let modules = places.into_iter().find(|place| place.is_dir());
    let modules = modules.with_context(|| format!("it has no modules for {release}"))?;
    Ok(DebianKernel { line, release, image, modules })
}

fn find(folder: &Path, start: &str) -> Result<PathBuf> {
    let mut found = debian::entries(folder)?;
    found.retain(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start))
    });
    ensure!(found.len() == 1, "{} files in {} begin with {start}", found.len(), folder.display());
    found.pop().context("one file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_what_the_meta_package_depends_on() {
        let shown = "Package: linux-image-cloud-amd64\nSource: linux-signed-amd64\n\
                     Depends: linux-image-6.1.0-56-cloud-amd64 (= 6.1.192-2)\n\
                     Description: Linux for cloud\n";
        assert_eq!(image_package(shown), Some("linux-image-6.1.0-56-cloud-amd64"));
        assert_eq!(image_package("Package: x\nDepends: libc6 (>= 2), y\n"), None);
        assert_eq!(image_package(""), None);
    }

    #[test]
    fn image_and_modules_are_found_wherever_the_package_has_them() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for folder in ["boot", "usr/lib/modules/6.12.1-cloud-amd64"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        assert!(unpacked(Line::V6_12, root).is_err());
        fs::write(root.join("boot/vmlinuz-6.12.1-cloud-amd64"), "").unwrap();
        let kernel = unpacked(Line::V6_12, root).unwrap();
        assert_eq!(kernel.release, "6.12.1-cloud-amd64");
        assert!(kernel.modules.ends_with("usr/lib/modules/6.12.1-cloud-amd64"));
    }
}
