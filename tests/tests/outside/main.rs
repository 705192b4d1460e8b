//! Clients outside of the node (`--kube-proxy-replacement`).

mod clients;
mod floods;
mod guards;
mod restarts;
mod scene;
mod source_ranges;
mod table;
mod uplinks;
