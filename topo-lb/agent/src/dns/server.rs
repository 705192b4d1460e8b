//! The thread that serves, and that renews the lease: if it dies or hangs, the kernel leads to the cluster
//! DNS again.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::listen::Outside;
use super::shared::Shared;
use super::{datagrams, streams};
use crate::metrics::Figures;
use topo_lb_core::cluster::LocalAddresses;
use topo_lb_core::dns::names::SharedNames;
use topo_lb_kernel::datapath::maps::lease::{Lease, RENEWAL};

/// How long queries that are on their way may take when the resolver is stopped.
const FAREWELL: Duration = Duration::from_millis(300);

/// Open files that the agent may need: each query on its way has a socket. Some hosts allow 1,024.
const FILES: u64 = 4_096;

/// A running resolver. Dropping it ends the lease first, and serves on for a moment.
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    /// The thread has the other end, and sends nothing.
    ended: mpsc::Receiver<()>,
}

impl Server {
    /// Listens at these addresses, and serves on a thread of its own.
    ///
    /// # Errors
    /// A sentence: a socket cannot be had, or this host's devices cannot be told apart.
    pub(crate) fn start(
        addresses: &[SocketAddr],
        local: &LocalAddresses,
        names: SharedNames,
        lease: Lease,
        figures: Arc<Figures>,
    ) -> Result<Self, String> {
        let outside = Outside::of(local)?;
        let mut files = getrlimit(Resource::Nofile);
        files.current =
            files.current.map(|soft| soft.max(files.maximum.unwrap_or(FILES).min(FILES)));
        // Without it, many queries at once fail.
        let _ = setrlimit(Resource::Nofile, files);
        let thread_error = |error: io::Error| format!("no thread for it: {error}");
        let runtime = Builder::new_current_thread().enable_all().build().map_err(thread_error)?;
        let entered = runtime.enter();
        let shared = Arc::new(Shared { names, figures });
        for &at in addresses {
            let taken = |kind| move |error| format!("{kind} at {at}: {error}");
            let datagrams = outside.datagrams(at).map_err(taken("UDP"))?;
            let streams = outside.streams(at).map_err(taken("TCP"))?;
            runtime.spawn(datagrams::serve(datagrams, Arc::clone(&shared)));
            runtime.spawn(streams::serve(streams, Arc::clone(&shared)));
        }
        drop(entered);
        let (stop, stopped) = oneshot::channel();
        let (end, ended) = mpsc::channel();
        let work = move || {
            runtime.block_on(renew(lease, stopped));
            drop((runtime, end));
        };
        thread::Builder::new().name("dns".to_owned()).spawn(work).map_err(thread_error)?;
        Ok(Self { stop: Some(stop), ended })
    }

    /// Whether the thread still serves.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.ended.try_recv() == Err(TryRecvError::Empty)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A thread that hangs renews no lease, and keeps nobody waiting.
        let _ = self.ended.recv_timeout(2 * FAREWELL);
    }
}

/// Renews the lease until `stopped`. The tasks that serve share the thread: if they hang, it ends.
async fn renew(lease: Lease, mut stopped: oneshot::Receiver<()>) {
    let mut turns = interval(RENEWAL);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            // The map stays mapped as long as the lease lives.
            _ = turns.tick() => drop(lease.renew()),
            // Nothing is ever sent: the sender is dropped.
            _ = &mut stopped => break,
        }
    }
    drop(lease.end());
    sleep(FAREWELL).await;
}
