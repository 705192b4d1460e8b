//! One scrape: what the agent and the kernel have counted, as OpenMetrics text.
//!
//! `topo_lb_core::metrics::declared` has every name.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use topo_lb_common::counters::{Counters, sum};
use topo_lb_common::far_endpoints::Moved;
use topo_lb_common::packets::{Outcome, Packets};

use super::bounded::{Bounded, Counts, Shown};
use super::families::Families;
use super::figures::{Figures, PLANNED, Times};
use super::refusals::Refusals;
use super::services::parts;
use super::zones::{self, FarEndpoints, Matrix};
use super::{dns, ejections, evacuations, island, peers, services, tcp};
use topo_lb_core::metrics::declared;
use topo_lb_core::refusal::Refusal;
use topo_lb_kernel::datapath::attach::walk;
use topo_lb_kernel::datapath::maps::error::ReadError;
use topo_lb_kernel::datapath::maps::usage::TableUse;
use topo_lb_kernel::datapath::maps::{counters, far_endpoints, packets, totals, usage};
use topo_lb_kernel::observe::{Other, Untranslated};

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
    /// Packets by hook, if there are any.
    pub packets: Vec<(&'static str, Packets)>,
    /// How full tc's tables are, of IPv4 and IPv6; `None` without tc.
    pub tables: Option<[TableUse; 2]>,
    /// TCP connections that were not translated and count for no Service port; `None`: nobody counts them.
    pub others: Option<Others>,
}

/// TCP connections that were not translated and count for no Service port.
#[derive(Clone, Debug, Default)]
pub struct Others {
    /// What they moved, and how many were established.
    pub to: BTreeMap<Other, (Moved, u64)>,
    /// How many were not counted at all.
    pub uncounted: u64,
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
            others: None,
        })
    }

    /// Adds what the agent has counted of connections that were not translated. A Service port's connections are
    /// those that topo-lb decided, if it decided any: the others began at zero at another time.
    pub fn add(&mut self, untranslated: Untranslated, uncounted: u64) {
        let Untranslated { by_service, connections, others, far } = untranslated;
        self.services.tcp.extend(by_service);
        let mut left = BTreeMap::<Arc<str>, Counters>::new();
        for ((name, locality), count) in connections {
            *left.entry(name).or_default().at(locality) = count;
        }
        for (name, counters) in left {
            self.services.connections.entry(name).or_insert(counters);
        }
        for (endpoint, moved) in far {
            let all = self.far_endpoints.entry(endpoint).or_default();
            *all = sum([&*all, &moved]);
        }
        self.others = Some(Others { to: others, uncounted });
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
    /// Packets by hook, if there are any.
    pub packets: Vec<(&'static str, Packets)>,
    /// How full tc's tables are, of IPv4 and IPv6; `None` without tc.
    pub tables: Option<[TableUse; 2]>,
    /// Whether the programs only observe.
    pub observes: bool,
    /// Service ports that refuse connections now, by reason.
    pub refusing: BTreeMap<Refusal, u64>,
    /// What was moved to each zone.
    pub matrix: Matrix,
    /// As in [`Counted`].
    pub others: Option<Others>,
    /// Services without a policy that are left alone.
    pub unhandled: u64,
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
        let Counted { services, torn, packets, tables, others, .. } = counted;
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
            others,
            unhandled: 0,
            age: None,
            ready: false,
        }
    }

    /// Encodes the scrape.
    ///
    /// # Errors
    /// None is known: writing to a string does not fail.
    pub fn text(self) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        encode(&mut text, &registry)?;
        Ok(text)
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let families = &mut Families(&mut encoder);
        services::encode(&self.services, &self.refusing, self.observes, families)?;
        self.programs(families)?;
        tcp::encode(&self.services, families)?;
        zones::encode(&self.matrix, families)?;
        self.untranslated(families)?;
        self.maps(families)?;
        evacuations::encode(&self.figures.evacuations, families)?;
        let slow_starts = self.figures.slow_starts.load(Relaxed);
        families.one(&declared::SLOW_STARTS, slow_starts)?;
        let of = ["service", "node"].into_iter().zip(&self.figures.unanswered_health_checks);
        families.by(&declared::UNANSWERED_HEALTH_CHECKS, of)?;
        peers::encode(&self.figures.peers, families)?;
        dns::encode(&self.figures.dns, families)?;
        ejections::encode(&self.figures.ejections, families)?;
        island::encode(&self.figures.island, families)?;
        self.agent(families)
    }
}

impl Scrape {
    fn programs(&self, families: &mut Families<'_, '_>) -> fmt::Result {
        families.one(&declared::OBSERVING, u64::from(self.observes))?;
        if self.observes {
            let overruns = self.figures.observer_overruns.load(Relaxed);
            families.one(&declared::OBSERVER_OVERRUNS, overruns)?;
        }
        families.one(&declared::TORN_READS, self.torn)?;
        let mut family = families.begin(&declared::PACKETS)?;
        for (hook, packets) in &self.packets {
            for outcome in Outcome::ALL {
                family.sample(&[hook, outcome.label()], packets.of(outcome))?;
            }
        }
        let Some(tables) = &self.tables else { return Ok(()) };
        let tables = || ["IPv4", "IPv6"].into_iter().zip(tables);
        let mut family = families.begin(&declared::TRACKED_CONNECTIONS)?;
        for (name, table) in tables() {
            family.sample(&[name, "open"], table.open)?;
            family.sample(&[name, "half-open"], table.half_open)?;
        }
        let mut family = families.begin(&declared::TRACKED_CONNECTIONS_LIMIT)?;
        tables().try_for_each(|(name, table)| family.sample(&[name], table.room))
    }

    fn untranslated(&self, families: &mut Families<'_, '_>) -> fmt::Result {
        families.one(&declared::COUNTING_ALL, u64::from(self.others.is_some()))?;
        let Some(Others { to, uncounted }) = &self.others else { return Ok(()) };
        families.one(&declared::UNCOUNTED_CONNECTIONS, *uncounted)?;
        type Value = fn(&(Moved, u64)) -> u64;
        let all: [(_, Value); 3] = [
            (&declared::OTHER_SENT_BYTES, |(moved, _)| moved.sent),
            (&declared::OTHER_RECEIVED_BYTES, |(moved, _)| moved.received),
            (&declared::OTHER_ENDED_CONNECTIONS, |(_, connections)| *connections),
        ];
        for (metric, value) in all {
            let mut family = families.begin(metric)?;
            for other in Other::ALL {
                let moved = to.get(&other).copied().unwrap_or_default();
                family.sample(&[other.name()], value(&moved))?;
            }
        }
        Ok(())
    }

    fn maps(&self, families: &mut Families<'_, '_>) -> fmt::Result {
        let uses = || PLANNED.into_iter().zip(&self.figures.uses);
        families.by(&declared::MAP_USED_ENTRIES, uses().map(|(map, it)| (map, &it.used)))?;
        families.by(&declared::MAP_CAPACITY_ENTRIES, uses().map(|(map, it)| (map, &it.capacity)))
    }

    fn agent(&self, families: &mut Families<'_, '_>) -> fmt::Result {
        let figures = &self.figures;
        let Times { started, programming, network_programming, .. } = &figures.times;
        families.histogram(&declared::PROGRAMMING_DURATION, programming)?;
        families.histogram(&declared::NETWORK_PROGRAMMING_DURATION, network_programming)?;
        for (metric, figure) in [
            (&declared::MAP_WRITES, &figures.writes),
            (&declared::FAILED_PLANS, &figures.failed_plans),
            (&declared::LAST_PROGRAMMED_TIMESTAMP, &figures.last_programmed),
        ] {
            families.one(metric, figure.load(Relaxed))?;
        }
        families.one(&declared::STATE_AGE, self.age.unwrap_or_default().as_secs_f64())?;
        families.one(&declared::READY, u64::from(self.ready))?;
        families.one(&declared::OVERRIDDEN_HOOKS, figures.overridden_hooks.load(Relaxed))?;
        families.by(&declared::DEVICES, ["guest", "external"].into_iter().zip(&figures.devices))?;
        let by = ["tc", "nftables"].into_iter().zip(&figures.source_nat);
        families.by(&declared::SOURCE_NAT, by)?;
        families.one(&declared::UNHANDLED_SERVICES, self.unhandled)?;
        let [left_out, narrowed, stale, refused, direct] = &figures.unprogrammed;
        for (metric, figure) in [
            (&declared::XDP_DEVICES, &figures.xdp_devices),
            (&declared::UNSERVED_DEVICES, &figures.unserved),
            (&declared::PROGRAMS_IN_FRONT, &figures.in_front),
            (&declared::UNASKED_CGROUPS, &figures.unasked_cgroups),
            (&declared::SERVICES, &figures.services),
            (&declared::WAITING_SERVICES, &figures.waiting),
            (&declared::LEFT_OUT_SERVICES, left_out),
            (&declared::NARROWED_SERVICES, narrowed),
            (&declared::STALE_SERVICES, stale),
            (&declared::NO_ROOM_REFUSED_SERVICES, refused),
            (&declared::DIRECT_DIALS_SERVICES, direct),
            (&declared::EXCLUDED_PODS, &figures.excluded_pods),
            (&declared::STEERED_PODS, &figures.steered_pods),
            (&declared::UNEXCLUDED_PODS, &figures.unexcluded_pods),
            (&declared::SOURCE_TROUBLES, &figures.troubles),
        ] {
            families.one(metric, figure.load(Relaxed))?;
        }
        let kinds = ["TopologyPolicy", "ClusterTopologyPolicy"].into_iter();
        families.by(&declared::KEPT_POLICIES, kinds.zip(&figures.kept_policies))?;
        let kinds = ["services", "endpointslices", "nodes"].into_iter();
        families.by(&declared::SOURCE_LISTINGS, kinds.zip(&figures.listings))?;
        let events = [
            ("sent", &figures.events_sent),
            ("repeated", &figures.events_repeated),
            ("failed", &figures.events_failed),
            ("dropped", &figures.events_dropped),
        ];
        families.by(&declared::KUBERNETES_EVENTS, events)?;
        let protocols = ["udp", "tcp"].into_iter().zip(&figures.sockets.ended);
        families.by(&declared::ENDED_SOCKETS, protocols)?;
        families.one(&declared::UNENDED_SOCKETS, figures.sockets.failures.load(Relaxed))?;
        let returning = &figures.sockets.returning;
        families.one(&declared::RETURNED_SOCKETS, returning.ended.load(Relaxed))?;
        families.one(&declared::RETURNED_BYTES, returning.bytes.load(Relaxed))?;
        let mut family = families.begin(&declared::WIDER_TIER_CONNECTIONS)?;
        let wider = returning.wider.lock().unwrap_or_else(PoisonError::into_inner);
        // Those with series of their own: they had connections.
        for name in self.services.connections.keys().flatten() {
            if let Some(count) = wider.get(name) {
                family.sample(&parts(name), *count)?;
            }
        }
        drop(wider);
        let states = ["waiting", "in-use", "forbidden"].into_iter().zip(&returning.away);
        families.by(&declared::AWAY_SOCKETS, states)?;
        families.one(&declared::HIDDEN_PROCESSES, returning.hidden.load(Relaxed))?;
        let started = started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        families.one(&declared::START_TIMESTAMP, started.as_secs_f64())?;
        families.begin(&declared::BUILD)?.info(&[env!("CARGO_PKG_VERSION")])
    }
}

#[cfg(test)]
mod tests;
