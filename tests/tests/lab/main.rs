//! The lab's suites: the agent with real sockets, in namespaces of this machine.
//!
//! Each module is a suite: `cargo xtask test` runs them one by one, in lanes.

mod admin;
mod bench;
mod capacity;
mod come_home;
mod commands;
mod counters;
mod demo;
mod direct_return;
mod dns;
mod ejection;
mod exclusions;
mod external;
mod follow;
mod frontends;
mod health;
mod island;
mod keepalived;
mod lifetime;
mod many_services;
mod masquerade;
mod neighbours;
mod objects;
mod observe;
mod outside;
mod peers;
mod policies;
mod restarts;
mod return_check;
mod self_test;
mod sockets;
mod startup;
mod steering;
mod stress;
mod surroundings;
mod tc_beside;
mod tc_bulk;
mod tc_floods;
mod untranslated;
mod view;
