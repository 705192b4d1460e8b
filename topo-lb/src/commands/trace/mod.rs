//! `topo-lb trace`: the decisions on new connections, as the programs of this node make them.
//!
//! The programs write them to a ring buffer. It is read ten times a second, each time no more than fits
//! into it: so it limits what a flood costs. What does not fit is lost, and counted.

mod names;
mod output;
mod pods;
mod remote;
mod row;
mod table;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use aya::maps::{Map, MapInfo};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use topo_lb_common::counters::Name;
use topo_lb_common::maps;
use topo_lb_common::trace::Decision;

use crate::called::called;
use output::Output;
pub use pods::{Owner, PodName, Pods, Told};
pub use remote::{Place, trace_there};
use row::{Clock, Known};
pub use row::{Process, Row};
use table::Columns;
use topo_lb_kernel::datapath::attach::mode::observes;
use topo_lb_kernel::datapath::maps::encode::read_text;
use topo_lb_kernel::datapath::maps::error::StoreError;
use topo_lb_kernel::datapath::maps::pinned::{Hash, Raw, entries, found, open};
use topo_lb_kernel::datapath::maps::trace::{Ring, TraceError};
use topo_lb_kernel::device;

/// The time between two looks at the ring buffer.
const LOOK: Duration = Duration::from_millis(100);
/// Looks between two checks of what was lost.
const CHECK: u32 = 10;
/// Bytes that the kernel adds to an element of a ring buffer (`BPF_RINGBUF_HDR_SZ`).
const HEAD: usize = 8;
/// How long the last look may take after a signal, and then the reader.
const LAST: Duration = Duration::from_millis(300);

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
    /// Whether standard input has the names of Pods; its end ends the trace.
    pub names_from_stdin: bool,
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
    out: impl Write + Send + 'static,
    errors: &mut impl Write,
) -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let told = Told::default();
    let (end, note) = names::learn(&options, &told).await;
    let mut tracer = Tracer::open(options, told)?;
    for note in note.into_iter().chain(tracer.unhandled()?) {
        writeln!(errors, "{}: {note}", called())?;
    }
    let output = Output::start(out)?;
    let mut stop = pin!(async {
        tokio::select! {
            () = end => {}
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
        }
    });
    let ended = tokio::select! {
        ended = tracer.follow(&output, errors) => Some(ended),
        () = &mut stop => None,
    };
    let is_stopped = ended.is_none();
    let ended = match ended {
        Some(ended) => ended,
        // Shows what was decided before the signal, unless the reader has gone.
        None => timeout(LAST, tracer.finish(&output, errors)).await.unwrap_or(Ok(())),
    };
    // Stops the programs' reports before waiting for the reader.
    drop(tracer);
    let limit = async { if is_stopped { sleep(LAST).await } else { stop.await } };
    tokio::select! {
        written = output.end() => written.context("cannot write the result")?,
        () = limit => {}
    }
    ended
}

struct Tracer {
    options: Options,
    ring: Ring,
    names: Names,
    /// Whether the programs only observe.
    is_observed: bool,
    pods: Pods,
    clock: Clock,
    columns: Columns,
    shown: u64,
}

impl Tracer {
    fn open(options: Options, told: Told) -> anyhow::Result<Self> {
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
            let is_told = !told.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
            ensure!(
                pod_logs.is_dir() || is_told,
                "the names of Pods are not known here, because {} is no folder: give the UID of {pod} \
                 to --pod, or the folder of the Pods' logs to --pod-logs",
                pod_logs.display()
            );
        }
        let pods = Pods::new(cgroup_root, pod_logs, told)
            .with_context(|| format!("cannot look into {}", cgroup_root.display()))?;
        let ring = Ring::open(pin_dir, options.buffer).map_err(|error| match error {
            TraceError::Ring(..) => anyhow!("{error}; try another --buffer, as root"),
            other => other.into(),
        })?;
        let names = Names::open(pin_dir)?;
        let (clock, columns) = (Clock::read(), Columns::new(names.longest()?, pods.longest()));
        Ok(Self { options, ring, names, is_observed: false, pods, clock, columns, shown: 0 })
    }

    /// What to say if the programs do not know the Service that is asked for.
    fn unhandled(&self) -> anyhow::Result<Option<String>> {
        let Some(wanted) = &self.options.service else { return Ok(None) };
        for text in self.names.all() {
            if is_of(Some(&text?), wanted) {
                return Ok(None);
            }
        }
        Ok(Some(format!(
            "{wanted} is not handled on this node, so nothing is shown unless that changes: it has no policy and \
             the agent's scope is opt-in, or it has no ClusterIP, or there is no such Service; `topo-lb explain` \
             says which"
        )))
    }

    /// Writes rows until there are as many as wanted, or nobody reads them.
    async fn follow(&mut self, out: &Output, errors: &mut impl Write) -> anyhow::Result<()> {
        if !self.options.is_json && !out.line(self.columns.head()).await {
            return Ok(());
        }
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut look = 0_u32;
        loop {
            looks.tick().await;
            self.say_mode(errors)?;
            let is_over = self.look(out).await?;
            look = look.wrapping_add(1);
            let is_checked = is_over || look.is_multiple_of(CHECK);
            if is_checked && self.check(out, errors).await? || is_over {
                return Ok(());
            }
        }
    }

    /// The last rows, and what was lost.
    async fn finish(&mut self, out: &Output, errors: &mut impl Write) -> anyhow::Result<()> {
        self.look(out).await?;
        self.check(out, errors).await.map(drop)
    }

    /// Says it when the programs begin to only observe.
    fn say_mode(&mut self, errors: &mut impl Write) -> anyhow::Result<()> {
        let before = std::mem::replace(&mut self.is_observed, observes(&self.options.pin_dir));
        if self.is_observed && !before {
            writeln!(
                errors,
                "{}: the agent only observes (--observe): the outcomes are what topo-lb would do, and \
                 another proxy decides",
                called()
            )?;
        }
        Ok(())
    }

    /// Writes the rows since the last look. Returns whether there will be no more.
    async fn look(&mut self, out: &Output) -> anyhow::Result<bool> {
        let room = self.options.buffer as usize / (HEAD + size_of::<Decision>());
        for place in 0..room {
            let Some(decision) = self.ring.take()? else { break };
            if place == 0 {
                self.names.renew(&self.options.pin_dir);
            }
            let Some(row) = self.row(&decision)? else { continue };
            let line = if self.options.is_json {
                serde_json::to_string(&row)?
            } else {
                self.columns.row(&row, self.options.has_colours)
            };
            if !out.line(line).await {
                return Ok(true);
            }
            self.shown += 1;
            if Some(self.shown) == self.options.count {
                return Ok(true);
            }
        }
        Ok(out.is_closed())
    }

    /// Says what was lost, and checks that the programs still know the ring buffer. Returns as
    /// [`look`](Self::look).
    async fn check(&mut self, out: &Output, errors: &mut impl Write) -> anyhow::Result<bool> {
        let lost = self.ring.newly_lost()?;
        if lost > 0 {
            writeln!(
                errors,
                "{}: {lost} connections are not shown: a larger --buffer has room for more",
                called()
            )?;
            if self.options.is_json {
                let line = json!({ "time": Timestamp::now(), "lost": lost });
                return Ok(!out.line(line.to_string()).await);
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
        let port = found(maps::NAMES, self.names.map.get(&Raw(decision.service), 0))?;
        let service: Option<Arc<str>> = port.and_then(|port| read_text(&port.text).map(Arc::from));
        if self.options.service.as_ref().is_some_and(|wanted| !is_of(service.as_deref(), wanted)) {
            return Ok(None);
        }
        let owner = if decision.cgroup == 0 { Owner::Host } else { self.pods.of(decision.cgroup) };
        let is_it = |wanted: &String| matches!(&owner, Owner::Pod(pod) if pod.is(wanted));
        if !self.options.pod.as_ref().is_none_or(is_it) {
            return Ok(None);
        }
        let device = if decision.device == 0 { None } else { device::name(decision.device) };
        Ok(Some(Row::of(
            decision,
            Known { service, owner, device, is_observed: self.is_observed },
            self.clock,
        )))
    }
}

/// The names of Service ports.
struct Names {
    /// The kernel's id of the map.
    id: Option<u32>,
    map: Hash<u32, Name>,
}

impl Names {
    fn open(pin_dir: &Path) -> anyhow::Result<Self> {
        // The id first: if another map gets its pin right now, `renew` opens that.
        let id = Self::pinned(pin_dir);
        Ok(Self { id, map: open(pin_dir, maps::NAMES, Map::HashMap)? })
    }

    fn pinned(pin_dir: &Path) -> Option<u32> {
        MapInfo::from_pin(pin_dir.join(maps::NAMES)).ok().map(|map| map.id())
    }

    /// Every name.
    fn all(&self) -> impl Iterator<Item = Result<Arc<str>, StoreError>> {
        let texts = entries(&self.map, maps::NAMES);
        texts.filter_map(|pair| match pair {
            Ok((_, name)) => read_text(&name.text).map(|text| Ok(Arc::from(text))),
            Err(error) => Some(Err(error)),
        })
    }

    /// Characters of the longest one.
    fn longest(&self) -> Result<usize, StoreError> {
        self.all().try_fold(0, |most, text| Ok(most.max(text?.len())))
    }

    /// Opens the map again if an agent has renewed it.
    fn renew(&mut self, pin_dir: &Path) {
        if Self::pinned(pin_dir).is_some_and(|id| Some(id) != self.id)
            && let Ok(other) = Self::open(pin_dir)
        {
            *self = other;
        }
    }
}

/// Whether this can be the UID of a Pod: that of a static Pod has no hyphens.
fn is_uid(text: &str) -> bool {
    let is_hex = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts: Vec<_> = text.split('-').collect();
    let lengths: Vec<_> = parts.iter().map(|part| part.len()).collect();
    parts.into_iter().all(is_hex) && matches!(lengths[..], [32] | [8, 4, 4, 4, 12])
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
    fn a_uid_has_the_form_of_one() {
        let uid = "0a1b2c3d-0000-4000-8000-000000000001";
        assert!(is_uid(uid) && is_uid(&uid.replace('-', "")));
        for other in ["", "-", "cafe", "default", &uid[1..], &uid.replace('0', "x")] {
            assert!(!is_uid(other), "{other}");
        }
    }

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
