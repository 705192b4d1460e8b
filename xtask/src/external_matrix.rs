//! `cargo xtask external-matrix`: every way to dial a Service, with kube-proxy 1.20 and with topo-lb.

use anyhow::Result;
use clap::ValueEnum;

use crate::build_ebpf;
use crate::kube_proxy;
use crate::lab_program;
use crate::needs::Need;
use crate::process::become_command;
use crate::workspace::{Profile, Workspace};

/// Dials every address of Services of every kind, by everybody, from inside and from outside of a
/// cluster of two nodes: once with kube-proxy 1.20, once with topo-lb in its place, once with its direct
/// return. Says where they differ in a way that no list explains.
///
/// kube-proxy is compiled from Debian's source the first time, which takes minutes, or
/// TOPO_LB_KUBE_PROXY names one. Leaves nothing behind, even after Ctrl-C. Exit code 1: there is such a
/// difference.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask external-matrix                    # three minutes
  cargo xtask external-matrix --proxy topo-lb    # compares with the kept table of kube-proxy
  cargo xtask external-matrix --write-docs       # keeps kube-proxy's table in docs/external, and writes docs/external-traffic.md")]
pub(crate) struct Args {
    /// Only with this proxy
    #[arg(long, value_enum)]
    proxy: Option<Measured>,
    /// Keep kube-proxy's table in docs/external, and write docs/external-traffic.md from it
    #[arg(long)]
    write_docs: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Measured {
    /// kube-proxy 1.20
    KubeProxy,
    /// topo-lb in place of kube-proxy
    TopoLb,
    /// The same with direct return
    DirectReturn,
}

/// Returns only on failure: otherwise this process becomes the lab's program, with its exit code.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let with_kube_proxy = matches!(args.proxy, None | Some(Measured::KubeProxy));
    let mut needs = vec![Need::Kernel, Need::Lab, Need::Root];
    if with_kube_proxy {
        needs.extend([Need::KubeProxy, Need::Iptables]);
    }
    build_ebpf::ready(workspace, &needs)?;
    let kube_proxy = with_kube_proxy.then(|| kube_proxy::program(workspace)).transpose()?;
    let mut matrix = lab_program::build(workspace, Profile::Release, "matrix", &["pod"])?;
    matrix.envs(kube_proxy.map(|program| (kube_proxy::VARIABLE, program)));
    if let Some(proxy) = args.proxy.and_then(|proxy| proxy.to_possible_value()) {
        matrix.args(["--proxy", proxy.get_name()]);
    }
    if args.write_docs {
        matrix.arg("--write-docs").arg(workspace.root.join("docs"));
    }
    become_command(&mut matrix)
}
