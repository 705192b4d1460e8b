//! topo-lb beside real programs of others, from Debian's packages: CNI plugins, VPNs, firewalls, ingresses, DNS caches,
//! switches, programs of XDP. Each test has the neighbour before the agents, beside them and while they start again, keeps a
//! policy, dials a node port, replaces endpoints under load, and checks that the neighbour still does its own work.

mod cni;
mod firewall;
mod flush;
mod foreign;
mod ingress;
mod name_cache;
mod overlay;
mod pairs;
mod switch;
