//! What a change of the cluster would do to clients and endpoints, before it is made: pure. `topo-lb
//! plan` prints it. ([`plan`](crate::plan) is about the kernel's maps.)
//!
//! | file | idea |
//! |---|---|
//! | `setting` | a change of one annotation |
//! | `proxied` | a cluster in which kube-proxy serves what topo-lb leaves to it |
//! | `load` | what nodes get from a Service port, and what its endpoints get from them |
//! | `compare` | the same before and after |
//! | `advice` | which policies save most money |
//! | `cost`, `price` | what bytes cost |
//! | `figures` | what agents have counted of Service ports |
//! | `moved` | how many of those bytes would leave their zone |
//! | `since` | what has changed since a moment, as agents counted it |
//! | `without` | the rehearsal of an evacuation |
//! | `restored` | the cluster as it would be without those in force |
//! | `table` | the report as text |

mod advice;
mod chosen;
mod compare;
mod cost;
mod figures;
mod load;
mod moved;
mod price;
mod proxied;
mod restored;
mod setting;
mod since;
mod table;
mod without;

use std::net::IpAddr;
use std::ops::AddAssign;
use std::sync::Arc;

use serde::Serialize;

use crate::cluster::{ServiceId, State};
use crate::explain::{Policy, Port};

pub use advice::{Advice, Advised, Asked, Left, advise, table as advice_table};
pub use chosen::Chosen;
pub use compare::compare;
pub use cost::{Cost, cost};
pub use figures::{Figures, Moved, Wider};
pub use price::{Prices, PricesError, months};
pub use proxied::Proxied;
pub use restored::restored;
pub use setting::{Setting, SettingError, apply};
pub use since::{Distance, Followed, Measured, Outcome, Since, since, table as since_table};
pub use table::table;
pub use without::{Rehearsal, evacuate, rehearse, without_table};

/// How clients are counted. Nothing in manifests says how many connections a node opens.
pub const ASSUMPTION: &str = "each node counts as one client, and all clients open equally many \
                              connections to each Service port";

/// How bytes are attributed. Metrics do not say which endpoint got which bytes.
pub const BYTES_ASSUMPTION: &str = "a node with bytes counts by these, in place of one client; they follow \
                                    its clients' connections; those of a node that is not named, or is \
                                    gone, follow all connections; metrics do not say the address family, so a Service port's are at \
                                    the first one that changes";

/// Manifests are not of a whole cluster: without these objects, every Service would seem to be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no {0} in it, but plan needs all Nodes, Services and EndpointSlices of the cluster: \
     kubectl get nodes,services,endpointslices -A -o json"
)]
pub struct Incomplete(&'static str);

/// Whether `state` can be a whole cluster.
///
/// # Errors
/// It has no object of some kind.
pub fn whole(state: &State) -> Result<(), Incomplete> {
    if state.nodes().next().is_none() {
        return Err(Incomplete("Node"));
    }
    if state.services().len() == 0 {
        return Err(Incomplete("Service"));
    }
    match state.all_slices().next() {
        None => Err(Incomplete("EndpointSlice of a Service")),
        Some(_) => Ok(()),
    }
}

/// A value before the change, and after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Both<T> {
    /// Before.
    pub before: T,
    /// After.
    pub after: T,
}

/// What a change does. Its JSON is a fixed interface; skipped fields are for the table.
#[derive(Clone, Debug, Serialize)]
pub struct Report<'a> {
    /// How clients are counted: [`ASSUMPTION`].
    pub assumption: &'static str,
    /// How bytes are attributed: [`BYTES_ASSUMPTION`]; `None` without figures.
    #[serde(skip_serializing_if = "Option::is_none", rename = "bytesAssumption")]
    pub bytes_assumption: Option<&'static str>,
    /// The time that the bytes are of, such as `1d`; `None`: since the agents' counters began.
    #[serde(skip_serializing_if = "Option::is_none", rename = "bytesOver")]
    pub bytes_over: Option<Arc<str>>,
    /// Bytes that left the zone of clients of what changes that dialled endpoints by their own addresses, and so go
    /// where they went, or are refused ([`ServicePort::refused_direct`]). `None` without figures.
    #[serde(skip_serializing_if = "Option::is_none", rename = "bytesDirect")]
    pub bytes_direct: Option<f64>,
    /// What the bytes of clients of what changes cost; `None` if nobody asked, or none are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// The Node label that groups nodes.
    pub label: &'a str,
    /// Service ports that change, and those asked for; by namespace, name, port, protocol, family.
    pub services: Vec<ServicePort<'a>>,
    /// Sums over all that change.
    pub totals: Totals,
}

/// A Service port in one address family.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServicePort<'a> {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// The port. Its name is the one after the change, if it is there then.
    pub port: Port,
    /// `IPv4` or `IPv6`.
    pub family: &'static str,
    /// Whether it is different after the change.
    pub changes: bool,
    /// Who serves it by which policy; `None` while clients cannot dial it by a ClusterIP.
    pub served: Both<Option<Served>>,
    /// The nodes, by their value of the label; those without the label first.
    pub groups: Vec<Group<'a>>,
    /// How many nodes refuse clients that dial by address the endpoints that the policy passes over
    /// (`topo-lb.io/direct: refuse`).
    #[serde(rename = "refusedDirect")]
    pub refused_direct: Both<usize>,
    /// Every endpoint that some node uses, before or after, by address and port.
    pub endpoints: Vec<Endpoint<'a>>,
    /// How many endpoints there are to choose from.
    #[serde(skip)]
    pub usable: Both<usize>,
    /// The bytes of its clients; `None` if agents have counted none. Metrics do not tell address families
    /// apart: those of both are at the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Bytes>,
    /// Its open connections that would return to a nearer tier now; `None` if nobody knows. Those of both families
    /// are where `bytes` are.
    #[serde(skip_serializing_if = "Option::is_none", rename = "widerTier")]
    pub wider: Option<Wider>,
}

/// What clients moved over TCP in both directions, in bytes, and where it would go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Bytes {
    /// All that agents have counted.
    pub moved: f64,
    /// How many of them have left their zone or region; `None` if nodes are grouped by another label.
    pub crossed: Option<f64>,
    /// How many of them are expected to leave their zone (or other group).
    pub crossing: Both<f64>,
    /// How many of them are of clients that get no endpoint.
    pub stopped: Both<f64>,
}

/// How a Service is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Served {
    /// `topo-lb`; or `kube-proxy`, if topo-lb leaves the Service alone.
    pub by: &'static str,
    /// The policy in force. kube-proxy follows only hints.
    pub policy: Policy,
    /// Annotation `topo-lb.io/refusal: intended`.
    #[serde(skip)]
    pub refusal_intended: bool,
}

/// Nodes that share their value of the label.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Group<'a> {
    /// The value; `None` for nodes without the label.
    pub value: Option<&'a str>,
    /// How many nodes there are; 0 while clients cannot dial the Service port.
    pub nodes: Both<usize>,
    /// How many different endpoints these nodes use.
    pub endpoints: Both<usize>,
    /// How many of these nodes are refused.
    pub refused: Both<usize>,
    /// Nodes, by name, that are refused after and were not before.
    pub newly_refused: Vec<&'a str>,
    /// Nodes, by name, that were refused before and are served after.
    pub served_again: Vec<&'a str>,
    /// Share of their connections, 0–1, that stays at endpoints with this value of the label or on the
    /// client's node; `None` if all are refused.
    pub staying: Both<Option<f64>>,
}

/// An endpoint and its load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Endpoint<'a> {
    /// Its address.
    pub address: IpAddr,
    /// Its port, 1–65535.
    pub port: u16,
    /// The node that it is on.
    pub node: Option<&'a str>,
    /// Its value of the label.
    pub value: Option<&'a str>,
    /// Its load, in clients: 2.5 is as much as two and a half nodes open. The loads of a Service port
    /// sum to the number of nodes that are served.
    pub load: Both<f64>,
    /// The load after, divided by the load before; `None` if it had none.
    pub times: Option<f64>,
}

/// Sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    /// Service ports by address family, before or after.
    pub service_ports: usize,
    /// How many of these change.
    pub changed: usize,
    /// How many of these refuse a node that they did not refuse before.
    pub newly_refusing: usize,
    /// How many of these have an annotation or field that is ignored and was not there before.
    pub newly_ignored: usize,
    /// Share of the connections to those that change, 0–1, that stays; `None` if all are refused.
    pub staying: Both<Option<f64>>,
    /// The bytes of clients of those that change; `None` if agents have counted none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Bytes>,
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, more: Self) {
        self.moved += more.moved;
        self.crossed = self.crossed.zip(more.crossed).map(|(one, other)| one + other);
        for (sum, more) in [(&mut self.crossing, more.crossing), (&mut self.stopped, more.stopped)]
        {
            sum.before += more.before;
            sum.after += more.after;
        }
    }
}

/// Who serves a Service, as in [`Served::by`].
pub(crate) const TOPO_LB: &str = "topo-lb";

/// The part of a Service's bytes that may leave the zone by chance beyond what is expected: clients are few, and move
/// different amounts.
const OF_CHANCE: f64 = 0.1;

impl ServicePort<'_> {
    /// The Service.
    #[must_use]
    pub fn service(&self) -> ServiceId {
        ServiceId { namespace: self.namespace.as_str().into(), name: self.name.as_str().into() }
    }

    /// Whether topo-lb serves it by a policy before the change.
    pub(crate) fn is_bound(&self) -> bool {
        self.served.before.as_ref().is_some_and(|it| it.by == TOPO_LB && it.policy.kind != "none")
    }

    /// Whether more of its bytes have left the zone than its policy lets: they are of before it.
    pub(crate) fn is_outdated(&self) -> bool {
        let Some(bytes) = self.bytes.filter(|_| self.is_bound()) else { return false };
        let besides = bytes.crossed.unwrap_or_default() - bytes.crossing.before;
        besides > bytes.moved * OF_CHANCE
    }

    /// Whether a node is refused after that was not refused before.
    #[must_use]
    pub fn newly_refuses(&self) -> bool {
        self.groups.iter().any(|group| !group.newly_refused.is_empty())
    }

    /// Annotations and fields that are ignored after, and were not before.
    #[must_use]
    pub fn newly_ignored(&self) -> Vec<&str> {
        let errors = |served: &'_ Option<Served>| -> Vec<String> {
            served.as_ref().map_or_else(Vec::new, |it| it.policy.errors.clone())
        };
        let before = errors(&self.served.before);
        let after = self.served.after.iter().flat_map(|served| &served.policy.errors);
        after.filter(|error| !before.contains(error)).map(String::as_str).collect()
    }

    /// The load of the busiest endpoint, divided by that of each if all had the same; `None` without load.
    #[must_use]
    pub fn busiest(&self) -> Both<Option<f64>> {
        let of = |load: fn(&Both<f64>) -> f64, usable: usize| {
            let loads = || self.endpoints.iter().map(|one| load(&one.load));
            let (all, most) = (loads().sum::<f64>(), loads().fold(0.0, f64::max));
            (all > 0.0 && usable > 0).then(|| most * usable as f64 / all)
        };
        Both {
            before: of(|load| load.before, self.usable.before),
            after: of(|load| load.after, self.usable.after),
        }
    }

    /// Whether somebody should look before the change is made: it refuses nodes without saying that
    /// this is intended, or writes something that is ignored.
    #[must_use]
    pub fn is_problem(&self) -> bool {
        let is_intended = self.served.after.as_ref().is_some_and(|it| it.refusal_intended);
        self.newly_refuses() && !is_intended || !self.newly_ignored().is_empty()
    }
}
