//! Where the counts come from: this node's maps, agents, or all agents of a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::stream;
use topo_lb_common::backend::Locality;
use topo_lb_core::metrics::Tier;

use super::agent::{Agent, Answer};
use super::agents::{Agents, list, nodes};
use super::moment::{Counter, Moment, RoundTrips, Series, Traffic};
use super::scraped::Scraped;
use topo_lb_agent::metrics::bounded::Counts;
use topo_lb_agent::metrics::scrape::Counted;
use topo_lb_agent::metrics::services::parts;
use topo_lb_kernel::datapath::attach::mode;
use topo_lb_kernel::datapath::maps::totals::ended;
use topo_lb_kube::source::kube::{KubeTarget, Server, connect};

/// How many agents are asked at once.
const AT_ONCE: usize = 32;
/// How long a listing of the agents' Pods is used.
const LISTED: Duration = Duration::from_secs(60);
/// The same while Pods are being replaced: it doubles as long as a listing says nothing new.
const REPLACED: Duration = Duration::from_secs(1);

/// Where the counts come from.
#[derive(Clone, Debug)]
pub enum From {
    /// The maps that are pinned in this directory of this node.
    Maps(PathBuf),
    /// Agents with these URLs, such as `http://127.0.0.1:19876`, or `worker-1=http://127.0.0.1:19876` to say
    /// on which node.
    Agents(Vec<String>),
    /// Every agent of a cluster, through its API server.
    Cluster {
        /// The API server.
        target: KubeTarget,
        /// The namespace of the agents' Pods.
        namespace: String,
        /// The agents' port for metrics.
        port: u16,
    },
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
    namespace: String,
    port: u16,
    agents: Agents,
    nodes: Option<usize>,
    listed: Option<Instant>,
    /// How long that is used.
    pause: Duration,
    /// Those that did not answer the last time.
    silent: BTreeSet<Arc<str>>,
}

impl Cluster {
    /// Lists the agents' Pods. Returns whether they are others than before.
    async fn list(&mut self) -> anyhow::Result<bool> {
        self.listed = Some(Instant::now());
        let Self { server, namespace, port, .. } = &*self;
        let (listed, nodes) = futures::join!(list(server, namespace, *port), nodes(server));
        let agents = listed?;
        let paths = |agents: &[Agent]| -> Vec<String> {
            agents.iter().map(|agent| agent.path.clone()).collect()
        };
        let is_news = paths(&agents.all) != paths(&self.agents.all) || nodes != self.nodes;
        (self.agents, self.nodes) = (agents, nodes);
        Ok(is_news)
    }

    /// Asks every agent. One that begins to be silent may have a new Pod: the Pods are listed at once, and
    /// soon again until each node has an agent that answers.
    async fn ask(&mut self) -> anyhow::Result<BTreeMap<Arc<str>, Answer>> {
        let is_due = self.listed.is_none_or(|listed| listed.elapsed() >= self.pause);
        let mut is_news = is_due && self.list().await?;
        let mut answers = ask(&self.agents.all).await;
        let silent = |answers: &BTreeMap<Arc<str>, Answer>| -> BTreeSet<Arc<str>> {
            let silent = answers.iter().filter(|(_, answer)| answer.is_err());
            silent.map(|(node, _)| Arc::clone(node)).collect()
        };
        let asked: BTreeSet<_> = self.agents.all.iter().map(|agent| agent.path.clone()).collect();
        // While the API server is away, the answers say so.
        if !silent(&answers).is_subset(&self.silent) && self.list().await.unwrap_or(false) {
            is_news = true;
            let is_new = |agent: &&Agent| !asked.contains(&agent.path);
            let new: Vec<_> = self.agents.all.iter().filter(is_new).cloned().collect();
            answers.extend(ask(&new).await);
            answers.retain(|node, _| self.agents.all.iter().any(|agent| agent.name == *node));
        }
        self.silent = silent(&answers);
        let is_whole =
            self.silent.is_empty() && self.nodes.is_none_or(|all| self.agents.all.len() >= all);
        self.pause = match (is_whole, is_news) {
            (true, _) => LISTED,
            (false, true) => REPLACED,
            (false, false) => (self.pause * 2).min(LISTED),
        };
        Ok(answers)
    }
}

impl Source {
    /// # Errors
    /// A URL or the credentials of the API server cannot be used.
    pub(crate) async fn open(from: &From) -> anyhow::Result<Self> {
        Ok(match from {
            From::Maps(pin_dir) => Self::Maps(pin_dir.clone()),
            From::Agents(urls) => {
                let mut agents: Vec<Agent> = Vec::new();
                for (name, url) in urls.iter().map(|text| named(text)) {
                    let is_known = agents.iter().any(|agent| &*agent.name == name);
                    anyhow::ensure!(
                        !is_known,
                        "{name} has two agents: give --agent once for each node"
                    );
                    agents.push(Agent { name: name.into(), ..Agent::at(url).await? });
                }
                Self::Agents(agents)
            }
            From::Cluster { target, namespace, port } => Self::Cluster(Box::new(Cluster {
                server: connect(target).await?,
                namespace: namespace.clone(),
                port: *port,
                agents: Agents::default(),
                nodes: None,
                listed: None,
                pause: REPLACED,
                silent: BTreeSet::new(),
            })),
        })
    }

    /// Asks every node. A node that cannot be asked has a sentence in place of its counts.
    ///
    /// # Errors
    /// The agents' Pods cannot be listed.
    pub(crate) async fn moment(&mut self) -> anyhow::Result<Moment> {
        let at = Instant::now();
        let mut moment = Moment::at(at);
        let answers = match self {
            Self::Maps(pin_dir) => {
                let counted = Counted::read(pin_dir).map_err(|error| error.to_string());
                let counted = counted.map(|Counted { services, .. }| {
                    let (traffic, round_trips) = (of_maps(&services), round_trips(&services));
                    // The maps have endpoints, and not their zones.
                    let observes = mode::observes(pin_dir);
                    (at, Scraped { traffic, round_trips, observes, ..Scraped::default() })
                });
                BTreeMap::from([("this node".into(), counted)])
            }
            Self::Agents(agents) => ask(agents).await,
            Self::Cluster(cluster) => {
                let answers = cluster.ask().await?;
                let Agents { doubts, scope, .. } = &cluster.agents;
                (moment.doubts, moment.scope) = (doubts.clone(), *scope);
                moment.all_nodes = cluster.nodes;
                answers
            }
        };
        for (node, answer) in answers {
            let traffic = answer.map(
                |(
                    when,
                    Scraped { traffic, round_trips, zones, observes, unhandled, evacuations },
                )| {
                    moment.observing += usize::from(observes);
                    // All agents see the same Services, not all at once.
                    moment.unhandled = moment.unhandled.max(unhandled);
                    moment.when.insert(Arc::clone(&node), when);
                    moment.round_trips.insert(Arc::clone(&node), round_trips);
                    moment.evacuations.insert(Arc::clone(&node), evacuations);
                    moment.zones.extend(zones.map(|zones| (Arc::clone(&node), zones)));
                    traffic
                },
            );
            moment.nodes.insert(node, traffic);
        }
        Ok(moment)
    }
}

/// The name and the URL of an agent that was given as `URL` or as `NODE=URL`.
fn named(text: &str) -> (&str, &str) {
    let named = text.split_once('=').filter(|(name, _)| !name.contains([':', '/']));
    named.unwrap_or((text, text))
}

/// The totals of the maps, by Service. Without the TCP connections of Services for which the map has no
/// room.
fn of_maps(counts: &Counts) -> Traffic {
    let mut traffic = Traffic::new();
    let mut add = |port: &str, group: Option<(Locality, Tier)>, counter, total| {
        let [namespace, service, _] = parts(port);
        let totals = traffic.entry(format!("{namespace}/{service}").into()).or_default();
        let tier = group.map(|(_, tier)| tier);
        totals.insert(Series::new(counter, (port, group)).of_tier(tier), total);
    };
    for (port, counters) in &counts.connections {
        for locality in Locality::ALL {
            let total = *{ *counters }.at(locality) as f64;
            add(port, None, Counter::Connections(locality), total);
        }
        add(port, None, Counter::Refused, counters.refused as f64);
    }
    for (group, tcp) in &counts.tcp {
        let Some(port) = &group.service else { continue };
        let of = Some((group.locality, group.tier));
        add(port, of, Counter::Sent(group.locality), tcp.sent as f64);
        add(port, of, Counter::Received(group.locality), tcp.received as f64);
        add(port, of, Counter::Failed, tcp.failures.iter().sum::<u64>() as f64);
        add(port, of, Counter::Ended, ended(tcp) as f64);
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

async fn ask(agents: &[Agent]) -> BTreeMap<Arc<str>, Answer> {
    let answers =
        stream::iter(agents).map(async |agent| (Arc::clone(&agent.name), agent.answer().await));
    answers.buffer_unordered(AT_ONCE).collect().await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use axum::Router;
    use axum::routing::get;
    use serde_json::json;
    use tokio::net::TcpListener;
    use tokio::sync::watch;
    use tokio::time::sleep;
    use topo_lb_common::counters::Counters;
    use topo_lb_common::totals;
    use topo_lb_fake_api::{FakeApi, NODES};

    use super::super::traffic::{Rate, TierRate, rates};
    use super::*;
    use topo_lb_kernel::datapath::maps::totals::Group;

    #[tokio::test]
    async fn a_slow_agent_s_counts_are_of_the_time_of_its_answer() {
        let (quick, ended) = watch::channel(false);
        let (tell, told) = std::sync::mpsc::channel();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        // The slow one answers after the other.
        let slow = get(async move || {
            ended.clone().wait_for(|is_over| *is_over).await.expect("a quick agent");
            tell.send(Instant::now()).expect("a test");
            "topo_lb_ready 1\n"
        });
        let quick = get(async move || {
            quick.send_replace(true);
            "topo_lb_ready 1\n"
        });
        let router = Router::new().route("/slow/metrics", slow).route("/quick/metrics", quick);
        tokio::spawn(axum::serve(listener, router).into_future());
        let agents = ["slow", "quick"].map(|name| format!("{name}={url}/{name}"));
        let mut source = Source::open(&From::Agents(agents.into())).await.expect("agents");
        let moment = source.moment().await.expect("a moment");
        let begun = told.recv().expect("an answer");
        assert!(moment.nodes.values().all(Result::is_ok), "{:?}", moment.nodes);
        assert!(moment.at < begun && moment.when["slow"] >= begun);
    }

    #[tokio::test]
    async fn the_successor_of_a_pod_is_asked_soon_and_a_node_without_one_is_missed() {
        let pods = "/api/v1/namespaces/topo-lb/pods";
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let api = FakeApi::start(listener, &[pods, NODES]).expect("a server");
        let pod = |name: &str, node: &str| {
            json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": node, "containers": []},
                   "metadata": {"namespace": "topo-lb", "labels": {"app.kubernetes.io/name": "topo-lb"}, "name": name}})
        };
        api.fill(
            NODES,
            ["n1", "n2"].map(
                |node| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}),
            ),
        );
        api.fill(pods, [pod("a", "n1"), pod("b", "n2")]);
        let ended = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&ended);
        api.answer_texts(move |path| {
            let is_gone = path.contains("/a:") && is_over.load(Relaxed);
            (path.contains("/proxy/metrics") && !is_gone).then(|| "topo_lb_ready 1\n".to_owned())
        });
        let target = KubeTarget::Server(api.url());
        let from = From::Cluster { target, namespace: "topo-lb".to_owned(), port: 1 };
        let mut source = Source::open(&from).await.expect("a cluster");
        let mut seen = async || {
            let moment = source.moment().await.expect("a moment");
            let nodes: Vec<_> =
                moment.nodes.iter().map(|(node, it)| (node.to_string(), it.is_ok())).collect();
            (nodes, moment.all_nodes)
        };
        let both = || vec![("n1".to_owned(), true), ("n2".to_owned(), true)];
        assert_eq!(seen().await, (both(), Some(2)));
        // Its Pod is deleted, and the next one does not run yet.
        ended.store(true, Relaxed);
        api.change(pods, "DELETED", pod("a", "n1"));
        assert_eq!(seen().await, (vec![("n2".to_owned(), true)], Some(2)));
        api.change(pods, "ADDED", pod("c", "n1"));
        sleep(REPLACED + Duration::from_millis(100)).await;
        assert_eq!(seen().await, (both(), Some(2)));
    }

    #[tokio::test]
    async fn a_node_that_is_given_twice_is_refused() {
        let twice = ["n1=http://10.0.0.7:1", "n1=http://10.0.0.8:1"].map(str::to_owned);
        let error = Source::open(&From::Agents(twice.into())).await.err().expect("an error");
        assert_eq!(error.to_string(), "n1 has two agents: give --agent once for each node");
    }

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
        let mut tcp =
            totals::Totals { sent: 5, received: 6, failures: [1, 0, 2, 0], ..Default::default() };
        (tcp.rtt[0], tcp.rtt[7]) = (3, 4);
        let group = |service: Option<&str>, tier| {
            (Group { service: service.map(Into::into), locality: Locality::Zone, tier }, tcp)
        };
        let port = Some("default/web:80");
        let counts = Counts {
            connections: ["default/web:80", "default/web:http"]
                .map(|it| (it.into(), counters))
                .into(),
            tcp: [group(port, Tier::Key(0)), group(port, Tier::None), group(None, Tier::None)]
                .into(),
            ..Counts::default()
        };
        let begin = Instant::now();
        let moment = |at, counts| {
            let nodes = [("n".into(), Ok(of_maps(counts)))].into();
            Moment { nodes, ..Moment::at(at) }
        };
        let end = moment(begin + Duration::from_secs(1), &counts);
        let (rows, _) = rates(&moment(begin, &Counts::default()), &end);
        let wanted = Rate {
            connections: [2.0, 0.0, 0.0, 4.0],
            refused: 6.0,
            failed: 6.0,
            bytes: [0.0, 22.0, 0.0, 0.0],
            sent: 10.0,
        };
        assert_eq!((rows.len(), &rows[0].rate), (1, &wanted));
        let of_tier = TierRate { ended: 7.0, failed: 3.0, bytes: 11.0 };
        assert_eq!(rows[0].tiers, [(Tier::Key(0), of_tier), (Tier::None, of_tier)].into());
    }
}
