//! Clients outside of the node (`--kube-proxy-replacement`).

mod budgets;
mod clients;
mod collisions;
mod dialling;
mod endpoints;
mod flips;
mod flooded;
mod floods;
mod forged;
mod guards;
mod networks;
mod restarted;
mod scene;
mod short_connections;
mod source_ranges;
mod sources;
mod table;
mod time_wait;
mod unserved;
mod uplinks;
mod xdp;
