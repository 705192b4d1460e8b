//! The program `topo-lb`: its command line, and the commands besides `agent`.
//!
//! It must never decide which endpoint a node may use (`topo_lb_core`), write a map (`topo_lb_kernel`) or
//! watch objects (`topo_lb_kube`); no other crate of the product imports it.
//!
//! The door: [`cli::Command`] has every command with its flags; `main.rs` calls what each is, and
//! [`commands`] has those that are more than a call.

pub mod aside;
pub mod called;
pub mod cli;
pub mod commands;
pub mod name_service;
pub mod pod;
