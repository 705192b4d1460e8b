//! What topo-lb meets where it replaces kube-proxy, or runs beside it: kube-proxy itself and its ports.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use super::Finding;
use topo_lb_kernel::datapath::host::local_ports;
use topo_lb_kernel::datapath::host::lock::{Lock, LockError};
use topo_lb_kernel::kube_proxy::Traces;

/// Whether kube-proxy is here. It is no fault: who replaces it runs both for a while.
pub(super) fn kube_proxy(traces: &Traces, is_replaced: bool) -> Finding {
    let name = "kube-proxy";
    let rules = traces.rules.join(", ");
    match (traces.running(), is_replaced) {
        (Some(running), false) => {
            Finding::ok(name, format!("{running}: it serves what topo-lb leaves to it"))
        }
        (Some(running), true) => Finding::ok(
            name,
            format!("{running}, beside --kube-proxy-replacement: no connection needs it any more"),
        )
        .advised(
            "when the agent is ready, stop kube-proxy on this node and remove its rules \
             (`kube-proxy --cleanup`): docs/kube-proxy-free.md",
        ),
        (None, false) if traces.rules.is_empty() => Finding::ok(
            name,
            "neither it nor its rules are here: nobody serves what topo-lb leaves to it",
        )
        .advised("run kube-proxy, or the agent with --kube-proxy-replacement"),
        (None, true) if traces.rules.is_empty() => {
            Finding::ok(name, "neither it nor its rules are here")
        }
        (None, false) => Finding::limited(
            name,
            format!(
                "it does not run, but its rules are here ({rules}): what topo-lb leaves to it goes \
                 where they say, and nobody updates them"
            ),
        )
        .advised("start kube-proxy, or run the agent with --kube-proxy-replacement"),
        (None, true) => Finding::limited(
            name,
            format!(
                "it does not run, but its rules are here ({rules}): packets pass them, and nobody \
                 updates them"
            ),
        )
        .advised("remove them with `kube-proxy --cleanup`: docs/kube-proxy-free.md"),
    }
}

/// Whether the agent could answer load balancers, or does.
pub(super) fn health_port(address: SocketAddr, traces: &Traces, pin_dir: &Path) -> Finding {
    let name = "health port";
    match TcpListener::bind(address) {
        Ok(_) => Finding::ok(name, format!("{address} is free for answers to load balancers")),
        Err(error) if error.kind() != ErrorKind::AddrInUse => {
            let sentence = format!("the agent cannot answer load balancers at {address}: {error}");
            Finding::limited(name, sentence).advised("choose another --healthz-bind-address")
        }
        Err(_) if traces.running().is_some() => {
            Finding::ok(name, format!("kube-proxy has {address} until it is stopped"))
        }
        Err(_) if matches!(Lock::take(pin_dir), Err(LockError::Held(_))) => {
            Finding::ok(name, format!("an agent runs, and {address} is in use"))
        }
        Err(_) => {
            let sentence =
                format!("another process listens at {address}, so load balancers get its answers");
            let remedy = "find it with `ss -ltnp`, or choose another --healthz-bind-address";
            Finding::limited(name, sentence).advised(remedy)
        }
    }
}

/// Whether the kernel gives sockets of this node ports that may be node ports.
pub(super) fn node_ports() -> Option<Finding> {
    let (first, last) = local_ports::node_ports()?;
    let sentence = format!(
        "the kernel may give sockets of this node the node ports from {first} to {last} \
         (net.ipv4.ip_local_port_range): a process that binds port 0 then fails with EPERM"
    );
    let remedy = "reserve them: net.ipv4.ip_local_reserved_ports=30000-32767";
    Some(Finding::limited("local ports", sentence).advised(remedy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::check::Status;

    #[test]
    fn kube_proxy_is_found_and_is_no_fault() {
        let runs = Traces { mode: Some("ipvs".to_owned()), ..Traces::default() };
        let process = Traces { process: Some(7), ..Traces::default() };
        let rules = Traces { rules: vec!["one", "two"], ..Traces::default() };
        let none = Traces::default();
        for (traces, is_replaced, status, words, has_remedy) in [
            (&runs, false, Status::Ok, "in mode ipvs: it serves what topo-lb leaves", false),
            (&runs, true, Status::Ok, "in mode ipvs, beside --kube-proxy-replacement", true),
            (&process, true, Status::Ok, "as process 7, beside", true),
            (&rules, false, Status::Limited, "rules are here (one, two)", true),
            (&rules, true, Status::Limited, "rules are here (one, two): packets pass", true),
            (&none, false, Status::Ok, "nobody serves", true),
            (&none, true, Status::Ok, "neither it nor its rules", false),
        ] {
            let finding = kube_proxy(traces, is_replaced);
            assert_eq!(finding.status, status, "{finding:?}");
            assert!(finding.sentence.contains(words), "{finding:?}");
            assert_eq!(finding.remedy.is_some(), has_remedy, "{finding:?}");
        }
    }

    #[test]
    fn whoever_has_the_health_port_is_named() {
        let pins = Path::new("/nonexistent/topo-lb");
        let busy = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = busy.local_addr().unwrap();
        let runs = Traces { process: Some(7), ..Traces::default() };
        let said = |traces: &Traces| {
            let finding = health_port(address, traces, pins);
            (finding.status, finding.sentence)
        };
        let (status, sentence) = said(&Traces::default());
        assert_eq!(status, Status::Limited);
        assert!(sentence.starts_with("another process listens"), "{sentence}");
        let (status, sentence) = said(&runs);
        assert_eq!(status, Status::Ok);
        assert!(sentence.starts_with("kube-proxy has"), "{sentence}");
        drop(busy);
        let (status, sentence) = said(&Traces::default());
        assert_eq!((status, sentence.contains("is free")), (Status::Ok, true), "{sentence}");
    }
}
