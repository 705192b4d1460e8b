//! Flags of the agent that exclude each other, with the reason.

use clap::error::ErrorKind;

use super::frontends::DirectReturn;
use super::{AgentArgs, Count, name};
use topo_lb_core::topology::Scope;
use topo_lb_kernel::datapath::pin::Xdp;
use topo_lb_kernel::datapath::programs::object::TcpPeer;

impl AgentArgs {
    /// Checks what clap cannot.
    ///
    /// # Errors
    /// Values of flags exclude each other: a usage error.
    pub fn check(&self) -> Result<(), clap::Error> {
        let replaces = self.frontends.kube_proxy_replacement;
        for (is_wrong, sentence) in [
            (
                self.terminate_tcp && self.tcp_peer == TcpPeer::Endpoint,
                "--terminate-tcp cannot be used with --tcp-peer endpoint: nothing records which \
                 connections go to a Service",
            ),
            (
                replaces && self.scope == Scope::OptIn,
                "--kube-proxy-replacement cannot be used with --scope opt-in: without kube-proxy, \
                 nothing serves the Services without a policy",
            ),
            (
                self.xdp != Xdp::Off && !replaces,
                "--xdp needs --kube-proxy-replacement: without it, kube-proxy serves clients outside",
            ),
            (
                self.frontends.direct_return != DirectReturn::Off && !replaces,
                "--direct-return needs --kube-proxy-replacement: without it, kube-proxy serves clients outside",
            ),
            (
                self.observe && replaces,
                "--observe cannot be used with --kube-proxy-replacement: an agent that observes \
                 serves nobody",
            ),
            (
                self.observe && !self.tc_devices.is_empty(),
                "--observe cannot be used with --tc-devices: packets of devices are translated or \
                 not counted",
            ),
            (
                self.observe && self.terminate_tcp,
                "--observe cannot be used with --terminate-tcp: an agent that observes ends no \
                 connection",
            ),
            (
                self.observe && self.dns.dns,
                "--observe cannot be used with --dns: an agent that observes gets no query",
            ),
            (
                !self.pod_ranges.is_empty() && self.count != Count::All,
                "--pod-ranges needs --count all: connections that topo-lb does not translate are not counted \
                 without it",
            ),
        ] {
            if is_wrong {
                let mut command = name::command(name::called());
                return Err(command.error(ErrorKind::ArgumentConflict, sentence));
            }
        }
        Ok(())
    }
}
