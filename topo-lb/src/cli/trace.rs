//! Flags of `topo-lb trace`.

use std::path::PathBuf;

use clap::Args;

use super::{AgentsNamespace, CGROUP_ROOT, Output, PinArgs, kube_target, name};
use crate::commands::trace::{Options, Place};

/// `topo-lb trace`.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// Only this Service, as NAMESPACE/NAME or NAMESPACE/NAME:PORT. Default: all
    #[arg(value_name = "SERVICE")]
    pub service: Option<String>,
    /// Only this Pod, as NAMESPACE/NAME or by its UID
    #[arg(long, value_name = "POD", env = "TOPO_LB_POD")]
    pub pod: Option<String>,
    /// End after so many connections. Default: at Ctrl-C
    #[arg(long, value_name = "N", env = "TOPO_LB_TRACE_COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Room for connections until the next look, in KiB, a power of two: ten times a second so many are shown as fit, nine of
    /// each KiB. The others are counted as lost
    #[arg(long, value_name = "KIB", env = "TOPO_LB_BUFFER", default_value_t = 256, value_parser = kibibytes)]
    pub buffer: u32,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: PinArgs says what it is")]
    pub pin: PinArgs,
    /// The cgroup (v2) below which Pods have theirs
    #[arg(long, value_name = "PATH", env = "TOPO_LB_CGROUP_ROOT", default_value = CGROUP_ROOT)]
    pub cgroup_root: PathBuf,
    /// The folder of the Pods' logs, whose names tell the names of Pods. Without it Pods are shown by their UIDs
    #[arg(long, value_name = "PATH", env = "TOPO_LB_POD_LOGS", default_value = "/var/log/pods")]
    pub pod_logs: PathBuf,
    /// The node whose connections are shown, through its agent: on another machine, or as a plugin of kubectl,
    /// which otherwise takes the node of --pod. This takes `create` on pods/exec there
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// With --node, or as a plugin: kubeconfig file. Default: $KUBECONFIG
    #[arg(long, value_name = "PATH", env = "TOPO_LB_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: AgentsNamespace says what it is")]
    pub pods: AgentsNamespace,
    /// Read names of Pods from standard input, `UID NAMESPACE/NAME`; end with it
    #[arg(long, hide = true)]
    pub names_from_stdin: bool,
    /// Output format; JSON: one object per line
    #[arg(short, long, value_enum, default_value_t, env = "TOPO_LB_OUTPUT")]
    pub output: Output,
}

impl TraceArgs {
    /// Where to trace, if not here.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        let is_elsewhere = name::is_plugin() && !self.pin.pin_dir.exists();
        (is_elsewhere || self.node.is_some()).then(|| Place {
            target: kube_target(self.kubeconfig.as_deref(), &[]),
            kubeconfig: self.kubeconfig.clone(),
            namespace: self.pods.agents_namespace.clone(),
            node: self.node.clone(),
            pod: self.pod.clone(),
        })
    }

    /// The same flags for the agent of another node.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let mut all: Vec<String> = self.service.iter().cloned().collect();
        all.extend(self.pod.iter().map(|pod| format!("--pod={pod}")));
        all.extend(self.count.map(|count| format!("--count={count}")));
        all.push(format!("--buffer={}", self.buffer));
        if self.output == Output::Json {
            all.push("--output=json".to_owned());
        }
        all
    }

    /// What to trace.
    #[must_use]
    pub fn options(self, has_colours: bool) -> Options {
        Options {
            pin_dir: self.pin.pin_dir,
            cgroup_root: self.cgroup_root,
            pod_logs: self.pod_logs,
            service: self.service,
            pod: self.pod,
            names_from_stdin: self.names_from_stdin,
            buffer: self.buffer * 1_024,
            count: self.count,
            is_json: self.output == Output::Json,
            has_colours,
        }
    }
}

/// The kernel takes whole pages, a power of two of them.
fn kibibytes(text: &str) -> Result<u32, String> {
    let kibibytes = text.parse().ok().filter(|it: &u32| it.is_power_of_two());
    kibibytes
        .filter(|it| (4..=65_536).contains(it))
        .ok_or_else(|| "it is no power of two from 4 to 65536".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::{Cli, Command};
    use super::*;

    #[test]
    fn another_node_gets_the_same_flags() {
        let line =
            "topo-lb trace default/web:http --pod a/b --node n1 --count 3 -o json --buffer 64";
        let trace = |line: &str| match Cli::try_parse_from(line.split(' ')).expect("flags").command
        {
            Command::Trace(args) => args,
            other => panic!("{other:?}"),
        };
        let there = trace(line);
        assert_eq!(there.place().and_then(|place| place.node).as_deref(), Some("n1"));
        let again = trace(&format!("topo-lb trace {}", there.arguments().join(" ")));
        assert!(again.place().is_none());
        let of = |args: TraceArgs| format!("{:?}", args.options(false));
        assert_eq!(of(again), of(there));
    }

    #[test]
    fn a_buffer_is_a_power_of_two() {
        assert_eq!([kibibytes("4"), kibibytes("65536")], [Ok(4), Ok(65_536)]);
        for wrong in ["", "x", "0", "2", "5", "131072", "-4", "4294967296"] {
            assert!(kibibytes(wrong).is_err(), "{wrong}");
        }
    }
}
