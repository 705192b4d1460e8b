//! What topo-lb does in the kernel and asks of this host: programs, maps, hooks, devices, sockets, netlink.
//!
//! It must never know where objects come from (kube), nor who asks it (agent, commands): of the workspace it
//! imports only `topo_lb_core` and `topo_lb_common`.
//!
//! The door: [`datapath::Datapath`] loads and attaches the programs and carries out plans of
//! `topo_lb_core`; [`datapath::inspect`] and [`datapath::maps`] read what is there; [`device`], [`socket`],
//! [`observe`], [`kube_proxy`] and [`pod_cgroups`] are one question to the host each.

pub mod datapath;
pub mod device;
pub mod kube_proxy;
pub mod netlink;
pub mod nftables;
pub mod observe;
pub mod pod_cgroups;
pub mod socket;
