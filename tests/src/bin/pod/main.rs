//! The program in the lab's pods: a server that answers with its pod's name, and a client.

mod client;
mod datagrams;
mod dial;
mod dns;
mod exchange;
mod http;
mod serve;
mod shelf;
mod transfer;

use std::net::{Ipv6Addr, SocketAddr};

use anyhow::Result;
use clap::{Parser, Subcommand};
use topo_lb_tests::pod::PORT;

/// A server or a client in a pod of the lab.
#[derive(Debug, Parser)]
#[command(name = "pod")]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Answer every HTTP request and every datagram with a name, until standard input ends
    Serve {
        /// The name
        #[arg(long)]
        name: String,
        /// Where, for HTTP and UDP alike; `[::]` takes IPv4 too
        #[arg(long, default_values_t = [SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT))])]
        listen: Vec<SocketAddr>,
        /// Take MPTCP's connections as such, and not as TCP's
        #[arg(long)]
        mptcp: bool,
        /// `[::]` takes no IPv4
        #[arg(long)]
        only_ipv6: bool,
    },
    /// Answer every query in place of the cluster DNS, UDP and TCP, until standard input ends
    Dns {
        /// The port
        #[arg(long)]
        port: u16,
    },
    /// Obey orders, one JSON object per line of standard input, until it ends
    Client,
}

fn main() -> Result<()> {
    match Arguments::parse().role {
        Role::Serve { name, listen, mptcp, only_ipv6 } => {
            serve::serve(name, &listen, mptcp, only_ipv6)
        }
        Role::Dns { port } => dns::serve(port),
        Role::Client => client::obey(),
    }
}
