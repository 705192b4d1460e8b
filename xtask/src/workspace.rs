//! The workspace's folders, and Cargo commands for it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use fs_err as fs;

/// The checkout, and the build folder.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// The folder of the workspace's `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// Cargo's build folder: `CARGO_TARGET_DIR`, or `target` below the root.
    pub(crate) target: PathBuf,
    /// The `cargo` that started this program, or the one on the path.
    cargo: PathBuf,
}

/// Where the repository and its releases are.
pub(crate) const PLACE: &str = "https://example.com/topo-lb";

/// Cargo's variable.
pub(crate) const INCREMENTAL: &str = "CARGO_INCREMENTAL";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Fast to compile, with debug assertions: for the tests and the demo.
    Dev,
    /// Optimized, for long runs and `run-agent`.
    Release,
    /// Small but slow to compile, for the image.
    Deployed,
}

impl Profile {
    /// Cargo's name of the profile.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Dev => "dev",
            Self::Release => "release",
            Self::Deployed => "deployed",
        }
    }
}

impl Workspace {
    /// Finds the workspace of this program.
    pub(crate) fn find() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("xtask is not in a workspace")?
            .to_path_buf();
        let target = match path_from("CARGO_TARGET_DIR") {
            Some(folder) => {
                env::current_dir().context("cannot read the current directory")?.join(folder)
            }
            None => root.join("target"),
        };
        let cargo = env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from);
        Ok(Self { root, target, cargo })
    }

    /// Another checkout, with the default build folder.
    pub(crate) fn at(&self, root: PathBuf) -> Self {
        Self { target: root.join("target"), root, cargo: self.cargo.clone() }
    }

    /// The eBPF object that the agent embeds.
    pub(crate) fn object(&self) -> PathBuf {
        self.target.join("bpf/topo-lb.o")
    }

    /// The eBPF object of the stress test, beside the agent's.
    pub(crate) fn reads_object(&self) -> PathBuf {
        self.object().with_file_name("topo-lb-reads.o")
    }

    /// The eBPF object whose programs say what they decide, beside the agent's.
    pub(crate) fn log_object(&self) -> PathBuf {
        self.object().with_file_name("topo-lb-log.o")
    }

    /// The path of a compiled program.
    pub(crate) fn program(&self, profile: Profile, name: &str) -> PathBuf {
        let folder = match profile {
            Profile::Dev => "debug",
            other => other.name(),
        };
        self.target.join(folder).join(name)
    }

    pub(crate) fn log(&self, step: &str) -> PathBuf {
        self.target.join("xtask").join(format!("{step}.log"))
    }

    /// A command at the root, with the environment in which xtask was started.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        restore_environment(&mut command, &self.target);
        command
    }

    /// `cargo SUBCOMMAND` for this machine's own target.
    pub(crate) fn cargo(&self, subcommand: &str) -> Command {
        let mut command = self.command(&self.cargo);
        command.arg(subcommand).env("CARGO_TARGET_DIR", &self.target);
        if env::var_os(INCREMENTAL).is_none() && !self.compiles_incrementally() {
            command.env(INCREMENTAL, "0");
        }
        if self.target != self.root.join("target") {
            // By default the agent's build script reads from `target`.
            command.env("TOPO_LB_EBPF_OBJECT", self.object());
        }
        command
    }

    /// Whether plain `cargo` has compiled the product incrementally. What changes is then compiled in a fifth of the
    /// time, but everything takes half as long again: nothing for a machine that compiles once.
    fn compiles_incrementally(&self) -> bool {
        let Ok(mut crates) = fs::read_dir(self.target.join("debug/incremental")) else {
            return false;
        };
        let is_core = |name: OsString| name.to_string_lossy().starts_with("topo_lb_core-");
        crates.any(|entry| entry.is_ok_and(|entry| is_core(entry.file_name())))
    }

    /// The `cargo` for this machine's own target.
    pub(crate) fn cargo_path(&self) -> &Path {
        &self.cargo
    }
}

/// Removes variables that `cargo run` has added for xtask. Build scripts watch some of them: each
/// change between `cargo xtask` and plain `cargo` would recompile half the tree.
pub(crate) fn restore_environment(command: &mut Command, target: &Path) {
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(added_by_cargo_run) {
            command.env_remove(name);
        }
    }
    if let Some(libraries) = env::var_os("LD_LIBRARY_PATH") {
        let kept = env::split_paths(&libraries)
            .filter(|folder| !folder.starts_with(target) && !is_rust_library_folder(folder));
        match env::join_paths(kept) {
            Ok(kept) if !kept.is_empty() => command.env("LD_LIBRARY_PATH", kept),
            _ => command.env_remove("LD_LIBRARY_PATH"),
        };
    }
    command.env("PATH", path_with_sbin(env::var_os("PATH")));
}

fn added_by_cargo_run(name: &str) -> bool {
    name == "CARGO"
        || name == "CARGO_CRATE_NAME"
        || name == "CARGO_PRIMARY_PACKAGE"
        || ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"].iter().any(|it| name.starts_with(it))
}

fn is_rust_library_folder(folder: &Path) -> bool {
    folder.ends_with("lib")
        && (folder.join("rustlib").is_dir() || folder.iter().any(|it| it == "rustlib"))
}

/// Adds `sbin` folders, with `dpkg` and our tools: `su` without a dash keeps a path without them.
fn path_with_sbin(path: Option<OsString>) -> OsString {
    let path = path.unwrap_or_default();
    let mut folders: Vec<PathBuf> = env::split_paths(&path).collect();
    for sbin in ["/usr/local/sbin", "/usr/sbin", "/sbin"] {
        if !folders.iter().any(|folder| folder == Path::new(sbin)) {
            folders.push(sbin.into());
        }
    }
    // Joining fails only for folder names with a colon, and `split_paths` returns none.
    env::join_paths(folders).unwrap_or(path)
}

/// The path in an environment variable, unless that is empty.
pub(crate) fn path_from(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Finds a program on the path, including `sbin`.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    env::split_paths(&path_with_sbin(env::var_os("PATH")))
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

/// Finds a program on the path or in the folder of `cargo install`, which may not be on the path.
pub(crate) fn find_cargo_program(name: &str) -> Option<PathBuf> {
    let installed = || Some(cargo_home()?.join("bin").join(name)).filter(|path| path.is_file());
    find_program(name).or_else(installed)
}

/// Cargo's folder for downloads and installed programs.
pub(crate) fn cargo_home() -> Option<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    home.or_else(|| Some(env::home_dir()?.join(".cargo")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sbin_is_added_once() {
        let path = path_with_sbin(Some("/usr/bin:/usr/sbin".into()));
        assert_eq!(path, "/usr/bin:/usr/sbin:/usr/local/sbin:/sbin");
        assert_eq!(path_with_sbin(Some(path.clone())), path);
    }

    #[test]
    fn only_what_cargo_run_adds_is_taken_out() {
        for name in ["CARGO", "CARGO_PKG_VERSION", "CARGO_MANIFEST_DIR", "CARGO_BIN_NAME"] {
            assert!(added_by_cargo_run(name), "{name}");
        }
        for name in ["CARGO_HOME", "CARGO_TARGET_DIR", "CARGO_TERM_COLOR", "CARGO_NET_OFFLINE"] {
            assert!(!added_by_cargo_run(name), "{name}");
        }
    }
}
