//! The cluster in which topo-lb has neighbours: two nodes in two zones, with an agent in place of kube-proxy on west, and on
//! east where a neighbour is on the way between them.
//!
//! | node | zone | pods |
//! |---|---|---|
//! | west | zone-1 | client, near, next |
//! | east | zone-2 | far |
//!
//! | Service | at | policy | endpoints |
//! |---|---|---|---|
//! | web | [`WEB4`], [`WEB6`], node ports [`OF_WEB`] | the client's zone | near, far; next during a rollout |
//! | all | [`ALL4`], [`ALL6`], node ports [`OF_ALL`] | none | far |

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::agent::Agent;
use crate::binary::Binary;
use crate::cgroup::Cgroup;
use crate::client::Client;
use crate::cluster::Cluster;
use crate::http::Answer;
use crate::lab;
use crate::manifest::{self, Manifests, Port, endpoint, service, slice};
use crate::netns::NetNs;
use crate::node::NodePlan;
use crate::pod::Pod;
use crate::process::Running;
use crate::requirements;
use crate::room::{Begun, Room};
use crate::scene::{FOLLOWS, KEYS, ZONE};
use crate::traffic::Via;

/// The ClusterIP of `web`.
pub const WEB4: &str = "10.96.1.1";
/// Its IPv6 ClusterIP.
pub const WEB6: &str = "fd00:96::101";
/// The ClusterIP of `all`.
pub const ALL4: &str = "10.96.1.2";
/// Its IPv6 ClusterIP.
pub const ALL6: &str = "fd00:96::102";
/// The node ports of `web`, for HTTP and for UDP.
pub const OF_WEB: (u16, u16) = (30_080, 30_053);
/// Those of `all`.
pub const OF_ALL: (u16, u16) = (30_081, 30_054);
/// The node with the client.
pub const WEST: &str = "west";
/// The other node.
pub const EAST: &str = "east";
/// Addresses of the node west.
pub const WEST4: Ipv4Addr = Ipv4Addr::new(172, 30, 0, 2);
/// The same of IPv6.
pub const WEST6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x172, 0, 0, 0, 0, 0, 2);
/// The pods: names, nodes, and last bytes of the addresses that the lab gives them.
const PODS: [(&str, &str, u8); 4] =
    [("client", WEST, 2), ("near", WEST, 3), ("next", WEST, 4), ("far", EAST, 2)];
/// Those that serve.
const SERVERS: [&str; 3] = ["near", "next", "far"];

const SERVED: [Port<'_>; 2] = [("http", 9376, "TCP"), ("udp", 9376, "UDP")];
/// A node may look for uplinks, rules and routes only once in some seconds.
const SETTLES: Duration = Duration::from_secs(15);

/// The pods of a town: those that the lab has wired, or those of a network plugin.
#[derive(Debug)]
struct Known {
    name: String,
    node: String,
    ipv4: Ipv4Addr,
    /// None if the network has no IPv6.
    ipv6: Option<Ipv6Addr>,
}

/// A pod that is to be wired.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Its name.
    pub pod: &'a str,
    /// Its node's number in the lab.
    pub number: u8,
    /// The last byte of its address, where nobody else gives it one.
    pub host: u8,
}

/// The cluster with everything in it but the agents running.
#[derive(Debug)]
pub struct Town<'a> {
    /// The agent's binary.
    pub binary: Binary,
    /// The nodes.
    pub cluster: &'a Cluster,
    /// What the agents know.
    pub objects: Objects,
    /// The agent of west, and that of east if there is one.
    pub agents: Vec<Agent<'a>>,
    /// Which node ports clients outside dial.
    pub doors: Doors,
    /// Rooms for neighbours, on west and east, if somebody needs them.
    pub rooms: Vec<Rc<Room<'a>>>,
    /// The pod client.
    pub client: Client,
    /// A second process there.
    pub prober: Client,
    /// A client outside of the nodes.
    pub outside: Client,
    _servers: Vec<Running>,
    pods: Vec<&'a Pod>,
}

/// The manifests, and the pods that they name.
#[derive(Debug)]
pub struct Objects {
    /// The agents' manifests.
    pub manifests: Manifests,
    places: Vec<Known>,
}

/// Which node ports clients outside dial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doors {
    /// Those of both Services.
    Both,
    /// That of `all`, whose pod is on the other node: a node does not reach its own pods.
    All,
}

/// Runs `body` in a town whose pods the lab has wired.
///
/// # Errors
/// It cannot be made, or `body` fails.
pub fn visit(body: impl FnOnce(&mut Town<'_>) -> Result<()>) -> Result<()> {
    with_pods_of_the_lab(rooms, body)
}

/// Like [`visit`], without rooms: no program of a package is needed.
///
/// # Errors
/// It cannot be made, or `body` fails.
pub fn visit_without_rooms(body: impl FnOnce(&mut Town<'_>) -> Result<()>) -> Result<()> {
    with_pods_of_the_lab(|_| Ok(Vec::new()), body)
}

fn rooms(cluster: &Cluster) -> Result<Vec<Rc<Room<'_>>>> {
    [WEST, EAST].iter().map(|node| Ok(Rc::new(Room::on(cluster, node)?))).collect()
}

fn with_pods_of_the_lab(
    rooms: impl for<'r> FnOnce(&'r Cluster) -> Result<Vec<Rc<Room<'r>>>>,
    body: impl FnOnce(&mut Town<'_>) -> Result<()>,
) -> Result<()> {
    let of = |wanted| PODS.iter().filter(move |it| it.1 == wanted).map(|it| (it.0, it.2)).collect();
    within((of(WEST), of(EAST)), |cluster| {
        let pods: Vec<&Pod> = cluster.pods().collect();
        let places = pods.iter().map(|it| Known::of(it, Some(it.ipv6))).collect();
        body(&mut Town::new(cluster, rooms(cluster)?, pods, places)?)
    })
}

/// Runs `body` in a town whose pods `wire` wires, each in its network namespace, and returns its address. They have no
/// IPv6.
///
/// # Errors
/// It cannot be made, or `body` fails.
pub fn visit_wired(
    mut wire: impl for<'r> FnMut(&Rc<Room<'r>>, &NetNs, Place<'_>) -> Result<Ipv4Addr>,
    body: impl FnOnce(&mut Town<'_>) -> Result<()>,
) -> Result<()> {
    within((Vec::new(), Vec::new()), |cluster| {
        let rooms = rooms(cluster)?;
        let pods = wired(cluster, |node, netns, place| {
            wire(&rooms[usize::from(node == EAST)], netns, place)
        })?;
        with_wired(cluster, rooms, &pods, body)
    })
}

/// Like [`visit_wired`], without rooms: `wire` gets the network namespaces of the node and of the pod.
///
/// # Errors
/// It cannot be made, or `body` fails.
pub fn visit_wired_without_rooms(
    mut wire: impl FnMut(&NetNs, &NetNs, Place<'_>) -> Result<Ipv4Addr>,
    body: impl FnOnce(&mut Town<'_>) -> Result<()>,
) -> Result<()> {
    within((Vec::new(), Vec::new()), |cluster| {
        let pods =
            wired(cluster, |node, netns, place| wire(cluster.node_netns(node)?, netns, place))?;
        with_wired(cluster, Vec::new(), &pods, body)
    })
}

/// `wire` gets the name of a pod's node, and the pod's network namespace.
fn wired(
    cluster: &Cluster,
    mut wire: impl FnMut(&str, &NetNs, Place<'_>) -> Result<Ipv4Addr>,
) -> Result<Vec<Pod>> {
    let names = PODS.map(|(pod, ..)| cluster.prefix().name(pod));
    let mut pods = Vec::new();
    for (netns, (name, node, host)) in NetNs::make(&names)?.into_iter().zip(PODS) {
        netns.ip(&["link set lo up".to_owned()])?;
        let number = if node == EAST { 2 } else { 1 };
        let ipv4 = wire(node, &netns, Place { pod: name, number, host })?;
        let cgroup = Cgroup::make(cluster.node(node)?.cgroup_path(), name)?;
        let (name, node, ipv6) = (name.to_owned(), node.to_owned(), Ipv6Addr::UNSPECIFIED);
        pods.push(Pod { name, node, ipv4, ipv6, cgroup, netns });
    }
    Ok(pods)
}

fn with_wired<'a>(
    cluster: &'a Cluster,
    rooms: Vec<Rc<Room<'a>>>,
    pods: &'a [Pod],
    body: impl FnOnce(&mut Town<'_>) -> Result<()>,
) -> Result<()> {
    let places = pods.iter().map(|it| Known::of(it, None)).collect();
    body(&mut Town::new(cluster, rooms, pods.iter().collect(), places)?)
}

type Pods<'a> = Vec<(&'a str, u8)>;

fn within(
    (west, east): (Pods<'_>, Pods<'_>),
    body: impl FnOnce(&Cluster) -> Result<()>,
) -> Result<()> {
    let plan = [
        NodePlan { name: WEST, number: 1, pods: west },
        NodePlan { name: EAST, number: 2, pods: east },
    ];
    lab::within(&plan, body)
}

impl Known {
    fn of(pod: &Pod, ipv6: Option<Ipv6Addr>) -> Self {
        Self { name: pod.name.clone(), node: pod.node.clone(), ipv4: pod.ipv4, ipv6 }
    }
}

impl<'a> Town<'a> {
    fn new(
        cluster: &'a Cluster,
        rooms: Vec<Rc<Room<'a>>>,
        pods: Vec<&'a Pod>,
        places: Vec<Known>,
    ) -> Result<Self> {
        let binary = Binary::new(requirements::agent()?);
        let pod = |name: &str| {
            let found = pods.iter().find(|it| it.name == name);
            found.with_context(|| format!("the town has no pod {name}"))
        };
        let _servers = SERVERS.iter().map(|name| pod(name)?.serve()).collect::<Result<_>>()?;
        let mut objects = Objects { manifests: Manifests::new(cluster.folder())?, places };
        objects.describe()?;
        let [client, prober] = [pod("client")?.client()?, pod("client")?.client()?];
        let outside = cluster.guest("outside", cluster.fabric())?;
        let doors = Doors::Both;
        let agents = Vec::new();
        let mut town = Self {
            binary,
            cluster,
            objects,
            agents,
            doors,
            rooms,
            client,
            prober,
            outside,
            _servers,
            pods,
        };
        town.add_agent(WEST)?;
        Ok(town)
    }

    /// Adds an agent on a node, which does not run yet.
    ///
    /// # Errors
    /// Its command cannot be made.
    pub fn add_agent(&mut self, node: &str) -> Result<()> {
        let folder = self.objects.manifests.folder();
        let mut agent = Agent::prepare(&self.binary, self.cluster, node, folder)?;
        agent.set("--kube-proxy-replacement", "");
        for (flag, value) in [
            ("--max-services", "512"),
            ("--max-endpoints", "512"),
            ("--max-flows", "16384"),
            ("--max-connections", "16384"),
        ] {
            agent.set(flag, value);
        }
        self.agents.push(agent);
        Ok(())
    }

    /// A pod.
    ///
    /// # Errors
    /// There is none with this name.
    pub fn pod(&self, name: &str) -> Result<&'a Pod> {
        let found = self.pods.iter().find(|it| it.name == name).copied();
        found.with_context(|| format!("the town has no pod {name}"))
    }

    /// The agent of west.
    #[must_use]
    pub fn agent(&self) -> &Agent<'a> {
        &self.agents[0]
    }

    /// Starts all agents, also again.
    ///
    /// # Errors
    /// One does not start.
    pub fn start_agents(&mut self) -> Result<()> {
        self.agents.iter_mut().try_for_each(Agent::launch)?;
        self.agents.iter_mut().try_for_each(Agent::wait_until_ready)
    }

    /// Where the client dials `web`, and where it dials `all`: each way, and the pod that has to answer.
    fn ways_inside(&self) -> Result<Vec<(Via, SocketAddr, &'static str)>> {
        let mut all = Vec::new();
        let families = [(WEB4, ALL4), (WEB6, ALL6)];
        for (web, endpoints) in &families[..if self.objects.has_ipv6() { 2 } else { 1 }] {
            for via in [Via::Http, Via::UdpConnected, Via::Udp] {
                all.push((via, SocketAddr::new(web.parse()?, 80), "near"));
                all.push((via, SocketAddr::new(endpoints.parse()?, 80), "far"));
            }
        }
        Ok(all)
    }

    /// Where a client outside dials west, and the pod that has to answer.
    fn ways_from_outside(&self) -> Vec<(Via, SocketAddr, &'static str)> {
        let mut all = Vec::new();
        let addresses = [IpAddr::from(WEST4), WEST6.into()];
        for address in &addresses[..if self.objects.has_ipv6() { 2 } else { 1 }] {
            for ((http, udp), pod) in [(OF_WEB, "near"), (OF_ALL, "far")] {
                if self.doors == Doors::Both || pod == "far" {
                    all.push((Via::Http, SocketAddr::new(*address, http), pod));
                    all.push((Via::UdpConnected, SocketAddr::new(*address, udp), pod));
                }
            }
        }
        all
    }

    /// Checks that the client reaches only its zone's endpoint of `web`, and the other node's of `all`, and clients outside
    /// the same by the node ports of west.
    ///
    /// # Errors
    /// That is not so, also after a while.
    pub fn serves(&mut self) -> Result<()> {
        for (via, to, pod) in self.ways_inside()? {
            self.client.wait_for(via, to, &[pod], SETTLES)?;
        }
        for (via, to, pod) in self.ways_from_outside() {
            self.outside.wait_for(via, to, &[pod], SETTLES)?;
        }
        for (via, to, pod) in self.ways_inside()? {
            self.client.expect(via, to, &[pod])?;
        }
        Ok(())
    }

    /// Lets `work` happen while the client dials `web` and the client outside dials the node port. No connection may
    /// fail, and none of the client's may leave its zone.
    ///
    /// # Errors
    /// One does.
    pub fn under_load<T>(
        &mut self,
        work: impl FnOnce(&mut Load<'_, 'a>) -> Result<T>,
    ) -> Result<T> {
        let to = SocketAddr::new(WEB4.parse()?, 80);
        let http = if self.doors == Doors::Both { OF_WEB.0 } else { OF_ALL.0 };
        let port = SocketAddr::new(WEST4.into(), http);
        let (client, outside) = (&mut self.client, &mut self.outside);
        let (objects, prober) = (&mut self.objects, &mut self.prober);
        let mut load = Load { objects, prober, agents: &mut self.agents };
        let (from_outside, (inside, result)) = outside.call_during(Via::Http, port, || {
            client.call_during(Via::Http, to, || work(&mut load))
        })?;
        for (who, tally) in [("the client", &inside), ("the client outside", &from_outside)] {
            ensure!(tally.answered() == tally.requests && tally.requests > 0, "{who}: {tally}");
        }
        ensure!(!inside.pods().contains("far"), "the client: {inside}");
        Ok(result)
    }

    /// A rollout under load: the endpoint of the client's zone is replaced, and replaced back.
    ///
    /// # Errors
    /// A connection fails, or leaves its zone.
    pub fn rolls_out(&mut self) -> Result<()> {
        let to = SocketAddr::new(WEB4.parse()?, 80);
        self.under_load(|load| {
            for zone in [&["near", "next"][..], &["next"], &["next", "near"], &["near"]] {
                load.objects.set_web(&[zone, &["far"]].concat())?;
                load.prober.wait_for(Via::Http, to, zone, FOLLOWS)?;
            }
            Ok(())
        })
    }

    /// Ends all agents, one after the other, and starts them again under load.
    ///
    /// # Errors
    /// A connection fails, or leaves its zone.
    pub fn agents_restart(&mut self) -> Result<()> {
        self.under_load(|load| {
            for agent in load.agents.iter_mut() {
                agent.kill();
                agent.resume()?;
            }
            Ok(())
        })
    }

    /// Has a neighbour, which `start` starts and whose value ends it: before the agents, then started again beside them;
    /// then the agents start again beside it. Each time all is served, and `own` checks that the neighbour does
    /// what it is for.
    ///
    /// # Errors
    /// Something is not so.
    pub fn has<N>(
        &mut self,
        mut start: impl FnMut(&mut Self) -> Result<N>,
        mut own: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let neighbour = start(self).context("the neighbour, before the agents")?;
        self.start_agents()?;
        self.serves().context("the neighbour was there before the agents")?;
        own(self).context("the neighbour's own work, before the agents")?;
        drop(neighbour);
        let _neighbour = start(self).context("the neighbour, beside the agents")?;
        self.serves().context("the neighbour came later than the agents")?;
        own(self).context("the neighbour's own work, beside the agents")?;
        self.rolls_out().context("a rollout")?;
        if is_whole() {
            self.agents_restart().context("agents start again")?;
            self.serves().context("the agents have started again")?;
            own(self).context("the neighbour's own work, after all")?;
        }
        Ok(())
    }

    /// Runs lines of a shell on west, and others when the returned value is dropped.
    ///
    /// # Errors
    /// One of the first fails.
    pub fn begin(&self, begin: &str, end: &str) -> Result<Begun<'a>> {
        self.rooms[0].begin(begin, end)
    }

    /// Waits until the agent of west is ready.
    ///
    /// # Errors
    /// It is not in time.
    pub fn wait_until_ready(&self) -> Result<()> {
        let is_ready = |answer: &Answer| answer.status == 200;
        self.agent().wait_for_answer("/readyz", SETTLES, is_ready).map(drop)
    }
}

/// Whether agents start again beside each neighbour: `TOPO_LB_WHOLE` is set. It takes as long as all else.
fn is_whole() -> bool {
    std::env::var_os("TOPO_LB_WHOLE").is_some_and(|it| !it.is_empty())
}

/// What may be changed under load.
#[derive(Debug)]
pub struct Load<'t, 'a> {
    /// What the agents know.
    pub objects: &'t mut Objects,
    /// A further process of the client.
    pub prober: &'t mut Client,
    /// The agents.
    pub agents: &'t mut Vec<Agent<'a>>,
}

impl Objects {
    fn describe(&mut self) -> Result<()> {
        let has_ipv6 = self.has_ipv6();
        let addresses = |four, six| if has_ipv6 { vec![four, six] } else { vec![four] };
        let both = [("http", 80, "TCP"), ("udp", 80, "UDP")];
        let web = service("web", &addresses(WEB4, WEB6), &both, &[(KEYS, ZONE)]);
        let all = service("all", &addresses(ALL4, ALL6), &both, &[]);
        for (mut service, (http, udp)) in [(web, OF_WEB), (all, OF_ALL)] {
            service["spec"]["type"] = "NodePort".into();
            service["spec"]["ports"][0]["nodePort"] = http.into();
            service["spec"]["ports"][1]["nodePort"] = udp.into();
            self.manifests.put(service);
        }
        for (name, zone) in [(WEST, "zone-1"), (EAST, "zone-2")] {
            self.manifests.put(manifest::node(name, &[(ZONE, zone)]));
        }
        self.put_endpoints("all", &["far"])?;
        self.set_web(&["near", "far"])
    }

    /// Whether pods have IPv6.
    fn has_ipv6(&self) -> bool {
        self.places.iter().all(|place| place.ipv6.is_some())
    }

    /// The address of a pod.
    ///
    /// # Errors
    /// There is no such pod.
    pub fn address(&self, pod: &str) -> Result<Ipv4Addr> {
        Ok(self.place(pod)?.ipv4)
    }

    fn place(&self, pod: &str) -> Result<&Known> {
        self.places.iter().find(|it| it.name == pod).with_context(|| format!("no pod {pod}"))
    }

    fn put_endpoints(&mut self, service: &str, pods: &[&str]) -> Result<()> {
        type Address = fn(&Known) -> Option<IpAddr>;
        let families: [(&str, Address); 2] =
            [("IPv4", |it| Some(it.ipv4.into())), ("IPv6", |it| it.ipv6.map(IpAddr::from))];
        for (family, address) in families {
            let mut endpoints = Vec::<Value>::new();
            for pod in pods {
                let place = self.place(pod)?;
                let one = address(place);
                endpoints.extend(one.map(|it| endpoint(&it.to_string(), &place.node, pod)));
            }
            self.manifests.put(slice(service, family, &SERVED, &endpoints));
        }
        Ok(())
    }

    /// Makes `pods` the endpoints of `web`, and writes the manifests.
    ///
    /// # Errors
    /// There is no such pod.
    pub fn set_web(&mut self, pods: &[&str]) -> Result<()> {
        self.put_endpoints("web", pods)?;
        self.manifests.write()
    }
}
