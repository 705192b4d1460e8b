//! The tc programs, one packet at a time.

mod affinity;
mod budgets;
mod checksums;
mod collisions;
mod ends;
mod extensions;
mod fast_path;
mod fragments;
mod halves;
mod hops;
mod icmp;
mod malformed;
mod neighbours;
mod openings;
mod outside;
mod own;
mod queues;
mod refusals;
mod scene;
mod source_nat;
mod source_ports;
mod tcp;
mod translation;
mod udp;
