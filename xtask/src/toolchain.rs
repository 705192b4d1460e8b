//! Rust compilers, and which of them can compile the eBPF programs.
//!
//! `bpfel-unknown-none` has no compiled `core`: the compiler needs the sources of the standard
//! library, and `bpf-linker` must use the same LLVM as the compiler, because they exchange bitcode.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::libraries;
use crate::process::output_of;

/// The oldest compiler that builds this workspace: its `rust-version`.
pub(crate) const OLDEST: &str = env!("CARGO_PKG_RUST_VERSION");

/// A folder with a `rustc` and its `cargo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Toolchain {
    pub(crate) bin: PathBuf,
    /// rustup's name for it; `None` if it is not rustup's.
    pub(crate) rustup_name: Option<String>,
    /// (major, minor) of its `rustc`.
    pub(crate) release: (u32, u32),
    /// The LLVM major version inside its `rustc`.
    pub(crate) llvm: u32,
    /// Whether it has the sources of the standard library.
    pub(crate) sources: bool,
    /// Whether it has `cargo-clippy`.
    pub(crate) clippy: bool,
}

/// The installed `bpf-linker`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Linker {
    pub(crate) path: PathBuf,
    /// For example `0.13.0`.
    pub(crate) version: String,
    /// The LLVM major version that it links; `None` if LLVM is linked statically.
    pub(crate) llvm: Option<u32>,
}

impl Toolchain {
    /// Inspects a folder. `None` without a working compiler and a Cargo.
    pub(crate) fn inspect(bin: &Path, rustup_name: Option<&str>) -> Option<Self> {
        let rustc = bin.join("rustc");
        if !bin.join("cargo").is_file() {
            return None;
        }
        let (release, llvm) = release_and_llvm(&output_of(Command::new(&rustc).arg("-vV"))?)?;
        let sysroot = output_of(Command::new(&rustc).args(["--print", "sysroot"]))?;
        let library = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library");
        Some(Self {
            bin: bin.to_path_buf(),
            rustup_name: rustup_name.map(str::to_owned),
            release,
            llvm,
            sources: library.join("core/src/lib.rs").is_file(),
            clippy: bin.join("cargo-clippy").is_file() && bin.join("clippy-driver").is_file(),
        })
    }

    /// Whether it is recent enough, and has the sources of `core`.
    pub(crate) fn compiles_core(&self) -> bool {
        self.sources && release(OLDEST).is_none_or(|oldest| self.release >= oldest)
    }

    pub(crate) fn display(&self) -> String {
        let (major, minor) = self.release;
        match &self.rustup_name {
            Some(name) => format!("rustc {major}.{minor} of rustup's {name}"),
            None => format!("rustc {major}.{minor} in {}", self.bin.display()),
        }
    }
}

impl Linker {
    /// Inspects an installed linker. `None` if it does not run.
    pub(crate) fn inspect(path: &Path) -> Option<Self> {
        let version = output_of(Command::new(path).arg("--version"))?;
        // A statically linked one has none, and does not show its LLVM.
        let libraries = libraries::of(path).unwrap_or_default();
        Some(Self {
            path: path.to_path_buf(),
            version: version.split_whitespace().nth(1)?.to_owned(),
            llvm: llvm_of_libraries(&libraries),
        })
    }

    /// Whether it can read the compiler's output. If its LLVM is unknown, linking will show it.
    pub(crate) fn fits(&self, toolchain: &Toolchain) -> bool {
        self.llvm.is_none_or(|llvm| llvm == toolchain.llvm)
    }
}

/// rustup's nightlies, newest first: plain `nightly` is newer than those with a date.
pub(crate) fn nightlies(rustup: &Path) -> Vec<Toolchain> {
    let list = output_of(Command::new(rustup).args(["toolchain", "list", "-v"]));
    nightly_folders(&list.unwrap_or_default())
        .into_iter()
        .filter_map(|(name, folder)| Toolchain::inspect(&folder.join("bin"), Some(&name)))
        .collect()
}

/// Parses `rustup toolchain list -v`: name first, folder last.
fn nightly_folders(list: &str) -> Vec<(String, PathBuf)> {
    let mut found: Vec<(String, PathBuf)> = list
        .lines()
        .filter(|line| line.starts_with("nightly"))
        .filter_map(|line| {
            let (name, rest) = line.split_once(char::is_whitespace)?;
            // The folder is the first word with a slash; it may contain blanks.
            let folder = &rest[rest.find('/')?..];
            Some((name.to_owned(), PathBuf::from(folder.trim_end())))
        })
        .collect();
    // Sorts `nightly-x86_64-…` before `nightly-2026-…`, and later dates before earlier ones.
    found.sort_by(|left, right| right.0.cmp(&left.0));
    found
}

/// Parses `rustc -vV`.
fn release_and_llvm(text: &str) -> Option<((u32, u32), u32)> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let llvm = field("LLVM version:")?.split('.').next()?.parse().ok()?;
    Some((release(field("release:")?)?, llvm))
}

/// (major, minor) of a version.
fn release(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Parses a name such as `libLLVM.so.22.1`.
fn llvm_of_libraries(libraries: &[PathBuf]) -> Option<u32> {
    let names = libraries.iter().filter_map(|library| library.file_name()?.to_str());
    names
        .filter_map(|name| name.strip_prefix("libLLVM.so.").or(name.strip_prefix("libLLVM-")))
        .find_map(|version| version.split('.').next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUSTC: &str = "\
rustc 1.96.0 (ac68faa20 2026-05-25) (built from a source tarball)
binary: rustc
host: x86_64-unknown-linux-gnu
release: 1.96.0
LLVM version: 22.1.8
";

    #[test]
    fn a_compiler_tells_its_release_and_its_llvm() {
        assert_eq!(release_and_llvm(RUSTC), Some(((1, 96), 22)));
        let nightly = "release: 1.97.0-nightly\nLLVM version: 22.1.4\n";
        assert_eq!(release_and_llvm(nightly), Some(((1, 97), 22)));
        assert_eq!(release_and_llvm("release: 1.96.0\n"), None);
    }

    #[test]
    fn the_workspace_says_which_compiler_is_the_oldest() {
        assert!(release(OLDEST) >= Some((1, 95)), "{OLDEST}");
    }

    #[test]
    fn nightlies_are_found_newest_first() {
        let list = "\
stable-x86_64-unknown-linux-gnu (active, default) /root/.rustup/toolchains/stable
nightly-2026-01-02-x86_64-unknown-linux-gnu /home/me/.rustup/toolchains/nightly-2026-01-02
nightly-x86_64-unknown-linux-gnu (override) /home/two words/nightly
nightly-2026-03-04-x86_64-unknown-linux-gnu\t/home/me/.rustup/toolchains/nightly-2026-03-04
";
        let folders: Vec<_> = nightly_folders(list).into_iter().map(|(_, folder)| folder).collect();
        let expected = [
            "/home/two words/nightly",
            "/home/me/.rustup/toolchains/nightly-2026-03-04",
            "/home/me/.rustup/toolchains/nightly-2026-01-02",
        ];
        assert_eq!(folders, expected.map(PathBuf::from));
    }

    #[test]
    fn a_linker_tells_its_llvm_by_the_library_it_needs() {
        let of = |paths: &[&str]| {
            llvm_of_libraries(&paths.iter().map(PathBuf::from).collect::<Vec<_>>())
        };
        assert_eq!(of(&["/lib/libc.so.6", "/usr/lib/llvm-22/lib/libLLVM.so.22.1"]), Some(22));
        assert_eq!(of(&["/lib/x86_64-linux-gnu/libLLVM-17.so.1"]), Some(17));
        assert_eq!(of(&["/lib/libc.so.6"]), None);
    }
}
