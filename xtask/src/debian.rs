//! Debian's archive, independent of the machine's packages: downloaded and unpacked below a folder,
//! never installed. apt verifies downloads with the archive's signature.

use fs_err as fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::process::{run_logged, to_log};
use crate::progress::Running;
use crate::workspace::{Workspace, find_program};

/// The keys that sign the archive.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Whether this machine has the tools. Needs neither root nor an installation.
pub(crate) fn is_obtainable() -> bool {
    ["apt-get", "apt-cache", "dpkg-deb"].iter().all(|it| find_program(it).is_some())
        && Path::new(KEYRING).is_file()
}

/// Whether this is Debian 12; its packages are known to build everything.
pub(crate) fn is_12() -> bool {
    is_12_by(&fs::read_to_string("/etc/os-release").unwrap_or_default())
}

/// Parses `/etc/os-release` (os-release(5)).
fn is_12_by(text: &str) -> bool {
    let field = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        value.map(|value| value.trim_matches('"'))
    };
    field("ID") == Some("debian") && field("VERSION_ID") == Some("12")
}

/// A line of `sources.list` (sources.list(5)): `kind` is `deb` or `deb-src`, `repository` is
/// `debian` or `debian-security`.
pub(crate) fn source(kind: &str, repository: &str, suite: &str) -> String {
    format!("{kind} [signed-by={KEYRING}] http://deb.debian.org/{repository} {suite} main\n")
}

/// The sources of a suite's packages, with its security fixes.
pub(crate) fn sources(suite: &str) -> [String; 2] {
    let security = format!("{suite}-security");
    [source("deb", "debian", suite), source("deb", "debian-security", &security)]
}

/// An apt that ignores the system's lists and sources, and writes only below a folder.
#[derive(Debug)]
pub(crate) struct Archive<'a> {
    workspace: &'a Workspace,
    folder: PathBuf,
    /// The prefix of its logs' names.
    log: &'static str,
    /// Debian's name of an architecture, if it ignores what is installed here.
    architecture: Option<&'static str>,
}

impl<'a> Archive<'a> {
    /// Writes the sources, and downloads their lists.
    pub(crate) fn open(
        workspace: &'a Workspace,
        folder: &Path,
        log: &'static str,
        sources: &[String],
    ) -> Result<Self> {
        Self { workspace, folder: folder.join("apt"), log, architecture: None }.update(sources)
    }

    /// Like [`open`](Self::open), for packages of any architecture. Ignores what is installed here.
    pub(crate) fn open_for(
        workspace: &'a Workspace,
        folder: &Path,
        log: &'static str,
        sources: &[String],
        architecture: &'static str,
    ) -> Result<Self> {
        let architecture = Some(architecture);
        Self { workspace, folder: folder.join("apt"), log, architecture }.update(sources)
    }

    fn update(self, sources: &[String]) -> Result<Self> {
        for place in ["lists/partial", "archives/partial"] {
            fs::create_dir_all(self.folder.join(place))?;
        }
        let path = self.folder.join("sources.list");
        fs::write(&path, sources.concat())?;
        let mut update = self.apt("apt-get", &["update"]);
        self.step("Debian's package lists, apart from the system's", "lists", &mut update)?;
        Ok(self)
    }

    /// A program of apt, `apt-get` or `apt-cache`.
    pub(crate) fn apt(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = self.workspace.command(program);
        for (name, place) in [
            ("Dir::Etc::sourcelist", self.folder.join("sources.list")),
            ("Dir::Etc::sourceparts", PathBuf::from("/dev/null")),
            ("Dir::State::lists", self.folder.join("lists")),
            ("Dir::Cache", self.folder.clone()),
        ] {
            command.arg("-o").arg(format!("{name}={}", place.display()));
        }
        if let Some(architecture) = self.architecture {
            for name in ["APT::Architecture", "APT::Architectures"] {
                command.arg("-o").arg(format!("{name}={architecture}"));
            }
            command.args(["-o", "Dir::State::status=/dev/null"]);
        }
        // Otherwise root's apt downloads as a user that cannot write here.
        let user = "APT::Sandbox::User=root";
        let yes = "APT::Get::Assume-Yes=true";
        command.args(["-o", user, "-o", yes, "-o", "Acquire::Retries=3"]).args(arguments);
        command
    }

    pub(crate) fn download(&self, title: &str, packages: &[&str], into: &Path) -> Result<()> {
        let mut download = self.apt("apt-get", &["download"]);
        download.args(packages).current_dir(into);
        self.step(title, "packages", &mut download)
    }

    /// Downloads packages and their dependencies, except those installed here. Returns their folder.
    pub(crate) fn download_with_dependencies(
        &self,
        title: &str,
        packages: &[&str],
    ) -> Result<PathBuf> {
        // Nothing is installed, so another apt may run at the same time.
        let lock = ["-o", "Debug::NoLocking=true"];
        let mut download = self.apt("apt-get", &lock);
        download.args(["install", "--download-only", "--no-install-recommends"]);
        download.args(packages);
        self.step(title, "packages", &mut download)?;
        Ok(self.folder.join("archives"))
    }

    /// Unpacks all packages of a folder.
    pub(crate) fn unpack(&self, title: &str, packages: &Path, root: &Path) -> Result<()> {
        let log = self.workspace.log(&format!("{}-unpack", self.log));
        let running = Running::start(title);
        let result = files_ending(packages, ".deb")?.iter().try_for_each(|package| {
            let mut command = self.workspace.command("dpkg-deb");
            command.arg("--extract").arg(package).arg(root);
            to_log(&mut command, &log, None, |_| ())
        });
        running.end(result.is_ok());
        result
    }

    /// Runs a command with its output in a log.
    pub(crate) fn step(&self, title: &str, log: &str, command: &mut Command) -> Result<()> {
        let log = self.workspace.log(&format!("{}-{log}", self.log));
        run_logged(title, command, &log)
    }
}

/// The files of a folder with this end of their names, sorted.
pub(crate) fn files_ending(folder: &Path, end: &str) -> Result<Vec<PathBuf>> {
    let mut found = entries(folder)?;
    found.retain(|path| path.to_string_lossy().ends_with(end));
    found.sort();
    Ok(found)
}

/// The entries of a folder.
pub(crate) fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debian_12_is_told_from_its_relatives() {
        assert!(is_12_by("PRETTY_NAME=\"Debian\"\nVERSION_ID=\"12\"\nID=debian\n"));
        assert!(!is_12_by("VERSION_ID=\"13\"\nID=debian\n"));
        assert!(!is_12_by("VERSION_ID=\"12\"\nID=devuan\nID_LIKE=debian\n"));
        assert!(!is_12_by(""));
    }
}
