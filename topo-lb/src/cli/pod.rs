//! Flags of `topo-lb pod`, which only deploy/ calls.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::TraceArgs;

/// What a container of deploy/ does.
#[derive(Debug, Subcommand)]
pub enum PodTask {
    /// Mount a bpffs, unless there is one
    MountBpffs {
        /// Where
        place: PathBuf,
    },
    /// Wait for SIGTERM
    Done,
    /// Trace a Service, as its endpoint and its client
    Test(Box<TestArgs>),
}

/// `topo-lb pod test`.
#[derive(Debug, Args)]
pub struct TestArgs {
    /// The address of the Service
    #[arg(long)]
    address: IpAddr,
    /// The port of its endpoint, this process
    #[arg(long)]
    pub endpoint_port: u16,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: TraceArgs says what it is")]
    pub trace: TraceArgs,
}

impl TestArgs {
    /// The Service: port 80, as the chart has it.
    #[must_use]
    pub fn service(&self) -> SocketAddr {
        (self.address, 80).into()
    }
}
