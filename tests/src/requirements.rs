//! What a lab needs of the machine. If something is missing, tests fail with a reason.

use std::env;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};
use topo_lb_kernel::datapath::host::feature::{self, Feature};
use topo_lb_kernel::datapath::host::mount::check_bpffs;

use crate::cgroup;
use crate::netns::NetNs;
use crate::prefix::Prefix;

/// Where pins are.
pub const BPFFS: &str = "/sys/fs/bpf";

/// Checks that a lab can run: root, cgroup2, bpffs, `ip`.
///
/// # Errors
/// One sentence about the first missing thing and how to get it.
pub fn check() -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "the lab makes namespaces and cgroups and loads BPF programs: run it as root"
    );
    cgroup::root()?;
    check_bpffs(Path::new(BPFFS))?;
    command("ip", "iproute2")
}

/// The running kernel's version.
#[must_use]
pub fn kernel() -> (u32, u32) {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut numbers = release.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Whether the kernel has IPv6: it may have been booted with `ipv6.disable=1`.
#[must_use]
pub fn has_ipv6() -> bool {
    Path::new("/proc/net/if_inet6").exists()
}

/// Whether open TCP connections are counted here: since Linux 5.12. Some hosted kernels refuse the iterators
/// for it. Then `cargo xtask test` says what was not checked here; Debian's kernels take them.
#[must_use]
pub fn walks() -> bool {
    static WALKS: OnceLock<bool> = OnceLock::new();
    *WALKS.get_or_init(|| {
        if kernel() < (5, 12) {
            return false;
        }
        let missing = feature::lacking(Feature::WALK);
        for feature in &missing {
            // libtest keeps what is printed by macros.
            let what = "how open TCP connections are counted, as this kernel refuses";
            let _ = writeln!(io::stderr(), "\nNOT checked: {what} {feature}");
        }
        missing.is_empty()
    })
}

/// Checks that a command is installed.
///
/// # Errors
/// One sentence with the Debian package that has it.
pub fn command(name: &str, package: &str) -> Result<()> {
    // Debian has these in sbin, which is not on every user's PATH.
    let path = env::var("PATH").unwrap_or_default();
    let found = path
        .split(':')
        .chain(["/usr/sbin", "/sbin"])
        .any(|folder| Path::new(folder).join(name).is_file());
    ensure!(found, "`{name}` is not installed; on Debian: apt-get install {package}");
    Ok(())
}

/// The agent binary, named by `TOPO_LB_AGENT`. The lab runs it, and does not build it.
///
/// # Errors
/// The variable is not set, or names no file.
pub fn agent() -> Result<PathBuf> {
    named("TOPO_LB_AGENT")?.context(
        "TOPO_LB_AGENT does not name the agent binary: `cargo xtask test` sets it; by hand: \
         cargo build -p topo-lb && TOPO_LB_AGENT=$PWD/target/debug/topo-lb cargo test",
    )
}

/// The agent binary of the last release, if `TOPO_LB_LAST_RELEASE_AGENT` names it. `cargo xtask test`
/// does, if there is a release.
///
/// # Errors
/// There is no such file.
pub fn last_release() -> Result<Option<PathBuf>> {
    named("TOPO_LB_LAST_RELEASE_AGENT")
}

/// An agent whose programs log, if `TOPO_LB_LOG_AGENT` names it. `cargo xtask test` does.
///
/// # Errors
/// There is no such file.
pub fn agent_that_logs() -> Result<Option<PathBuf>> {
    named("TOPO_LB_LOG_AGENT")
}

/// The files of the packages that the suite `neighbours` takes, if `TOPO_LB_NEIGHBOURS` names their folder. `cargo xtask
/// test` does.
///
/// # Errors
/// The variable is not set, or names no folder.
pub fn neighbours() -> Result<PathBuf> {
    named("TOPO_LB_NEIGHBOURS")?.context(
        "TOPO_LB_NEIGHBOURS does not name the folder of Debian's packages: `cargo xtask test` gets them and sets it",
    )
}

/// Says that something could not be checked here. `cargo xtask test` repeats it at its end.
pub fn not_checked(what: &str) {
    // libtest keeps what is printed by macros.
    let _ = writeln!(io::stderr(), "\nNOT checked: {what}");
}

/// Whether the kernel has this kind of network devices, which `what` needs. Says so if it has not.
///
/// # Errors
/// No network namespace can be made.
pub fn has_device(kind: &str, arguments: &str, what: &str) -> Result<bool> {
    let netns = NetNs::make(&[Prefix::new().name("kinds")])?.pop().context("a namespace")?;
    let line = format!("link add name kind0 {arguments} type {kind}");
    // Another complaint is one of a kind that it knows.
    let unknown = |error: &anyhow::Error| format!("{error:#}").contains("Unknown device type");
    let has = !netns.ip(&[line]).as_ref().is_err_and(unknown);
    if !has {
        not_checked(&format!("{what}, as this kernel has no devices of type {kind}"));
    }
    Ok(has)
}

/// The file that a variable names, if it is set.
///
/// # Errors
/// There is no such file.
pub(crate) fn named(variable: &str) -> Result<Option<PathBuf>> {
    let path = env::var_os(variable).filter(|path| !path.is_empty());
    path.map(|path| fs_err::canonicalize(&path).context(variable.to_owned())).transpose()
}

/// The `pod` binary: named by `TOPO_LB_POD`, or in Cargo's folder of this executable.
pub fn pod() -> Result<PathBuf> {
    named("TOPO_LB_POD")?.map_or_else(|| binary("pod"), Ok)
}

/// A binary of this package, in Cargo's folder of this executable.
pub fn binary(name: &str) -> Result<PathBuf> {
    let me = env::current_exe().context("cannot find the path of this executable")?;
    // Tests run from `deps`, one folder below the binaries.
    for folder in me.ancestors().skip(1).take(2) {
        let path = folder.join(name);
        if path.is_file() {
            return Ok(path);
        }
    }
    bail!(
        "there is no `{name}` beside {}: build it with cargo build -p topo-lb-tests --bins",
        me.display()
    )
}
