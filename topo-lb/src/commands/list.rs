//! `topo-lb list`: what the kernel's maps hold now, read from the pins, without the agent.

mod connections;
mod hooks;
mod peers;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use clap::ValueEnum;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use topo_lb_common::counters::Counters;

use topo_lb_core::cluster::Frontend;
use topo_lb_core::plan::{Lack, Placed};
use topo_lb_core::topology::Chosen;
use topo_lb_kernel::datapath::maps::bpf::BpfStore;
use topo_lb_kernel::datapath::maps::connections::read as read_connections;
use topo_lb_kernel::datapath::maps::counters::MappedCounters;
use topo_lb_kernel::datapath::maps::error::{ReadError, StoreError};
use topo_lb_kernel::datapath::maps::family::Published;
use topo_lb_kernel::datapath::maps::unprogrammed;

pub use connections::ConnectionRow;
use connections::{connection_row, flow_row, flows};
pub use hooks::{HookRow, Hooks, PacketRow};
pub use peers::{PeerRow, list_peers};

/// What to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum View {
    /// Frontends, and where their connections went.
    Services,
    /// The endpoints that each frontend may use.
    Endpoints,
    /// Flows of unconnected UDP sockets, and connections that tc translates. The flows are in the
    /// sockets: those of other processes take CAP_SYS_PTRACE and the host's pid namespace.
    Connections,
    /// Where programs are attached, and what the kernel has counted there.
    Hooks,
    /// With --direct-return auto: to which other nodes packets of clients outside are sent on, and why to others not. The
    /// agent of this host says the names and reasons.
    Peers,
}

/// The content of the maps.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Listed {
    /// `list services`.
    #[serde(rename_all = "camelCase")]
    Services {
        /// Frontends in the maps.
        services: Vec<ServiceRow>,
        /// Services that lack room in the maps.
        #[serde(rename = "leftOut")]
        unprogrammed: Vec<UnprogrammedRow>,
    },
    /// `list endpoints`.
    Endpoints {
        /// One row per endpoint of a frontend.
        endpoints: Vec<EndpointRow>,
    },
    /// `list connections`.
    Connections {
        /// One row per connection.
        connections: Vec<ConnectionRow>,
        /// Processes whose flows are missing, because they do not show their sockets.
        #[serde(skip)]
        hidden: usize,
    },
    /// `list peers`.
    Peers {
        /// One row per node and version of IP.
        peers: Vec<PeerRow>,
        /// Why there are no names.
        #[serde(skip)]
        trouble: Option<String>,
    },
    /// `list hooks`.
    Hooks {
        /// All hooks.
        hooks: Hooks,
    },
}

/// One Service that lacks room in the maps.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnprogrammedRow {
    /// `namespace/name`.
    pub service: Arc<str>,
    /// Which kind of entry is missing: `services` or `endpoints`; or what the Service alone has too many of:
    /// `too-many-frontends` or `too-many-endpoints`.
    pub lacks: &'static str,
    /// What its connections do: `kube-proxy` (the maps have nothing of it), `narrowed` (at most 6
    /// of its endpoints are used), `last-good` (its endpoints may be out of date), `direct-dials` (these are not
    /// refused) or `refused`.
    pub meanwhile: &'static str,
    /// The agent's flag that makes these maps larger.
    pub flag: &'static str,
}

/// One frontend.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceRow {
    /// `namespace/name:port`.
    pub service: Arc<str>,
    /// `address:port/protocol`.
    pub frontend: String,
    /// `route` or `refuse`.
    pub verdict: &'static str,
    /// Index of the matching key.
    pub tier: Option<u8>,
    /// Endpoints of the chosen tier. With weights: those that share what `spill_percent` leaves.
    pub endpoints: usize,
    /// Endpoints of the wider tier, which get the spill. With weights: all others.
    pub wider: usize,
    /// Share of new connections that goes to `wider`, in percent.
    pub spill_percent: f64,
    /// Session affinity in seconds; zero for none.
    pub affinity_seconds: u32,
    /// Index of its record; it changes with every write.
    pub record: u32,
    /// All connections so far of the whole Service port.
    pub connections: Connections,
}

/// Connections by locality of their endpoint.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Connections {
    /// On this node.
    pub node: u64,
    /// In this zone.
    pub zone: u64,
    /// In this region.
    pub region: u64,
    /// Elsewhere.
    pub elsewhere: u64,
    /// Refused.
    pub refused: u64,
}

impl From<Counters> for Connections {
    fn from(counted: Counters) -> Self {
        Self {
            node: counted.same_node,
            zone: counted.same_zone,
            region: counted.same_region,
            elsewhere: counted.elsewhere,
            refused: counted.refused,
        }
    }
}

/// One endpoint of one frontend.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointRow {
    /// `namespace/name:port`.
    pub service: Arc<str>,
    /// `address:port/protocol`.
    pub frontend: String,
    /// `address:port`.
    pub endpoint: String,
    /// `node`, `zone`, `region` or `elsewhere`.
    pub locality: &'static str,
    /// Its share of new connections, in percent.
    pub share_percent: f64,
}

/// Reads what is requested; of `peers` only what the map has.
pub fn list(pin_dir: &Path, what: View) -> Result<Listed, ReadError> {
    let store = BpfStore::open(pin_dir)?;
    let names = store.names()?;
    let mut published = store.published()?;
    published.sort_by(|a, b| {
        (name(&names, a.placed.entry.index), a.frontend)
            .cmp(&(name(&names, b.placed.entry.index), b.frontend))
    });
    Ok(match what {
        View::Services => Listed::Services {
            services: {
                let counters = MappedCounters::open(pin_dir)?;
                let row = |published| service_row(&counters, &names, published);
                published.into_iter().map(row).collect::<Result<_, _>>()?
            },
            unprogrammed: unprogrammed::read(pin_dir)?.into_iter().map(unprogrammed_row).collect(),
        },
        View::Endpoints => Listed::Endpoints {
            endpoints: published.iter().flat_map(|p| endpoint_rows(&names, p)).collect(),
        },
        View::Connections => {
            let (flows, hidden) = flows(pin_dir)?;
            let indexes: BTreeMap<_, _> =
                published.iter().map(|one| (one.frontend, one.placed.entry.index)).collect();
            let service =
                |frontend: &Frontend| indexes.get(frontend).map(|index| name(&names, *index));
            let flows = flows.into_iter().map(|flow| flow_row(service(&flow.0), flow));
            let connections = read_connections(pin_dir)?.into_iter();
            let connections = connections.map(|connection| connection_row(&names, connection));
            Listed::Connections { connections: flows.chain(connections).collect(), hidden }
        }
        View::Hooks => Listed::Hooks { hooks: hooks::read(pin_dir)? },
        View::Peers => Listed::Peers {
            peers: peers::rows(&peers::entries(pin_dir)?, Vec::new()),
            trouble: None,
        },
    })
}

const UNKNOWN: &str = "?";

fn name(names: &BTreeMap<u32, Arc<str>>, index: u32) -> Arc<str> {
    names.get(&index).cloned().unwrap_or_else(|| UNKNOWN.into())
}

fn service_row(
    counters: &MappedCounters,
    names: &BTreeMap<u32, Arc<str>>,
    published: Published,
) -> Result<ServiceRow, StoreError> {
    let Published { frontend, placed: Placed { entry, record, .. } } = published;
    let (first, second) = entry.row.split_at(entry.row.len().min(entry.count.into()));
    let distinct = |row: &[Chosen]| row.iter().collect::<HashSet<_>>().len();
    Ok(ServiceRow {
        service: name(names, entry.index),
        frontend: frontend.to_string(),
        verdict: if entry.count == 0 { "refuse" } else { "route" },
        tier: entry.tier,
        endpoints: distinct(first),
        wider: distinct(second),
        spill_percent: entry.spilled() * 100.0,
        affinity_seconds: entry.affinity_seconds,
        record,
        connections: counters.of(entry.index)?.into(),
    })
}

fn unprogrammed_row((service, lack): (Arc<str>, Lack)) -> UnprogrammedRow {
    let Lack { of, meanwhile } = lack;
    UnprogrammedRow { service, lacks: of.into(), meanwhile: meanwhile.into(), flag: of.flag() }
}

fn endpoint_rows(names: &BTreeMap<u32, Arc<str>>, published: &Published) -> Vec<EndpointRow> {
    let entry = &published.placed.entry;
    let row = |(chosen, share): (Chosen, f64)| EndpointRow {
        service: name(names, entry.index),
        frontend: published.frontend.to_string(),
        endpoint: chosen.address().to_string(),
        locality: chosen.locality.name(),
        // To a thousandth of a percent.
        share_percent: (share * 1e5).round() / 1e3,
    };
    entry.shares().into_iter().map(row).collect()
}

impl EndpointRow {
    /// The share in percent, for people.
    pub(crate) fn share(&self) -> String {
        format!("{:.2}%", self.share_percent)
    }
}

impl Listed {
    /// The rows as a table for people.
    pub fn table(&self) -> String {
        match self {
            Self::Services { services, unprogrammed } => {
                [services_table(services), unprogrammed_table(unprogrammed)].concat()
            }
            Self::Endpoints { endpoints: rows } => {
                let mut table = table(&["SERVICE", "FRONTEND", "ENDPOINT", "LOCALITY", "SHARE"]);
                if let Some(share) = table.column_mut(4) {
                    share.set_cell_alignment(CellAlignment::Right);
                }
                for row in rows {
                    table.add_row([
                        &row.service,
                        row.frontend.as_str(),
                        &row.endpoint,
                        row.locality,
                        &row.share(),
                    ]);
                }
                finished(table, rows.len(), "endpoint")
            }
            Self::Connections { connections: rows, .. } => {
                let header = ["SERVICE", "FRONTEND", "ENDPOINT", "CLIENT", "STATE", "IDLE"];
                let mut table = table(&header);
                for row in rows {
                    let socket = || row.socket.map(|cookie| format!("socket {cookie}"));
                    table.add_row([
                        row.service.to_string(),
                        row.frontend.clone(),
                        row.endpoint.clone(),
                        row.client.clone().or_else(socket).unwrap_or_default(),
                        row.state.unwrap_or("-").to_owned(),
                        row.idle_seconds.map_or("-".to_owned(), |idle| format!("{idle} s")),
                    ]);
                }
                finished(table, rows.len(), "connection")
            }
            Self::Hooks { hooks } => hooks.table(),
            Self::Peers { peers: rows, .. } => {
                let mut table = table(&["NODE", "FAMILY", "STATE", "ETHERNET", "REASON"]);
                let text = |text: &Option<String>| text.as_deref().unwrap_or("-").to_owned();
                for row in rows {
                    table.add_row([
                        text(&row.node),
                        row.family.to_string(),
                        <&str>::from(row.state).to_owned(),
                        text(&row.ethernet),
                        text(&row.reason),
                    ]);
                }
                finished(table, rows.len(), "other node")
            }
        }
    }
}

fn services_table(rows: &[ServiceRow]) -> String {
    let mut table = table(&[
        "SERVICE",
        "FRONTEND",
        "TIER",
        "ENDPOINTS",
        "NODE",
        "ZONE",
        "REGION",
        "ELSEWHERE",
        "REFUSED",
    ]);
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for row in rows {
        let endpoints = match (row.endpoints, row.wider) {
            (0, _) => "refuses".to_owned(),
            (count, 0) => count.to_string(),
            (count, wider) => format!("{count} +{wider} for {}%", row.spill_percent),
        };
        let went = &row.connections;
        table.add_row([
            row.service.to_string(),
            row.frontend.clone(),
            row.tier.map_or("-".to_owned(), |tier| tier.to_string()),
            endpoints,
            went.node.to_string(),
            went.zone.to_string(),
            went.region.to_string(),
            went.elsewhere.to_string(),
            went.refused.to_string(),
        ]);
    }
    finished(table, rows.len(), "frontend")
}

/// Empty if every Service has room.
fn unprogrammed_table(rows: &[UnprogrammedRow]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut table = table(&["NO ROOM FOR", "LACKS", "MEANWHILE", "RAISE"]);
    for row in rows {
        table.add_row([&*row.service, row.lacks, row.meanwhile, row.flag]);
    }
    format!(
        "\n\n{} room in the maps:\n\n{}",
        if rows.len() == 1 {
            "1 Service lacks".to_owned()
        } else {
            format!("{} Services lack", rows.len())
        },
        table.trim_fmt()
    )
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    table
}

fn finished(table: Table, count: usize, what: &str) -> String {
    if count == 0 {
        return format!("No {what}s.");
    }
    table.trim_fmt()
}
