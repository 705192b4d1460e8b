//! Where the counts come from: this node's maps, agents, or all agents of a cluster.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures::StreamExt as _;
use futures::stream;
use http::Request;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use tokio::time::timeout;
use topo_lb_common::backend::Locality;

use super::round_trips::RoundTrips;
use super::scraped::{self, Scraped};
use super::traffic::{Moment, Totals, Traffic};
use crate::metrics::bounded::Counts;
use crate::metrics::scrape::Counted;
use crate::metrics::services::parts;
use crate::source::kube::{KubeTarget, Server, connect, in_words};

/// The label of the agents' Pods, as the manifests set it.
const LABEL: &str = "app.kubernetes.io/name=topo-lb";
/// How long one agent may take.
const LIMIT: Duration = Duration::from_secs(5);
/// How many agents are asked at once.
const AT_ONCE: usize = 32;
/// How long a listing of the agents' Pods is used.
const LISTED: Duration = Duration::from_secs(60);

/// Where the counts come from.
#[derive(Clone, Debug)]
pub enum From {
    /// The maps that are pinned in this directory of this node.
    Maps(PathBuf),
    /// Agents with these URLs, such as `http://127.0.0.1:19876`, or `worker-1=http://127.0.0.1:19876` to say
    /// on which node.
    Agents(Vec<String>),
    /// Every agent of a cluster, through its API server; the agents' port for metrics.
    Cluster(KubeTarget, u16),
}

/// A source that can be asked again and again.
pub(crate) enum Source {
    Maps(PathBuf),
    Agents(Vec<Agent>),
    Cluster(Box<Cluster>),
}

/// The agents of a cluster.
pub(crate) struct Cluster {
    server: Server,
    port: u16,
    agents: Vec<Agent>,
    listed: Option<Instant>,
}

/// An agent that answers at a path of a server.
#[derive(Clone)]
pub(crate) struct Agent {
    name: Arc<str>,
    server: Server,
    path: String,
}

impl Source {
    /// # Errors
    /// A URL or the credentials of the API server cannot be used.
    pub(crate) async fn open(from: &From) -> anyhow::Result<Self> {
        Ok(match from {
            From::Maps(pin_dir) => Self::Maps(pin_dir.clone()),
            From::Agents(urls) => {
                let mut agents = Vec::new();
                for (name, url) in urls.iter().map(|text| named(text)) {
                    agents.push(Agent { name: name.into(), ..Agent::at(url).await? });
                }
                Self::Agents(agents)
            }
            From::Cluster(target, port) => {
                let server = connect(target).await?;
                let cluster = Cluster { server, port: *port, agents: Vec::new(), listed: None };
                Self::Cluster(Box::new(cluster))
            }
        })
    }

    /// Asks every node. A node that cannot be asked has a sentence in place of its counts.
    ///
    /// # Errors
    /// The agents' Pods cannot be listed.
    pub(crate) async fn moment(&mut self) -> anyhow::Result<Moment> {
        let at = Instant::now();
        let answers = match self {
            Self::Maps(pin_dir) => {
                let counted = Counted::read(pin_dir).map_err(|error| error.to_string());
                let counted = counted.map(|Counted { services, .. }| Scraped {
                    traffic: of_maps(&services),
                    round_trips: round_trips(&services),
                    // The maps have endpoints, and not their zones.
                    zones: None,
                });
                BTreeMap::from([("this node".into(), counted)])
            }
            Self::Agents(agents) => ask(agents).await,
            Self::Cluster(cluster) => {
                if cluster.listed.is_none_or(|listed| listed.elapsed() > LISTED) {
                    cluster.agents = list(&cluster.server, cluster.port).await?;
                    cluster.listed = Some(at);
                }
                ask(&cluster.agents).await
            }
        };
        let mut moment = Moment::at(at);
        for (node, answer) in answers {
            let traffic = answer.map(|Scraped { traffic, round_trips, zones }| {
                moment.round_trips.insert(Arc::clone(&node), round_trips);
                moment.zones.extend(zones.map(|zones| (Arc::clone(&node), zones)));
                traffic
            });
            moment.nodes.insert(node, traffic);
        }
        Ok(moment)
    }
}

/// What a node has counted, or why it could not be asked.
type Answer = Result<Scraped, String>;

/// The name and the URL of an agent that was given as `URL` or as `NODE=URL`.
fn named(text: &str) -> (&str, &str) {
    let named = text.split_once('=').filter(|(name, _)| !name.contains([':', '/']));
    named.unwrap_or((text, text))
}

/// The totals of the maps, by Service. Without the TCP connections of Services for which the map has no
/// room.
fn of_maps(counts: &Counts) -> Traffic {
    let mut traffic = Traffic::new();
    let mut totals = |port: &str, add: &dyn Fn(&mut Totals)| {
        let [namespace, service, _] = parts(port);
        add(traffic.entry(format!("{namespace}/{service}").into()).or_default());
    };
    for (port, counters) in &counts.connections {
        totals(port, &|totals| {
            for locality in Locality::ALL {
                totals.connections[locality as usize] += *{ *counters }.at(locality) as f64;
            }
            totals.refused += counters.refused as f64;
        });
    }
    for (group, tcp) in &counts.tcp {
        let Some(port) = &group.service else { continue };
        totals(port, &|totals| {
            totals.bytes[group.locality as usize] += (tcp.sent + tcp.received) as f64;
            totals.failed += tcp.failures.iter().sum::<u64>() as f64;
        });
    }
    traffic
}

fn round_trips(counts: &Counts) -> RoundTrips {
    let mut round_trips = RoundTrips::default();
    for (group, tcp) in &counts.tcp {
        let places = round_trips[group.locality as usize].iter_mut();
        places.zip(tcp.rtt).for_each(|(sum, more)| *sum += more as f64);
    }
    round_trips
}

/// The agents of a cluster. Each is reached through the API server, at its Pod.
async fn list(server: &Server, port: u16) -> anyhow::Result<Vec<Agent>> {
    let pods: Api<Pod> = Api::all(server.client());
    let list = timeout(LIMIT, pods.list(&ListParams::default().labels(LABEL))).await;
    let pods = match list {
        Ok(Ok(pods)) => pods,
        Ok(Err(error)) => {
            bail!(
                "cannot list the Pods with the label {LABEL}: {}; this takes `list` on pods and `get` on \
                 pods/proxy",
                in_words(&error)
            )
        }
        Err(_) => bail!(
            "cannot list the Pods with the label {LABEL}: no answer within {} s",
            LIMIT.as_secs()
        ),
    };
    let agents: Vec<_> = pods
        .into_iter()
        .filter_map(|pod| {
            let (namespace, name) = (pod.metadata.namespace?, pod.metadata.name?);
            let node = pod.spec?.node_name?;
            let path = format!("/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy/metrics");
            Some(Agent { name: node.into(), server: server.clone(), path })
        })
        .collect();
    anyhow::ensure!(!agents.is_empty(), "no Pod has the label {LABEL}: is topo-lb installed?");
    Ok(agents)
}

async fn ask(agents: &[Agent]) -> BTreeMap<Arc<str>, Answer> {
    let answers =
        stream::iter(agents).map(async |agent| (Arc::clone(&agent.name), agent.answer().await));
    answers.buffer_unordered(AT_ONCE).collect().await
}

impl Agent {
    async fn at(url: &str) -> anyhow::Result<Self> {
        let server = connect(&KubeTarget::Server(url.to_owned())).await;
        let server = server.with_context(|| format!("the agent {url}"))?;
        Ok(Self { name: url.into(), server, path: "/metrics".to_owned() })
    }

    async fn answer(&self) -> Answer {
        scraped::answer(&self.metrics().await?)
    }

    async fn metrics(&self) -> Result<String, String> {
        let request = Request::get(&self.path).body(Vec::new()).map_err(|it| it.to_string())?;
        match timeout(LIMIT, self.server.client().request_text(request)).await {
            Err(_) => Err(format!("no answer within {} s", LIMIT.as_secs())),
            Ok(answer) => answer.map_err(|error| in_words(&error)),
        }
    }
}

/// The metrics of the agent with this URL, such as `http://127.0.0.1:19876`.
///
/// # Errors
/// It does not answer.
pub async fn metrics(url: &str) -> anyhow::Result<String> {
    Agent::at(url).await?.metrics().await.map_err(anyhow::Error::msg)
}

#[cfg(test)]
mod tests {
    use topo_lb_common::counters::Counters;
    use topo_lb_common::totals;

    use super::*;
    use crate::datapath::maps::totals::Group;

    #[test]
    fn an_agent_has_the_name_of_its_node_if_that_is_given() {
        assert_eq!(named("a.b-1=http://10.0.0.7:1"), ("a.b-1", "http://10.0.0.7:1"));
        for url in ["http://10.0.0.7:1", "http://a/?b=c", "a:1?b=c", ""] {
            assert_eq!(named(url), (url, url));
        }
    }

    #[test]
    fn ports_and_tiers_of_a_service_in_the_maps_are_summed() {
        let counters = Counters { same_node: 1, elsewhere: 2, refused: 3, ..Counters::default() };
        let tcp =
            totals::Totals { sent: 5, received: 6, failures: [1, 0, 2, 0], ..Default::default() };
        let group = |service: Option<&str>, tier| {
            (Group { service: service.map(Into::into), locality: Locality::Zone, tier }, tcp)
        };
        let port = Some("default/web:80");
        let counts = Counts {
            connections: ["default/web:80", "default/web:http"]
                .map(|it| (it.into(), counters))
                .into(),
            tcp: [group(port, Some(0)), group(port, None), group(None, None)].into(),
            ..Counts::default()
        };
        let wanted = Totals {
            connections: [2.0, 0.0, 0.0, 4.0],
            refused: 6.0,
            failed: 6.0,
            bytes: [0.0, 22.0, 0.0, 0.0],
        };
        assert_eq!(of_maps(&counts), Traffic::from([("default/web".into(), wanted)]));
    }
}
