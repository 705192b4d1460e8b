//! Builds Kubernetes from Debian's source package: downloads, unpacks and compiles it below one
//! folder, with a Go unpacked there too. Installs nothing.

use fs_err as fs;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::debian::{self, Archive, entries, files_ending};
use crate::process::{output_of, run_logged};
use crate::workspace::Workspace;

/// The version of Kubernetes; Debian 12's package has another version number.
pub(crate) const VERSION: &str = "1.20.2";

/// The last suite of Debian with this source package; the machine may run another.
const SUITE: &str = "bookworm";

/// Go, and the replacement of a vendored library.
const TO_COMPILE: [&str; 3] =
    ["golang-1.19-go", "golang-1.19-src", "golang-github-modern-go-reflect2-dev"];

/// Marks a package with types that need generated descriptions.
const OPENAPI_MARKER: &str = "+k8s:openapi-gen=true";

/// A build below one folder. Skips parts that an earlier attempt has finished.
#[derive(Debug)]
pub(crate) struct Build<'a> {
    workspace: &'a Workspace,
    folder: PathBuf,
    /// The prefix of its logs' names.
    log: &'static str,
}

impl<'a> Build<'a> {
    pub(crate) fn new(workspace: &'a Workspace, folder: &Path, log: &'static str) -> Self {
        Self { workspace, folder: folder.to_path_buf(), log }
    }

    /// Builds etcd, kube-apiserver and kube-controller-manager, and returns their folder.
    pub(crate) fn control_plane(&self) -> Result<PathBuf> {
        self.with_control_plane(&[])
    }

    /// Builds these packages, too.
    fn with_control_plane(&self, others: &[&str]) -> Result<PathBuf> {
        let programs = self.prepare(&["etcd-server"])?;
        self.describe_types()?;
        let own = ["./cmd/kube-apiserver", "./cmd/kube-controller-manager"];
        self.compile(&[&own, others].concat(), &programs)?;
        let etcd = self.folder.join("root/usr/bin/etcd");
        fs::copy(&etcd, programs.join("etcd"))?;
        Ok(programs)
    }

    /// Builds kube-proxy, and returns its folder.
    pub(crate) fn kube_proxy(&self) -> Result<PathBuf> {
        let programs = self.prepare(&[])?;
        self.compile(&["./cmd/kube-proxy"], &programs)?;
        Ok(programs)
    }

    /// Builds the programs of a whole cluster, and those of its images: pause and agnhost. Returns
    /// their folder.
    pub(crate) fn cluster(&self) -> Result<PathBuf> {
        let programs = self.with_control_plane(&[
            "./cmd/kube-scheduler",
            "./cmd/kube-proxy",
            "./cmd/kubelet",
            "./test/images/agnhost",
        ])?;
        for file in ["localhost.crt", "localhost.key"] {
            fs::copy(
                self.source().join("test/images/agnhost/porter").join(file),
                programs.join(file),
            )?;
        }
        self.pause(&programs)?;
        Ok(programs)
    }

    /// Builds Kubernetes' own tests and the kubectl that they call. Returns their folder.
    pub(crate) fn tests(&self) -> Result<PathBuf> {
        let tests = self.folder.join("tests");
        fs::create_dir_all(&tests)?;
        self.prepare(&[])?;
        self.compile(&["./cmd/kubectl"], &tests)?;
        self.embed_test_files()?;
        let (partial, path) = (self.folder.join("e2e.test.partial"), tests.join("e2e.test"));
        if !path.is_file() {
            let mut command = self.go();
            command.args(["test", "-c", "-ldflags", &linking(), "-o"]).arg(&partial);
            command.arg("./test/e2e");
            self.step(&format!("compiling e2e.test {VERSION}"), "e2e.test", &mut command)?;
            fs::rename(&partial, &path)?;
        }
        Ok(tests)
    }

    /// Downloads the sources, a compiler and these packages. Returns the folder for programs.
    fn prepare(&self, packages: &[&str]) -> Result<PathBuf> {
        let programs = self.folder.join("programs");
        fs::create_dir_all(&programs)?;
        self.download(&[packages, &TO_COMPILE].concat())?;
        self.once("go/src/k8s.io/kubernetes", |source| self.unpack_source(source))?;
        Ok(programs)
    }

    /// Makes a folder with `work` under another name, and renames it once it is complete.
    fn once(&self, name: &str, work: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let folder = self.folder.join(name);
        if folder.is_dir() {
            return Ok(());
        }
        let partial = self.folder.join(format!("{name}.partial"));
        if partial.exists() {
            fs::remove_dir_all(&partial)?;
        }
        fs::create_dir_all(partial.parent().unwrap_or(&partial))?;
        work(&partial)?;
        Ok(fs::rename(&partial, &folder)?)
    }

    /// Downloads everything from Debian, and unpacks the programs.
    fn download(&self, packages: &[&str]) -> Result<()> {
        let sources = ["deb", "deb-src"].map(|kind| debian::source(kind, "debian", SUITE));
        let downloads = self.folder.join("downloads");
        let root = self.folder.join("root");
        if downloads.is_dir() && root.is_dir() {
            return Ok(());
        }
        let archive = Archive::open(self.workspace, &self.folder, self.log, &sources)?;
        self.once("downloads", |folder| {
            fs::create_dir_all(folder)?;
            archive.download(&format!("{} from Debian", packages.join(", ")), packages, folder)?;
            let arguments = ["source", "--download-only", "kubernetes"];
            let mut source = archive.apt("apt-get", &arguments);
            archive.step("Kubernetes' source", "source", source.current_dir(folder))
        })?;
        self.once("root", |root| archive.unpack("unpacking Debian's packages", &downloads, root))
    }

    fn unpack_source(&self, source: &Path) -> Result<()> {
        let Some(description) = files_ending(&self.folder.join("downloads"), ".dsc")?.pop() else {
            bail!(
                "apt-get has downloaded no source; remove {} and try again",
                self.folder.display()
            )
        };
        // Applies Debian's patches and security fixes. apt has verified the checksums.
        let mut command = self.workspace.command("dpkg-source");
        command.args(["--no-check", "--extract"]).arg(description).arg(source);
        self.step("unpacking Kubernetes' source", "unpack-source", &mut command)?;
        self.replace_reflect2(&source.join("vendor/github.com/modern-go/reflect2"))
    }

    /// Replaces the vendored reflect2 1.0.1 by 1.0.2: 1.0.1 corrupts memory with Go 1.18 and later
    /// ("unexpected fault address", within seconds).
    fn replace_reflect2(&self, vendored: &Path) -> Result<()> {
        let debian = self.folder.join("root/usr/share/gocode/src/github.com/modern-go/reflect2");
        let is_code = |path: &Path| path.extension().is_some_and(|it| it == "go" || it == "s");
        for old in entries(vendored)?.iter().filter(|path| is_code(path)) {
            fs::remove_file(old)?;
        }
        for new in entries(&debian)?.iter().filter(|path| is_code(path)) {
            fs::copy(new, vendored.join(new.file_name().unwrap_or_default()))?;
        }
        Ok(())
    }

    /// Generates the descriptions of all types, which the source package lacks.
    fn describe_types(&self) -> Result<()> {
        let source = self.source();
        let generated = source.join("pkg/generated/openapi/zz_generated.openapi.go");
        if generated.is_file() {
            return Ok(());
        }
        let generator = self.folder.join("openapi-gen");
        let mut compile = self.go();
        compile.arg("build").arg("-o").arg(&generator);
        compile.arg("./vendor/k8s.io/kube-openapi/cmd/openapi-gen");
        self.step("compiling the generator of type descriptions", "openapi-gen", &mut compile)?;

        let packages = described_packages(&source)?;
        // Generates into another folder first, so that a file with the final name is complete.
        let output = self.folder.join("generated");
        let mut generate = self.command(&generator);
        generate
            .args(["--logtostderr", "-O", "zz_generated.openapi", "-h", "/dev/null"])
            .args(["-p", "k8s.io/kubernetes/pkg/generated/openapi", "--output-base"])
            .arg(&output)
            .arg("-i")
            .arg(packages.into_iter().collect::<Vec<_>>().join(","))
            .arg("-r")
            .arg(self.folder.join("openapi-violations.txt"));
        self.step("generating type descriptions", "openapi", &mut generate)?;
        let written = output
            .join("k8s.io/kubernetes/pkg/generated/openapi")
            .join(generated.file_name().unwrap_or_default());
        Ok(fs::rename(&written, &generated)?)
    }

    /// Compiles the programs of packages that are not there yet. By one command, as one links while others compile.
    fn compile(&self, packages: &[&str], programs: &Path) -> Result<()> {
        let name = |package: &str| package.rsplit('/').next().unwrap_or_default().to_owned();
        let is_missing = |package: &&str| !programs.join(name(package)).is_file();
        let missing: Vec<&str> = packages.iter().copied().filter(is_missing).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let partial = self.folder.join("partial");
        fs::create_dir_all(&partial)?;
        let mut command = self.go();
        // `-o` with a slash at its end is a folder.
        command.arg("build").arg("-o").arg(partial.join("")).args(["-ldflags", &linking()]);
        command.args(&missing);
        let names: Vec<_> = missing.iter().map(|package| name(package)).collect();
        let title = format!("compiling {} of Kubernetes {VERSION}", names.join(", "));
        self.step(&title, "compile", &mut command)?;
        for name in names {
            fs::rename(partial.join(&name), programs.join(&name))?;
        }
        Ok(())
    }

    /// Generates the files that the tests contain, which the source package lacks.
    /// The arguments are those of Kubernetes' `hack/generate-bindata.sh`.
    fn embed_test_files(&self) -> Result<()> {
        let generated = self.source().join("test/e2e/generated/bindata.go");
        if generated.is_file() {
            return Ok(());
        }
        let (generator, partial) = (self.folder.join("go-bindata"), self.folder.join("bindata.go"));
        let mut compile = self.go();
        compile.arg("build").arg("-o").arg(&generator);
        compile.arg("./vendor/github.com/go-bindata/go-bindata/go-bindata");
        self.step("compiling the generator of the tests' files", "go-bindata", &mut compile)?;
        let mut generate = self.command(&generator);
        generate.args(["-nometadata", "-pkg", "generated", "-o"]).arg(&partial);
        generate
            .args([".jpg", ".png", ".md", r"BUILD(\.bazel)?"].map(|it| ["-ignore", it]).concat());
        generate.args(["test/conformance/testdata/...", "test/e2e/testing-manifests/..."]);
        generate.args([
            "test/e2e_node/testing-manifests/...",
            "test/images/...",
            "test/fixtures/...",
        ]);
        self.step("generating the tests' files", "bindata", &mut generate)?;
        Ok(fs::rename(&partial, &generated)?)
    }

    /// Compiles the program that holds a Pod's namespaces, as one file without libraries.
    fn pause(&self, programs: &Path) -> Result<()> {
        let path = programs.join("pause");
        if path.is_file() {
            return Ok(());
        }
        let partial = self.folder.join("pause.partial");
        let mut command = self.workspace.command("cc");
        command.current_dir(self.source()).args(["-Os", "-static", "-s", "-DVERSION=v3.2", "-o"]);
        command.arg(&partial).arg("build/pause/linux/pause.c");
        self.step("compiling pause", "pause", &mut command)?;
        Ok(fs::rename(&partial, &path)?)
    }

    fn source(&self) -> PathBuf {
        self.folder.join("go/src/k8s.io/kubernetes")
    }

    fn go(&self) -> Command {
        self.command(&self.folder.join("root/usr/lib/go-1.19/bin/go"))
    }

    /// A command at the root of the source, with this folder's Go and without the user's settings.
    fn command(&self, program: &Path) -> Command {
        let mut command = self.workspace.command(program);
        command
            .current_dir(self.source())
            .env("GOROOT", self.folder.join("root/usr/lib/go-1.19"))
            .env("GOPATH", self.folder.join("go"))
            .env("GOCACHE", self.folder.join("compiled"))
            .env("GOENV", "off")
            // Nobody debugs these programs, and the compiler may take more memory than time.
            .env("GOFLAGS", "-gcflags=all=-dwarf=false")
            .env("GOGC", "400")
            .env("GO111MODULE", "off")
            .env("CGO_ENABLED", "0")
            .env("PATH", self.path());
        command
    }

    /// The generator calls `go`.
    fn path(&self) -> std::ffi::OsString {
        let mut path = self.folder.join("root/usr/lib/go-1.19/bin").into_os_string();
        path.push(":/usr/bin:/bin");
        path
    }

    fn step(&self, title: &str, log: &str, command: &mut Command) -> Result<()> {
        let log = self.workspace.log(&format!("{}-{log}", self.log));
        run_logged(title, command, &log)
    }
}

/// The linker's flags: the version, and no symbols.
fn linking() -> String {
    let minor = VERSION.split('.').nth(1).unwrap_or_default();
    // What `--version` prints, and what the API server says.
    let flags = ["component-base/version", "client-go/pkg/version"].map(|package| {
        let version = format!("-X k8s.io/kubernetes/vendor/k8s.io/{package}");
        format!("{version}.gitMajor=1 {version}.gitMinor={minor} {version}.gitVersion=v{VERSION}")
    });
    format!("-s -w {}", flags.join(" "))
}

/// The import paths of packages with the marker in a Go file that is neither a test nor generated.
fn described_packages(source: &Path) -> Result<BTreeSet<String>> {
    let mut grep = Command::new("grep");
    // Follows no links: vendored packages are links to the staged ones.
    grep.args(["--recursive", "--files-with-matches", "--fixed-strings", OPENAPI_MARKER])
        .args(["--include=*.go", "--exclude=*_test.go", "--exclude=*zz_generated*"])
        .args(["--exclude-dir=testdata", "pkg", "staging/src/k8s.io"])
        .current_dir(source);
    let files = output_of(&mut grep).context("no package says that its types are described")?;
    let folders = files.lines().filter_map(|file| Some(file.rsplit_once('/')?.0));
    let import = |folder: &str| match folder.strip_prefix("staging/src/") {
        Some(staged) => staged.to_owned(),
        None => format!("k8s.io/kubernetes/{folder}"),
    };
    Ok(folders.map(import).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_described_that_have_the_marker_in_code_that_somebody_wrote() {
        let folder = tempfile::tempdir().unwrap();
        let marked = format!("// {OPENAPI_MARKER}\npackage v1\n");
        for (file, text) in [
            ("pkg/api/doc.go", marked.as_str()),
            ("pkg/plain/doc.go", "package plain\n"),
            ("pkg/tested/any_test.go", &marked),
            ("pkg/made/zz_generated.openapi.go", &marked),
            ("pkg/deep/testdata/doc.go", &marked),
            ("staging/src/k8s.io/api/core/v1/types.go", &marked),
            ("staging/src/k8s.io/api/core/v1/doc.go", &marked),
        ] {
            let file = folder.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let packages: Vec<_> = described_packages(folder.path()).unwrap().into_iter().collect();
        assert_eq!(packages, ["k8s.io/api/core/v1", "k8s.io/kubernetes/pkg/api"]);
    }
}
