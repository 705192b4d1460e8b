//! The program in the lab's pods: a server that answers with its pod's name, and a client.

mod client;
mod datagrams;
mod exchange;
mod http;
mod serve;
mod shelf;

use std::net::{Ipv6Addr, SocketAddr};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use topo_lb_tests::pod::PORT;
use topo_lb_tests::traffic::Via;

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
    },
    /// Make requests, each through a socket of its own, and print what became of them as JSON
    Call {
        /// How
        via: Via,
        /// Where to; `[::ffff:a.b.c.d]:port` goes through an AF_INET6 socket
        to: SocketAddr,
        /// How many
        #[arg(long, default_value_t = 1)]
        requests: u32,
    },
    /// Obey orders, one JSON object per line of standard input, until it ends
    Client,
}

fn main() -> Result<()> {
    match Arguments::parse().role {
        Role::Serve { name, listen, mptcp } => serve::serve(name, &listen, mptcp),
        Role::Call { via, to, requests } => {
            let tally = client::call(via, to, requests);
            println!("{}", serde_json::to_string(&tally).context("a tally is always JSON")?);
            Ok(())
        }
        Role::Client => client::obey(),
    }
}
