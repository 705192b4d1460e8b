//! The `topo-lb` command.

fn main() {}
