//! One scrape: what the agent and the kernel have counted, as OpenMetrics text.
//!
//! `docs/metrics.md` lists every name; a test compares.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use topo_lb_common::packets::{Outcome, Packets};

use super::bounded::{Bounded, Counts, Shown};
use super::figures::{Figures, PLANNED};
use super::refusals::Refusals;
use super::sample::counter;
use super::zones::{self, FarEndpoints, Matrix};
use super::{dns, ejections, services, tcp};
use topo_lb_core::refusal::Refusal;
use topo_lb_kernel::datapath::attach::walk;
use topo_lb_kernel::datapath::direction::Direction;
use topo_lb_kernel::datapath::maps::error::ReadError;
use topo_lb_kernel::datapath::maps::usage::TableUse;
use topo_lb_kernel::datapath::maps::{counters, far_endpoints, packets, totals, usage};

/// The `Content-Type` of the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What the kernel has counted.
#[derive(Debug, Default)]
pub struct Counted {
    /// Of Service ports.
    pub services: Counts,
    /// What TCP connections moved to endpoints outside of this node's zone.
    pub far_endpoints: FarEndpoints,
    /// Look-ups of Services that gave no consistent value.
    pub torn: u64,
    /// Packets by tc hook, if there are any.
    pub packets: Vec<(Direction, Packets)>,
    /// How full tc's tables are, of IPv4 and IPv6; `None` without tc.
    pub tables: Option<[TableUse; 2]>,
}

impl Counted {
    /// Reads them from the pinned maps.
    ///
    /// # Errors
    /// A map cannot be opened or read.
    pub fn read(pin_dir: &Path) -> Result<Self, ReadError> {
        walk::run(pin_dir).map_err(|(path, error)| ReadError::Link(path, error))?;
        Ok(Self {
            services: Counts::read(pin_dir)?,
            far_endpoints: far_endpoints::read(pin_dir)?,
            torn: counters::torn(pin_dir)?,
            packets: packets::read(pin_dir)?,
            tables: usage::read(pin_dir)?,
        })
    }
}

impl Counts {
    /// Reads them from the pinned maps.
    ///
    /// # Errors
    /// A map cannot be opened or read.
    pub fn read(pin_dir: &Path) -> Result<Self, ReadError> {
        let connections = counters::connections(pin_dir)?;
        Ok(Self { connections, tcp: totals::read(pin_dir)?, ..Self::default() })
    }
}

/// Everything that one scrape shows.
#[derive(Debug)]
pub struct Scrape {
    /// What the agent has counted.
    pub figures: Arc<Figures>,
    /// What is counted of Service ports.
    pub services: Shown,
    /// Look-ups of Services that gave no consistent value.
    pub torn: u64,
    /// Packets by tc hook, if there are any.
    pub packets: Vec<(Direction, Packets)>,
    /// How full tc's tables are, of IPv4 and IPv6; `None` without tc.
    pub tables: Option<[TableUse; 2]>,
    /// Whether the programs only observe.
    pub observes: bool,
    /// Service ports that refuse connections now, by reason.
    pub refusing: BTreeMap<Refusal, u64>,
    /// What was moved to each zone.
    pub matrix: Matrix,
    /// How old the state is, unless it is live.
    pub age: Option<Duration>,
    /// Whether every condition of readiness is met.
    pub ready: bool,
}

impl Scrape {
    /// Combines the agent's and the kernel's counts. New refusals count for the current `reasons`.
    #[must_use]
    pub fn of(
        figures: Arc<Figures>,
        counted: Counted,
        reasons: &BTreeMap<Arc<str>, Refusal>,
        refusals: &mut Refusals,
        bounded: &mut Bounded,
    ) -> Self {
        let Counted { services, torn, packets, tables, .. } = counted;
        let refused = services.connections.iter().filter(|(_, counters)| counters.refused > 0);
        let refused =
            refused.map(|(name, counters)| (Arc::clone(name), counters.refused)).collect();
        refusals.look(&refused, reasons);
        let services = bounded.look(services, refusals);
        let mut refusing = BTreeMap::new();
        for reason in reasons.values() {
            *refusing.entry(*reason).or_default() += 1;
        }
        Self {
            figures,
            services,
            torn,
            packets,
            tables,
            observes: false,
            refusing,
            matrix: Matrix::default(),
            age: None,
            ready: false,
        }
    }

    /// Encodes the scrape.
    ///
    /// # Errors
    /// None is known: writing to a string does not fail.
    pub fn text(self) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix("topo_lb");
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        encode(&mut text, &registry)?;
        Ok(text)
    }
}

/// Writes families, each with its name and help.
struct Families<'a, 'e>(&'a mut DescriptorEncoder<'e>);

impl Families<'_, '_> {
    fn counter(&mut self, name: &str, help: &str, value: &AtomicU64) -> fmt::Result {
        self.0
            .encode_descriptor(name, help, None, MetricType::Counter)?
            .encode_counter::<NoLabelSet, u64, f64>(&value.load(Relaxed), None)
    }

    fn gauge(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        value: &impl EncodeGaugeValue,
    ) -> fmt::Result {
        self.0.encode_descriptor(name, help, unit, MetricType::Gauge)?.encode_gauge(value)
    }

    fn level(&mut self, name: &str, help: &str, value: &AtomicU64) -> fmt::Result {
        self.gauge(name, help, None, &value.load(Relaxed))
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) -> fmt::Result {
        let unit = Some(&Unit::Seconds);
        histogram.encode(self.0.encode_descriptor(name, help, unit, histogram.metric_type())?)
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        services::encode(&self.services, &self.refusing, self.observes, &mut encoder)?;
        self.programs(&mut encoder)?;
        tcp::encode(&self.services, &mut encoder)?;
        zones::encode(&self.matrix, &mut encoder)?;
        self.maps(&mut encoder)?;
        self.health_checks(&mut encoder)?;
        dns::encode(&self.figures.dns, &mut encoder)?;
        ejections::encode(&self.figures.ejections, &mut encoder)?;
        self.agent(&mut Families(&mut encoder))
    }
}

impl Scrape {
    fn programs(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Whether the agent only observes: it translates nothing (--observe)";
        encoder
            .encode_descriptor("observing", help, None, MetricType::Gauge)?
            .encode_gauge(&u64::from(self.observes))?;
        if self.observes {
            let help = "New connections that the agent could not observe, and times that the kernel \
                        dropped some";
            let overruns = &self.figures.observer_overruns;
            Families(encoder).counter("observer_overruns", help, overruns)?;
        }
        let help = "Connections and datagrams that were refused because the Service's value was \
                    being replaced in each of three attempts to read it";
        encoder
            .encode_descriptor("torn_reads", help, None, MetricType::Counter)?
            .encode_counter::<NoLabelSet, u64, f64>(&self.torn, None)?;
        let help = "Packets on the devices of guests and of clients outside by what became of them";
        let mut family = encoder.encode_descriptor("packets", help, None, MetricType::Counter)?;
        for (direction, packets) in &self.packets {
            for outcome in Outcome::ALL {
                let labels = [("direction", direction.into()), ("outcome", outcome.label())];
                counter(&mut family, &labels, packets.of(outcome))?;
            }
        }
        self.tables(encoder)
    }

    fn tables(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(tables) = &self.tables else { return Ok(()) };
        let families = || ["IPv4", "IPv6"].into_iter().zip(tables);
        let help =
            "Connections of guests and of clients outside that are open, or not established yet";
        let mut family =
            encoder.encode_descriptor("tracked_connections", help, None, MetricType::Gauge)?;
        for (name, table) in families() {
            for (state, value) in [("open", table.open), ("half-open", table.half_open)] {
                let labels = [("family", name), ("state", state)];
                family.encode_family(&labels)?.encode_gauge(&value)?;
            }
        }
        let help = "Open connections of guests and of clients outside that there is room for";
        let mut family = encoder.encode_descriptor(
            "tracked_connections_limit",
            help,
            None,
            MetricType::Gauge,
        )?;
        for (name, table) in families() {
            family.encode_family(&[("family", name)])?.encode_gauge(&table.room)?;
        }
        Ok(())
    }

    fn maps(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help) in [
            ("map_used_entries", "Entries of a map that are in use"),
            ("map_capacity_entries", "Entries that a map has room for"),
        ] {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (map, one) in PLANNED.iter().zip(&self.figures.uses) {
                let value = if name == "map_used_entries" { &one.used } else { &one.capacity };
                family.encode_family(&[("map", *map)])?.encode_gauge(&value.load(Relaxed))?;
            }
        }
        Ok(())
    }

    fn health_checks(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Health checks of load balancers that the agent should answer and cannot, as \
                    their port is taken: of Services, or of the node";
        let mut family =
            encoder.encode_descriptor("unanswered_health_checks", help, None, MetricType::Gauge)?;
        for (of, value) in ["service", "node"].iter().zip(&self.figures.unanswered_health_checks) {
            family.encode_family(&[("of", *of)])?.encode_gauge(&value.load(Relaxed))?;
        }
        Ok(())
    }

    fn agent(&self, families: &mut Families<'_, '_>) -> fmt::Result {
        let figures = &self.figures;
        families.histogram(
            "programming_duration",
            "From the arrival of a change to the end of the writes that it led to",
            &figures.times.programming,
        )?;
        families.histogram(
            "network_programming_duration",
            "From endpoints.kubernetes.io/last-change-trigger-time of an EndpointSlice to the end \
             of the writes that it led to; changes from before the start are left out",
            &figures.times.network_programming,
        )?;
        families.counter("map_writes", "Steps of plans that were carried out", &figures.writes)?;
        families.counter(
            "failed_plans",
            "Plans that could not be carried out, and were made anew",
            &figures.failed_plans,
        )?;
        families.gauge(
            "last_programmed_timestamp",
            "When the last plan was carried out, since 1970; zero before the first",
            Some(&Unit::Seconds),
            &figures.last_programmed.load(Relaxed),
        )?;
        families.gauge(
            "state_age",
            "How old the cluster's state is that is served; zero while changes are heard of as \
             they happen",
            Some(&Unit::Seconds),
            &self.age.unwrap_or_default().as_secs_f64(),
        )?;
        families.gauge("ready", "Whether /readyz says ready", None, &u64::from(self.ready))?;
        families.level(
            "overridden_hooks",
            "Hooks, of connect4, connect6, sendmsg4 and sendmsg6, where a program of others runs \
             before topo-lb's in some cgroup and may decide first",
            &figures.overridden_hooks,
        )?;
        let help = "Devices with tc programs: of guests, and of clients outside";
        let mut family = families.0.encode_descriptor("devices", help, None, MetricType::Gauge)?;
        for (role, value) in ["guest", "external"].iter().zip(&figures.devices) {
            family.encode_family(&[("role", *role)])?.encode_gauge(&value.load(Relaxed))?;
        }
        let help = "Who gives connections from outside to endpoints of other nodes their source";
        let mut family =
            families.0.encode_descriptor("source_nat", help, None, MetricType::Gauge)?;
        for (by, value) in ["tc", "nftables"].iter().zip(&figures.source_nat) {
            family.encode_family(&[("by", *by)])?.encode_gauge(&value.load(Relaxed))?;
        }
        families.level(
            "unserved_devices",
            "Devices without Ethernet headers by which clients outside may come: they are not served",
            &figures.unserved,
        )?;
        families.level(
            "programs_in_front",
            "Programs of others that see packets of clients outside before topo-lb's",
            &figures.in_front,
        )?;
        families.level(
            "unasked_cgroups",
            "Cgroups that wait to be asked which programs run there",
            &figures.unasked_cgroups,
        )?;
        families.level("services", "Services that there are", &figures.services)?;
        families.level(
            "waiting_services",
            "Services that wait for the labels of other Nodes: the maps keep what they have for them",
            &figures.waiting,
        )?;
        let words = [
            (
                "left_out_services",
                "Services that have no room in the maps, and are left to kube-proxy, \
                 or served by nobody where there is none",
            ),
            (
                "narrowed_services",
                "Services that use at most 6 of their endpoints, as the maps are full",
            ),
            ("stale_services", "Services whose endpoints may be out of date, as the maps are full"),
            ("no_room_refused_services", "Strict Services that are refused, as the maps are full"),
        ];
        for ((name, help), count) in words.into_iter().zip(&figures.unprogrammed) {
            families.gauge(name, help, None, &count.load(Relaxed))?;
        }
        families.level(
            "excluded_pods",
            "Pods of this node whose connections are left alone",
            &figures.excluded_pods,
        )?;
        families.level(
            "unexcluded_pods",
            "Pods of this node that are to be left alone, and for which there is no room",
            &figures.unexcluded_pods,
        )?;
        families.counter(
            "source_troubles",
            "Sentences about something wrong with the API server, the manifests or an object",
            &figures.troubles,
        )?;
        let help = "Listings of all objects of a kind: at start, and after what could not be \
                    bridged by a watch";
        let mut family =
            families.0.encode_descriptor("source_listings", help, None, MetricType::Counter)?;
        for (kind, value) in ["services", "endpointslices", "nodes"].iter().zip(&figures.listings) {
            counter(&mut family, &[("kind", *kind)], value.load(Relaxed))?;
        }
        let help = "Kubernetes Events by what became of them";
        let mut family =
            families.0.encode_descriptor("kubernetes_events", help, None, MetricType::Counter)?;
        for (outcome, value) in [
            ("sent", &figures.events_sent),
            ("repeated", &figures.events_repeated),
            ("failed", &figures.events_failed),
            ("dropped", &figures.events_dropped),
        ] {
            counter(&mut family, &[("outcome", outcome)], value.load(Relaxed))?;
        }
        let help = "Connected sockets of applications that were ended because their endpoint serves \
                    no more, or because they connected before their Service was served";
        let mut family =
            families.0.encode_descriptor("ended_sockets", help, None, MetricType::Counter)?;
        for (protocol, value) in ["udp", "tcp"].iter().zip(&figures.sockets.ended) {
            counter(&mut family, &[("protocol", *protocol)], value.load(Relaxed))?;
        }
        families.counter(
            "unended_sockets",
            "Times that sockets of a network namespace could not be looked for or ended, and times \
             that endpoints went faster than that",
            &figures.sockets.failures,
        )?;
        let started =
            figures.times.started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        families.gauge(
            "start_timestamp",
            "When the agent started, since 1970",
            Some(&Unit::Seconds),
            &started.as_secs_f64(),
        )?;
        let help = "The version of the agent";
        let mut family = families.0.encode_descriptor("build", help, None, MetricType::Info)?;
        family.encode_info(&[("version", env!("CARGO_PKG_VERSION"))])
    }
}

#[cfg(test)]
mod tests;
