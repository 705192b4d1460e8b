//! What the agent's own tasks count: mostly atomics, written and read without a lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use prometheus_client::metrics::histogram::Histogram;
use topo_lb_common::maps;

use super::dns::DnsFigures;
use super::ejections::EjectionFigures;
use super::evacuations::EvacuationFigures;
use super::island::IslandFigures;
use super::peers::PeerFigures;
use topo_lb_core::cluster::Family;
use topo_lb_core::plan::Installed;
use topo_lb_kernel::observe::Untranslated;
use topo_lb_kernel::socket::terminator::EndedSockets;

/// Buckets from a watch event to the maps, in seconds; the target is 10 ms for 99 % of events.
const PROGRAMMING: [f64; 13] =
    [0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0];
/// Buckets from a Pod's change to the maps, in seconds; includes kubelet, API server, controller.
const NETWORK_PROGRAMMING: [f64; 14] =
    [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

/// The maps that plans fill, in the order of [`Figures::uses`].
pub const PLANNED: [&str; 7] = [
    maps::SERVICES4,
    maps::SERVICES6,
    maps::SLOTS4,
    maps::SLOTS6,
    maps::MEMBERS4,
    maps::MEMBERS6,
    maps::NAMES,
];

/// How full a map is.
#[derive(Debug, Default)]
pub struct Use {
    /// Entries in use.
    pub used: AtomicU64,
    /// Most entries; zero until the maps are open.
    pub capacity: AtomicU64,
}

/// When the agent started, and how long its work took since.
#[derive(Debug)]
pub struct Times {
    /// When the agent started.
    pub started: SystemTime,
    epoch: Instant,
    /// Seconds from the arrival of an update to the end of the plan that carries it out.
    pub programming: Histogram,
    /// Seconds from a slice's trigger-time annotation to the end of the plan that carries the
    /// change out.
    pub network_programming: Histogram,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            started: SystemTime::now(),
            epoch: Instant::now(),
            programming: Histogram::new(PROGRAMMING),
            network_programming: Histogram::new(NETWORK_PROGRAMMING),
        }
    }
}

/// What the agent's tasks count.
#[derive(Debug, Default)]
pub struct Figures {
    /// Start and durations.
    pub times: Times,
    beat: AtomicU64,
    /// Steps of plans that were carried out.
    pub writes: AtomicU64,
    /// Plans that failed.
    pub failed_plans: AtomicU64,
    /// Seconds since 1970 when the last plan was carried out; zero before the first.
    pub last_programmed: AtomicU64,
    /// Problems of the source or of its objects.
    pub troubles: AtomicU64,
    /// Listings of all Services, EndpointSlices and Nodes.
    pub listings: [AtomicU64; 3],
    /// Known Services, including skipped ones.
    pub services: AtomicU64,
    /// Services that wait for the labels of other Nodes.
    pub waiting: AtomicU64,
    /// TopologyPolicies and ClusterTopologyPolicies that only agents have.
    pub kept_policies: [AtomicU64; 2],
    /// Services that lack room in the maps, in the order of `Meanwhile::ALL`; `Nobody` counts as
    /// `KubeProxy`.
    pub unprogrammed: [AtomicU64; 5],
    /// Excluded Pods: their connections are left untouched.
    pub excluded_pods: AtomicU64,
    /// Steered Pods.
    pub steered_pods: AtomicU64,
    /// Pods to exclude or to steer for which the map has no room.
    pub unexcluded_pods: AtomicU64,
    /// Kubernetes Events that the API server accepted.
    pub events_sent: AtomicU64,
    /// Events that another agent had already sent.
    pub events_repeated: AtomicU64,
    /// Attempts that the API server did not accept.
    pub events_failed: AtomicU64,
    /// Events dropped as there were too many, or as their Service was gone.
    pub events_dropped: AtomicU64,
    /// Hooks at which a foreign program runs before ours.
    pub overridden_hooks: AtomicU64,
    /// Devices with tc programs, in the order of `Role::BOTH`.
    pub devices: [AtomicU64; 2],
    /// Devices with the program of XDP.
    pub xdp_devices: AtomicU64,
    /// Who gives connections from outside to endpoints of other nodes their source: 1 for tc or nftables.
    pub source_nat: [AtomicU64; 2],
    /// Devices by which clients outside may come, and that no program serves.
    pub unserved: AtomicU64,
    /// Foreign programs that see packets of clients outside before ours do.
    pub in_front: AtomicU64,
    /// Known cgroups that the last look did not query.
    pub unasked_cgroups: AtomicU64,
    /// Services of which an endpoint gets less than its share, because of a slow start.
    pub slow_starts: AtomicU64,
    /// Health checks of load balancers without a listener: of Services, of the node.
    pub unanswered_health_checks: [AtomicU64; 2],
    /// Of ended sockets.
    pub sockets: Arc<EndedSockets>,
    /// Of endpoints that are ejected.
    pub ejections: EjectionFigures,
    /// Of evacuations.
    pub evacuations: EvacuationFigures,
    /// Of islands.
    pub island: IslandFigures,
    /// Of direct return.
    pub peers: PeerFigures,
    /// Of the resolver.
    pub dns: DnsFigures,
    /// New connections that the agent could not observe, or times that the kernel dropped some.
    pub observer_overruns: Arc<AtomicU64>,
    /// What TCP connections moved that topo-lb did not translate, once the agent counts them. Written by the agent
    /// task, read by scrapes.
    pub untranslated: OnceLock<Mutex<Untranslated>>,
    /// How full the maps are, in the order of [`PLANNED`].
    pub uses: [Use; PLANNED.len()],
}

/// Adds one.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

impl Figures {
    /// Records that the agent task makes progress.
    pub fn beat(&self) {
        let now = u64::try_from(self.times.epoch.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.beat.store(now, Relaxed);
    }

    /// Time since the last `beat`, to a millisecond.
    #[must_use]
    pub fn since_beat(&self) -> Duration {
        self.times.epoch.elapsed().saturating_sub(Duration::from_millis(self.beat.load(Relaxed)))
    }

    /// Records that a plan of so many steps was carried out, and how full the maps are now.
    pub fn programmed(&self, steps: usize, installed: &Installed) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.last_programmed.store(now.as_secs(), Relaxed);
        self.writes.fetch_add(steps as u64, Relaxed);
        let capacity = installed.capacity();
        let slots = |family| u64::from(capacity.slots - installed.slots(family).available());
        let now: [(u64, u32); PLANNED.len()] = [
            (installed.frontends_in(Family::V4) as u64, capacity.services),
            (installed.frontends_in(Family::V6) as u64, capacity.services),
            (slots(Family::V4), capacity.slots),
            (slots(Family::V6), capacity.slots),
            (installed.members_in(Family::V4) as u64, capacity.members),
            (installed.members_in(Family::V6) as u64, capacity.members),
            (installed.indexes().len() as u64, capacity.services),
        ];
        for (map, (used, capacity)) in self.uses.iter().zip(now) {
            map.used.store(used, Relaxed);
            map.capacity.store(capacity.into(), Relaxed);
        }
    }
}
