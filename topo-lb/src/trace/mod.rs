//! `topo-lb trace`: the decisions on new connections, as the programs of this node make them.
//!
//! The programs write them to a ring buffer. It is read ten times a second, each time no more than fits
//! into it: so it limits what a flood costs. What does not fit is lost, and counted.

mod pods;
mod row;
mod table;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use aya::maps::Map;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};
use topo_lb_common::counters::Name;
use topo_lb_common::maps;
use topo_lb_common::trace::Decision;

use crate::cli::name;
use crate::datapath::maps::encode::read_text;
use crate::datapath::maps::pinned::{Hash, Raw, found, open};
use crate::datapath::maps::trace::Ring;
use crate::device;
pub use pods::{PodName, Pods};
use row::{Clock, Known};
pub use row::{Process, Row};
use table::Columns;

/// The time between two looks at the ring buffer.
const LOOK: Duration = Duration::from_millis(100);
/// Looks between two checks of what was lost.
const CHECK: u32 = 10;
/// Bytes that the kernel adds to an element of a ring buffer (`BPF_RINGBUF_HDR_SZ`).
const HEAD: usize = 8;

/// What to trace.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the maps are pinned.
    pub pin_dir: PathBuf,
    /// The cgroup (v2) below which Pods have theirs.
    pub cgroup_root: PathBuf,
    /// The folder in which Pods have folders for their logs.
    pub pod_logs: PathBuf,
    /// Only this Service, `namespace/name` or `namespace/name:port`.
    pub service: Option<String>,
    /// Only this Pod, `namespace/name` or its UID.
    pub pod: Option<String>,
    /// Bytes of the ring buffer.
    pub buffer: u32,
    /// Ends after so many rows.
    pub count: Option<u64>,
    /// One JSON object per line, in place of a table.
    pub is_json: bool,
    /// Whether the table has colours.
    pub has_colours: bool,
}

/// Writes rows to `out` until Ctrl-C, or until `out` is closed. What was lost goes to `errors`, too.
///
/// # Errors
/// The maps cannot be used, or are replaced meanwhile.
pub async fn run(
    options: Options,
    out: &mut impl Write,
    errors: &mut impl Write,
) -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let mut tracer = Tracer::open(options)?;
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut look = 0_u32;
    let mut is_over = ended(tracer.begin(out))?;
    while !is_over {
        let is_stopped = tokio::select! {
            _ = looks.tick() => false,
            _ = interrupt.recv() => true,
            _ = terminate.recv() => true,
            _ = hang_up.recv() => true,
        };
        look = look.wrapping_add(1);
        is_over = tracer.look(out)? || is_stopped;
        if is_over || look.is_multiple_of(CHECK) {
            is_over |= tracer.check(out, errors)?;
        }
    }
    Ok(())
}

/// Whether nobody reads any more, as after `topo-lb trace | head`.
fn ended(written: io::Result<()>) -> anyhow::Result<bool> {
    match written {
        Ok(()) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(true),
        Err(error) => Err(error).context("cannot write the result"),
    }
}

struct Tracer {
    options: Options,
    ring: Ring,
    names: Hash<u32, Name>,
    pods: Pods,
    clock: Clock,
    columns: Columns,
    shown: u64,
}

impl Tracer {
    fn open(options: Options) -> anyhow::Result<Self> {
        let Options { pin_dir, cgroup_root, pod_logs, service, pod, .. } = &options;
        for (what, name) in [("Service", service), ("Pod", pod)] {
            let is_name = |it: &String| it.contains('/') || what == "Pod" && is_uid(it);
            if let Some(name) = name.as_ref().filter(|it| !is_name(it)) {
                bail!(
                    "{name:?} is no {what}: write it as NAMESPACE/NAME, for example default/{name}"
                );
            }
        }
        if let Some(pod) = pod.as_ref().filter(|pod| pod.contains('/')) {
            ensure!(
                pod_logs.is_dir(),
                "the names of Pods are not known here, because {} is no folder: give the UID of {pod} \
                 to --pod, or the folder of the Pods' logs to --pod-logs",
                pod_logs.display()
            );
        }
        let pods = Pods::new(cgroup_root, pod_logs)
            .with_context(|| format!("cannot look into {}", cgroup_root.display()))?;
        let ring = Ring::open(pin_dir, options.buffer)?;
        let names = open(pin_dir, maps::NAMES, Map::HashMap)?;
        let (clock, columns) = (Clock::read(), Columns::new());
        Ok(Self { options, ring, names, pods, clock, columns, shown: 0 })
    }

    /// Writes what is above the rows.
    fn begin(&mut self, out: &mut impl Write) -> io::Result<()> {
        if !self.options.is_json {
            writeln!(out, "{}", self.columns.head())?;
        }
        out.flush()
    }

    /// Writes the rows since the last look. Returns whether there will be no more.
    fn look(&mut self, out: &mut impl Write) -> anyhow::Result<bool> {
        let room = self.options.buffer as usize / (HEAD + size_of::<Decision>());
        for _ in 0..room {
            let Some(decision) = self.ring.take()? else { break };
            let Some(row) = self.row(&decision)? else { continue };
            let line = if self.options.is_json {
                serde_json::to_string(&row)?
            } else {
                self.columns.row(&row, self.options.has_colours)
            };
            if ended(writeln!(out, "{line}"))? {
                return Ok(true);
            }
            self.shown += 1;
            if Some(self.shown) == self.options.count {
                break;
            }
        }
        Ok(ended(out.flush())? || Some(self.shown) == self.options.count)
    }

    /// Says what was lost, and checks that the programs still know the ring buffer. Returns as
    /// [`look`](Self::look).
    fn check(&mut self, out: &mut impl Write, errors: &mut impl Write) -> anyhow::Result<bool> {
        let lost = self.ring.newly_lost()?;
        if lost > 0 {
            writeln!(
                errors,
                "{}: {lost} connections are not shown: a larger --buffer has room for more",
                name::called()
            )?;
            if self.options.is_json {
                let line = json!({ "time": Timestamp::now(), "lost": lost });
                return ended(writeln!(out, "{line}").and_then(|()| out.flush()));
            }
        }
        ensure!(
            self.ring.is_in_place(),
            "the maps at {} were removed or replaced: start again once an agent runs",
            self.options.pin_dir.display()
        );
        Ok(false)
    }

    /// The row of a decision; `None` if nobody asked for it.
    fn row(&mut self, decision: &Decision) -> anyhow::Result<Option<Row>> {
        let port = found(maps::NAMES, self.names.get(&Raw(decision.service), 0))?;
        let service: Option<Arc<str>> = port.and_then(|port| read_text(&port.text).map(Arc::from));
        if self.options.service.as_ref().is_some_and(|wanted| !is_of(service.as_deref(), wanted)) {
            return Ok(None);
        }
        let pod = if decision.cgroup == 0 { None } else { self.pods.of(decision.cgroup) };
        let is_it = |wanted: &String| pod.as_ref().is_some_and(|pod| pod.is(wanted));
        if !self.options.pod.as_ref().is_none_or(is_it) {
            return Ok(None);
        }
        let device = if decision.device == 0 { None } else { device::name(decision.device) };
        Ok(Some(Row::of(decision, Known { service, pod, device }, self.clock)))
    }
}

/// Whether this can be the UID of a Pod: that of a static Pod has no hyphens.
fn is_uid(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

/// Whether a Service port, `namespace/name:port`, is `wanted` or one of its ports.
fn is_of(port: Option<&str>, wanted: &str) -> bool {
    let rest = port.and_then(|port| port.strip_prefix(wanted));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_asked_for_with_or_without_its_port() {
        let port = Some("default/web:http");
        for (wanted, is_it) in [
            ("default/web", true),
            ("default/web:http", true),
            ("default/web:https", false),
            ("default/we", false),
            ("web", false),
        ] {
            assert_eq!(is_of(port, wanted), is_it, "{wanted}");
        }
        assert!(!is_of(None, "default/web"));
        assert!(is_of(Some("default/web"), "default/web"), "a port without a name");
    }
}
