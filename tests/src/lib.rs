//! The lab: a cluster on one machine, made of kernel features.
//!
//! A node is a network namespace and a cgroup. A pod is a network namespace with a veth pair to its
//! node, and a cgroup below the node's. A process is in a pod if it has joined both. The nodes are
//! connected by a bridge in its own namespace, so the machine's own network stays untouched.
//!
//! ```text
//!  fabric namespace          node namespace                      pod namespace
//!  br0 172.30.0.254/24 ────  eth0 172.30.0.<node>/24
//!  local 10.96.0.0/12        pod2 169.254.1.1, fe80::1  ───────  eth0 10.244.<node>.2/32
//!  local fd00:96::/112                                                fd00:244:<node>::2/128
//! ```
//!
//! Packets to a ClusterIP that no agent translates follow the nodes' default route to the fabric,
//! which owns every address of the Service ranges. A server there answers "untouched"; in a real
//! cluster kube-proxy would handle them.
//!
//! Everything that outlives a process (namespaces, cgroups, pins, folders) has the lab's [`prefix`]
//! with the process id in its name. Guards remove it on drop, [`interrupt`] on a signal, and the
//! next lab removes what a killed process left.
//!
//! It must never know how the agent decides: it starts the program, and looks at what clients get. No crate of
//! the product imports it, but by its tests.
//!
//! The door: [`lab::within`] makes a cluster and hands it to a test; [`cluster::Cluster`] has its nodes and
//! pods.

pub mod address;
pub mod agent;
pub mod api;
pub mod binary;
pub mod browser;
pub mod calls;
pub mod card;
pub mod cgroup;
pub mod client;
pub mod cluster;
pub mod cluster_dns;
pub mod cni;
pub mod control_plane;
pub mod counting;
pub mod crowd;
pub mod dashboard;
pub mod demonstration;
pub mod deployment;
pub mod dial;
pub mod direct_return;
pub mod etcd;
pub mod external;
pub mod flood;
pub mod folder;
pub mod foreign;
pub mod foreign_table;
pub mod frame;
pub mod generator;
pub mod half_open;
pub mod http;
pub mod hub;
pub mod interrupt;
pub mod iptables;
pub mod kind;
pub mod kube_proxy;
pub mod kubernetes;
pub mod kubernetes_1_20;
pub mod lab;
pub mod manifest;
pub mod map_memory;
pub mod memory;
pub mod netns;
pub mod node;
pub mod node_deaths;
pub mod objects;
pub mod outside;
pub mod packets;
pub mod page;
pub mod paint;
pub mod permit;
pub mod pictures;
pub mod pod;
pub mod population;
pub mod prefix;
pub mod process;
pub mod progress;
pub mod prometheus;
pub mod pure_agent;
pub mod reads;
pub mod records;
pub mod report;
pub mod requirements;
pub mod residue;
pub mod restarts;
pub mod room;
pub mod router;
pub mod scene;
pub mod served;
pub mod stress;
pub mod terminal;
pub mod town;
pub mod traffic;
pub mod transfer;
#[expect(clippy::mut_range_bound, reason = "the search for jumps begins again with more parts")]
pub mod verifier;
pub mod view_page;
pub mod virtio;
pub mod vrrp;
pub mod wait;
pub mod wireguard;
pub mod wiring;
