//! The content of a virtual machine: the first process, the agent, the suites, the programs that
//! they call, all their libraries, and the kernel's modules.

use fs_err as fs;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::ALL_OF_VERIFIER;
use super::cross;
use super::debian_kernel::DebianKernel;
use super::initramfs::Initramfs;
use super::modules;
use super::suites::{self, MPTCP, Scope, Suite};
use super::variants::{Cgroups, Variant};
use crate::architecture::Architecture;
use crate::libraries;
use crate::process::output_of;
use crate::suites::DATAPATH;
use crate::toolchain::Toolchain;
use crate::workspace::{Profile, Workspace, find_program};

/// `TOPO_LB_PATIENCE`: how many times slower than a real machine an emulated one may be.
const PATIENCE: u32 = 20;

/// The same of [variants](Variant): nobody waits for them, and some have many processors.
const PATIENCE_OF_VARIANTS: u32 = 60;

/// Programs of this machine that the lab calls.
const TOOLS: [&str; 2] = ["ip", "tc"];

/// Where kind has a node's cgroups.
const NESTED: &str = "/sys/fs/cgroup/docker/kind-worker";

/// The variable with what the suite `boots` expects of `topo-lb check`; `?`: anything.
const LIMITED: &str = "TOPO_LB_LIMITED";

/// The binary of the suites inside of the machine.
const SUITES: &str = "/datapath";

/// Folders that the kernel and the suites need.
const FOLDERS: [&str; 5] = ["/dev", "/proc", "/sys", "/tmp", "/run"];

/// What a virtual machine runs.
#[derive(Debug)]
pub(super) struct Programs {
    architecture: Architecture,
    suites: PathBuf,
}

impl Programs {
    /// The binary of the suites.
    pub(super) fn suites(&self) -> &Path {
        &self.suites
    }

    /// A program that Cargo has built.
    fn built(&self, workspace: &Workspace, name: &str) -> PathBuf {
        match self.architecture {
            Architecture::X86_64 => workspace.program(Profile::Dev, name),
            Architecture::Arm64 => cross::binary(workspace, name),
        }
    }

    /// A program of the system.
    fn tool(&self, workspace: &Workspace, name: &str) -> Result<PathBuf> {
        match self.architecture {
            Architecture::X86_64 => {
                find_program(name).with_context(|| format!("`{name}` is not installed"))
            }
            Architecture::Arm64 => cross::find(&cross::debian_tools(workspace)?, name),
        }
    }

    /// What the program's file in the machine has, and its libraries: where they are there, and here.
    fn files(&self, workspace: &Workspace, program: &Path) -> Result<(Vec<u8>, Libraries)> {
        if self.architecture == Architecture::X86_64 {
            let libraries = libraries::of(program)?.into_iter().map(|path| (path.clone(), path));
            return Ok((without_debug_information(workspace, program)?, libraries.collect()));
        }
        let content = fs::read(program)?;
        let mut found = Libraries::new();
        let mut open = libraries::needed(&content)?;
        while let Some(name) = open.pop() {
            let path = cross::find(&cross::debian_tools(workspace)?, &name)?;
            let place = Path::new("/lib").join(&name);
            if found.insert(place, path.clone()).is_none() {
                open.extend(libraries::needed(&fs::read(&path)?)?);
            }
        }
        Ok((content, found))
    }
}

/// Files by their places in the machine.
type Libraries = BTreeMap<PathBuf, PathBuf>;

/// Compiles the programs; `compiler` is for another architecture than this machine's.
pub(super) fn build(
    workspace: &Workspace,
    architecture: Architecture,
    compiler: &Toolchain,
) -> Result<Programs> {
    let mut suites = match architecture {
        Architecture::X86_64 => {
            crate::suites::agent(workspace)?;
            crate::suites::compile(workspace, "compiling the suites", &[DATAPATH])?
        }
        Architecture::Arm64 => cross::build(workspace, compiler)?,
    };
    let suites = suites.remove(DATAPATH).context("Cargo has built no suites")?;
    Ok(Programs { architecture, suites })
}

pub(super) fn pack(
    workspace: &Workspace,
    variant: &Variant,
    kernel: &DebianKernel,
    programs: &Programs,
    scope: Scope,
    all_of_verifier: bool,
    path: &Path,
) -> Result<()> {
    let mut inside = Initramfs::default();
    for folder in FOLDERS {
        inside.folder(Path::new(folder))?;
    }
    // The kernel opens it for the first process, before anything is mounted.
    inside.device(Path::new("/dev/console"), 5, 1)?;
    let mut libraries = BTreeMap::new();
    let mut program = |inside: &mut Initramfs, place: String, from: &Path| -> Result<()> {
        let (content, needed) = programs.files(workspace, from)?;
        libraries.extend(needed);
        inside.file(Path::new(&place), &content)
    };
    let built = |name| programs.built(workspace, name);
    program(&mut inside, "/init".to_owned(), &built("guest"))?;
    let of_machine = suites::of(scope, variant);
    if of_machine.iter().any(|suite| suite.needs_agent()) {
        program(&mut inside, "/bin/topo-lb".to_owned(), &built("topo-lb"))?;
    }
    program(&mut inside, "/bin/pod".to_owned(), &built("pod"))?;
    for tool in TOOLS {
        program(&mut inside, format!("/bin/{tool}"), &programs.tool(workspace, tool)?)?;
    }
    program(&mut inside, SUITES.to_owned(), programs.suites())?;
    for (place, library) in &libraries {
        inside.file(place, &fs::read(library)?)?;
    }
    let modules = modules::wanted(&kernel.modules)?;
    for module in &modules {
        inside.file(&module_path(&module.name), &module.content)?;
    }
    inside.file(Path::new("/topo-lb.o"), &fs::read(workspace.object())?)?;
    inside.file(Path::new("/topo-lb-reads.o"), &fs::read(workspace.reads_object())?)?;
    let modules: Vec<PathBuf> = modules.iter().map(|module| module_path(&module.name)).collect();
    inside.file(
        Path::new("/plan.json"),
        plan(variant, &modules, &of_machine, scope, all_of_verifier).to_string().as_bytes(),
    )?;

    fs::create_dir_all(path.parent().unwrap_or(path))?;
    Ok(fs::write(path, inside.finish()?)?)
}

fn module_path(name: &str) -> PathBuf {
    PathBuf::from(format!("/modules/{name}.ko"))
}

/// File systems to mount, each before those inside it: type, place and options.
fn mounts(variant: &Variant) -> Vec<[&'static str; 3]> {
    let mut mounts = vec![
        ["proc", "/proc", ""],
        ["sysfs", "/sys", ""],
        ["devtmpfs", "/dev", ""],
        ["tmpfs", "/tmp", ""],
        ["tmpfs", "/run", ""],
        ["bpf", "/sys/fs/bpf", ""],
    ];
    match variant.cgroups {
        Cgroups::Two | Cgroups::Nested => mounts.push(["cgroup2", "/sys/fs/cgroup", ""]),
        Cgroups::Beside => mounts.extend([
            ["tmpfs", "/sys/fs/cgroup", ""],
            ["cgroup", "/sys/fs/cgroup/systemd", "none,name=systemd"],
            ["cgroup", "/sys/fs/cgroup/cpu,cpuacct", "cpu,cpuacct"],
            ["cgroup", "/sys/fs/cgroup/pids", "pids"],
            ["cgroup", "/sys/fs/cgroup/net_cls,net_prio", "net_cls,net_prio"],
            ["cgroup2", "/sys/fs/cgroup/unified", ""],
        ]),
    }
    mounts.extend(variant.hidden.iter().map(|place| ["tmpfs", place, ""]));
    mounts
}

/// The file for `tests/src/bin/guest/plan.rs`.
fn plan(
    variant: &Variant,
    modules: &[PathBuf],
    suites: &[Suite],
    scope: Scope,
    all_of_verifier: bool,
) -> Value {
    let suite = |suite: &Suite| {
        json!({
            "name": suite.name,
            "program": SUITES,
            "arguments": suite.arguments(scope),
            "mptcp": suite.has_mptcp.then_some(MPTCP),
        })
    };
    let patience = if scope == Scope::Variant { PATIENCE_OF_VARIANTS } else { PATIENCE };
    json!({
        "mounts": mounts(variant),
        "nested": (variant.cgroups == Cgroups::Nested).then_some(NESTED),
        "writes": variant.writes,
        "modules": modules,
        "environment": {
            "PATH": "/bin",
            "TMPDIR": "/tmp",
            "TOPO_LB_AGENT": "/bin/topo-lb",
            "TOPO_LB_POD": "/bin/pod",
            "TOPO_LB_EBPF_OBJECT": "/topo-lb.o",
            "TOPO_LB_PATIENCE": patience.to_string(),
            ALL_OF_VERIFIER: all_of_verifier.to_string(),
            LIMITED: variant.limited.unwrap_or("?"),
        },
        "suites": suites.iter().map(suite).collect::<Vec<_>>(),
    })
}

/// The program without debug information, a tenth of the size: all files are in memory.
fn without_debug_information(workspace: &Workspace, program: &Path) -> Result<Vec<u8>> {
    let folder = workspace.target.join("virtual-machine");
    fs::create_dir_all(&folder)?;
    let stripped = folder.join("stripped");
    let mut strip = workspace.command("strip");
    strip.arg("--strip-debug").arg("-o").arg(&stripped).arg(program);
    output_of(&mut strip).with_context(|| {
        format!("`strip` of binutils fails for {}; is it installed?", program.display())
    })?;
    Ok(fs::read(&stripped)?)
}
