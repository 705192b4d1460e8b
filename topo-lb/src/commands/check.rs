//! `topo-lb check`: whether this host can run topo-lb, and what to do if not.
//!
//! Tests the host itself and concludes nothing from version numbers. Removes everything that it
//! creates for a test, and does not touch a running agent.

mod connections;
mod devices;
mod direct_return;
mod firewall;
mod kube_proxy;
mod xdp;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use serde::Serialize;

use self::devices::DEVICES;
use topo_lb_agent::serve::Listen;
use topo_lb_kernel::datapath::attach::mode;
use topo_lb_kernel::datapath::host::btf;
use topo_lb_kernel::datapath::host::capability;
use topo_lb_kernel::datapath::host::conntrack::Conntrack;
use topo_lb_kernel::datapath::host::feature::{
    self, Feature, FeatureGroup, GROUPS, kernel_release,
};
use topo_lb_kernel::datapath::host::lock::{Lock, LockError};
use topo_lb_kernel::datapath::host::memlock;
use topo_lb_kernel::datapath::host::mount::{MountError, check_bpffs, check_cgroup2};
use topo_lb_kernel::datapath::inspect::effective;
use topo_lb_kernel::datapath::inspect::in_front;
use topo_lb_kernel::datapath::inspect::overridden;
use topo_lb_kernel::datapath::inspect::self_probe;
use topo_lb_kernel::datapath::inspect::tolerated::Tolerated;
use topo_lb_kernel::datapath::masquerade;
use topo_lb_kernel::device::Pattern;
use topo_lb_kernel::kube_proxy::Traces;
use topo_lb_kernel::socket::terminator;

pub use topo_lb_kernel::datapath::inspect::self_probe::child as probe_child;

/// Where the agent would run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cgroup v2 directory; processes in it and below are served.
    pub cgroup_root: PathBuf,
    /// Directory on bpffs for maps and links.
    pub pin_dir: PathBuf,
    /// Foreign programs that may run before ours.
    pub tolerated: Vec<Tolerated>,
    /// With `--kube-proxy-replacement`: what the agent would do.
    pub replacement: Option<Replacement>,
}

/// What an agent does in place of kube-proxy.
#[derive(Clone, Debug)]
pub struct Replacement {
    /// Where it answers load balancers.
    pub health: Listen,
    /// Patterns of the devices of clients outside; empty: it finds them.
    pub devices: Vec<Pattern>,
    /// Whether it sends packets of clients outside on to the endpoint's node.
    pub direct_return: bool,
}

/// The result of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The requirement is met.
    Ok,
    /// The agent runs with restrictions.
    Limited,
    /// The agent does not run.
    Failed,
    /// Not checked, because an earlier check failed.
    Skipped,
}

/// One check and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The name of the check.
    pub name: &'static str,
    /// Its result.
    pub status: Status,
    /// The result as a sentence.
    pub sentence: String,
    /// What to do, if anything can be done.
    pub remedy: Option<String>,
}

/// All checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Whether the agent can run here.
    pub ok: bool,
    /// Sorted so that each follows those that it depends on.
    pub findings: Vec<Finding>,
}

/// Runs all checks. Blocks for some tens of milliseconds, at most for a few seconds.
#[must_use]
pub fn run(options: &Options) -> Report {
    memlock::lift_limit();
    let capabilities = capabilities();
    let may_load = capabilities.status == Status::Ok;
    let btf = btf();
    let groups = GROUPS.map(|group| match btf.status {
        Status::Limited if OF_BTF.contains(&group.name) => {
            Finding::skipped(group.name, "missing BTF")
        }
        _ => features_finding(group, may_load),
    });
    let mut findings = vec![kernel(), btf, capabilities];
    findings.extend(groups);
    findings.push(sockets(&options.cgroup_root));
    if may_load {
        findings.push(masquerading());
        findings.extend(Conntrack::look().map(|it| conntrack(&it)));
        findings.push(connections::finding(&options.pin_dir));
    }
    findings.push(mount("cgroup root", &options.cgroup_root, check_cgroup2(&options.cgroup_root)));
    findings.push(mount("bpffs", &options.pin_dir, check_bpffs(&options.pin_dir)));
    findings.push(pin_directory(&options.pin_dir));
    let traces = Traces::look();
    findings.push(kube_proxy::kube_proxy(&traces, options.replacement.is_some()));
    if let Some(replacement) = &options.replacement {
        findings.extend(kube_proxy::node_ports());
        if let Listen::On(address) = replacement.health {
            findings.push(kube_proxy::health_port(address, &traces, &options.pin_dir));
        }
        findings.push(devices::finding(&replacement.devices));
        findings.extend(firewall::finding());
        findings.extend(xdp::finding(&replacement.devices));
        findings.extend(direct_return::findings(&replacement.devices, replacement.direct_return));
    }
    // Only the agent needs these, not the self-probe.
    let needed = |finding: &&Finding| !["bpffs", "pin directory", DEVICES].contains(&finding.name);
    let failed = findings.iter().filter(needed).find(|finding| finding.status == Status::Failed);
    match failed.map(|failed| failed.name) {
        Some(failed) => {
            findings.extend([PRECEDENCE, SELF_PROBE].map(|name| Finding::skipped(name, failed)));
        }
        None => {
            findings.push(precedence(options));
            findings.push(self_probe_finding(&options.cgroup_root));
        }
    }
    Report { ok: findings.iter().all(|finding| finding.status != Status::Failed), findings }
}

impl Finding {
    fn ok(name: &'static str, sentence: impl Into<String>) -> Self {
        Self { name, status: Status::Ok, sentence: sentence.into(), remedy: None }
    }

    fn limited(name: &'static str, sentence: impl Into<String>) -> Self {
        Self { name, status: Status::Limited, sentence: sentence.into(), remedy: None }
    }

    /// With what can be done although nothing is wrong.
    fn advised(self, remedy: &str) -> Self {
        Self { remedy: Some(remedy.to_owned()), ..self }
    }

    fn skipped(name: &'static str, failed: &str) -> Self {
        let sentence = format!("not tried, because of the {failed}");
        Self { name, status: Status::Skipped, sentence, remedy: None }
    }

    fn failed(name: &'static str, sentence: impl Into<String>, remedy: &str) -> Self {
        let remedy = Some(remedy.to_owned());
        Self { name, status: Status::Failed, sentence: sentence.into(), remedy }
    }
}

/// The kernel's IPv6 addresses (net/ipv6/addrconf.c); absent after a boot with `ipv6.disable=1`.
const IPV6: &str = "/proc/net/if_inet6";

const BTF: &str = "BTF";

/// The groups of features that are no use without [`BTF`], whatever else of them is there.
const OF_BTF: [&str; 3] = ["accounting", "walk", "guards"];

const PRECEDENCE: &str = "precedence";
const SELF_PROBE: &str = "self-probe";

fn kernel() -> Finding {
    let release = format!("Linux {}", kernel_release());
    match Path::new(IPV6).exists() {
        true => Finding::ok("kernel", release),
        false => Finding::ok(
            "kernel",
            format!("{release}; it has no IPv6, so Services are served at IPv4 addresses alone"),
        ),
    }
}

/// Whether user space and programs get the layout of the kernel's structures.
fn btf() -> Finding {
    let path = btf::KERNEL;
    if Path::new(path).exists() {
        return Finding::ok(BTF, path);
    }
    Finding::limited(
        BTF,
        "the kernel carries no BTF of its own (CONFIG_DEBUG_INFO_BTF): what TCP connections to Services move is \
         not counted, and while node ports are served, a socket of IPv6 alone cannot bind a node port of IPv4",
    )
}

fn capabilities() -> Finding {
    let name = "capabilities";
    let missing = capability::missing();
    if !missing.is_empty() {
        let sentence = format!("this process does not have {}", missing.join(" and "));
        return Finding::failed(name, sentence, "run it as root, or give it these capabilities");
    }
    if capability::in_user_namespace() {
        let sentence = "this process is in a user namespace, where the kernel loads no programs";
        return Finding::failed(name, sentence, "run it in the host's user namespace");
    }
    if let Some(error) = feature::forbidden() {
        let sentence =
            format!("all are there, and yet the kernel lets no program be loaded: {error}");
        let remedy = "look for a seccomp profile that allows bpf(2) only with CAP_SYS_ADMIN, kernel \
                      lockdown, a security module, or RLIMIT_MEMLOCK before Linux 5.11";
        return Finding::failed(name, sentence, remedy);
    }
    Finding::ok(name, "eBPF programs may be loaded and attached")
}

fn features_finding(group: FeatureGroup, may_load: bool) -> Finding {
    let FeatureGroup { name, features, without } = group;
    if !may_load {
        let sentence = "not asked: the kernel answers only who may load programs".to_owned();
        return Finding { name, status: Status::Skipped, sentence, remedy: None };
    }
    let missing: Vec<_> =
        features.iter().filter(|feature| feature.is_there() != Some(true)).collect();
    if missing.is_empty() {
        let all: Vec<_> = features.iter().map(|feature| feature.name).collect();
        return Finding::ok(name, all.join(", "));
    }
    let lacks: Vec<_> = missing
        .iter()
        .map(|feature| {
            let is_withheld = feature.name == Feature::READS_SOCKETS.name;
            let but = if is_withheld { ", but not under lockdown for confidentiality" } else { "" };
            format!("{feature} (there since Linux {}{but})", feature.since)
        })
        .collect();
    let lacks = format!("the kernel lacks {}", lacks.join(", "));
    match without {
        None => Finding::failed(name, lacks, "run a newer kernel"),
        Some(without) => Finding::limited(name, format!("{lacks}: {without}")),
    }
}

fn sockets(cgroup_root: &Path) -> Finding {
    let name = "sockets";
    match terminator::look(cgroup_root) {
        Ok(()) => Finding::ok(name, "those whose endpoint is gone can be ended"),
        Err(obstacle) => Finding::limited(
            name,
            format!(
                "those whose endpoint is gone stay until their applications give up: {obstacle}"
            ),
        ),
    }
}

fn masquerading() -> Finding {
    let name = "masquerade";
    match masquerade::check() {
        Ok(()) => Finding::ok(name, "clients outside can reach endpoints of other nodes"),
        Err(error) => Finding::limited(
            name,
            format!(
                "with --kube-proxy-replacement, connections from outside to endpoints of other nodes may \
                 have no answers, as {error}"
            ),
        ),
    }
}

/// Connections from outside have entries of connection tracking, and kube-proxy raises the limit of them.
fn conntrack(now: &Conntrack) -> Finding {
    let Conntrack { count, limit, .. } = now;
    Finding::ok("conntrack", format!("{count} of at most {limit} connections are tracked"))
}

fn mount(name: &'static str, path: &Path, result: Result<(), MountError>) -> Finding {
    match result {
        Ok(()) => Finding::ok(name, path.display().to_string()),
        Err(error) => {
            let text = error.to_string();
            // After the first `: `, the errors say what to do.
            let (sentence, remedy) = text.split_once(": ").unwrap_or((&text, ""));
            Finding::failed(name, sentence, remedy)
        }
    }
}

fn pin_directory(path: &Path) -> Finding {
    let name = "pin directory";
    if !path.exists() {
        return Finding::ok(name, format!("{} is not there yet: no agent has run", path.display()));
    }
    let mode = if mode::observes(path) { "; its programs only observe (--observe)" } else { "" };
    match Lock::take(path) {
        Ok(_) => {
            Finding::ok(name, format!("{} was left by an agent that stopped{mode}", path.display()))
        }
        Err(LockError::Held(_)) => {
            Finding::ok(name, format!("an agent runs on {}{mode}", path.display()))
        }
        Err(error) => {
            Finding::failed(name, error.to_string(), "run it as root, or look at its owner")
        }
    }
}

/// Whether foreign programs run before topo-lb's, or would.
fn precedence(options: &Options) -> Finding {
    let Options { cgroup_root, pin_dir, tolerated, .. } = options;
    let mut looked = effective::look(cgroup_root, pin_dir, tolerated);
    if looked.as_ref().is_ok_and(|found| !found.is_empty()) {
        // Without an agent, another `check` attaches a program for a moment, too.
        thread::sleep(Duration::from_millis(300));
        looked = effective::look(cgroup_root, pin_dir, tolerated);
    }
    let overrides = match looked {
        Ok(overrides) => overrides,
        Err(error) => {
            let sentence = format!("the kernel does not say which programs run first: {error}");
            return Finding::failed(PRECEDENCE, sentence, "run it as root on the node");
        }
    };
    if let Some(sentence) = overridden::sentence(&overrides) {
        let remedy = overridden::remedy(cgroup_root, &overrides);
        return Finding::failed(PRECEDENCE, sentence, &remedy);
    }
    match in_front::look(pin_dir, tolerated).map(|all| in_front::sentence(&all)) {
        Ok(None) => Finding::ok(PRECEDENCE, "no program of others runs before topo-lb's"),
        Ok(Some(sentence)) => Finding::failed(PRECEDENCE, sentence, &in_front::remedy()),
        Err(error) => {
            let sentence = format!("the kernel does not say what runs on devices: {error}");
            Finding::failed(PRECEDENCE, sentence, "run it as root on the node")
        }
    }
}

fn self_probe_finding(cgroup_root: &Path) -> Finding {
    match self_probe::run(cgroup_root) {
        Ok(()) => Finding::ok(
            SELF_PROBE,
            "a connection was translated, its peer is the Service, and one was refused",
        ),
        Err(error) => Finding::failed(
            SELF_PROBE,
            error.to_string(),
            "see what else is attached there with `bpftool cgroup tree`",
        ),
    }
}

/// The report for a terminal, with colours if `colour` is set.
#[must_use]
pub fn table(report: &Report, colour: bool) -> String {
    let width = report.findings.iter().map(|finding| finding.name.len()).max().unwrap_or_default();
    let mut text = String::new();
    for finding in &report.findings {
        let (word, code) = match finding.status {
            Status::Ok => ("ok", 32),
            Status::Limited => ("limited", 33),
            Status::Failed => ("FAILED", 31),
            Status::Skipped => ("skipped", 2),
        };
        let (on, off) = if colour { (format!("\x1b[{code}m"), "\x1b[0m") } else { <_>::default() };
        let _ =
            writeln!(text, "{on}{word:<7}{off}  {:<width$}  {}", finding.name, finding.sentence);
        if let Some(remedy) = &finding.remedy {
            let _ = writeln!(text, "{:<7}  {:<width$}  → {remedy}", "", "");
        }
    }
    let verdict =
        if report.ok { "This host can run topo-lb." } else { "This host cannot run topo-lb." };
    let _ = writeln!(text, "\n{verdict}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_btf_is_among_the_groups_of_features() {
        assert!(OF_BTF.iter().all(|name| GROUPS.iter().any(|group| group.name == *name)));
    }

    #[test]
    fn a_remedy_stands_below_what_failed_and_colours_are_only_where_they_are_asked_for() {
        let findings = vec![
            Finding::ok("kernel", "Linux 6.18"),
            Finding::failed("bpffs", "it is not there", "mount it"),
        ];
        let report = Report { ok: false, findings };
        let text = table(&report, false);
        assert!(text.contains("FAILED   bpffs   it is not there\n"), "{text}");
        assert!(text.contains("\n                 → mount it\n"), "{text}");
        assert!(text.ends_with("This host cannot run topo-lb.\n"), "{text}");
        assert!(!text.contains('\x1b'));
        assert!(table(&report, true).contains("\x1b[31mFAILED"));
    }
}
