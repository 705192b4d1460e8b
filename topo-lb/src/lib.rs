//! The program `topo-lb`: its command line, and the commands besides `agent`. Whatever decides, writes or
//! watches is in the crates below it.

pub mod called;
pub mod cli;
pub mod commands;
pub mod name_service;
pub mod pod;
