//! A task of this process on the fabric.

use std::future::Future;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result};
use fs_err::File;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::AsFd as _;
use tokio::sync::oneshot;

use crate::cluster::Cluster;

/// A task on a thread in the fabric's network namespace. Dropping it ends the task.
#[derive(Debug)]
pub(crate) struct Background {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Runs `prepare`, and then the task that it returns.
    ///
    /// # Errors
    /// `prepare` fails.
    pub(crate) fn start<T: Future<Output = ()>>(
        name: &str,
        cluster: &Cluster,
        prepare: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<Self> {
        let netns = cluster.fabric().file().try_clone()?;
        let (stop, stopped) = oneshot::channel();
        let (report, reported) = mpsc::channel();
        let work = move || {
            let outcome = enter(&netns).and_then(|runtime| {
                let task = runtime.block_on(prepare)?;
                Ok((runtime, task))
            });
            match outcome {
                Ok((runtime, task)) => {
                    // The starter waits for it.
                    let _ = report.send(Ok(()));
                    runtime.block_on(async {
                        tokio::select! {
                            () = task => {}
                            _ = stopped => {}
                        }
                    });
                }
                Err(error) => drop(report.send(Err(error))),
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(work);
        let thread = thread.with_context(|| format!("cannot start the thread {name}"))?;
        reported.recv().with_context(|| format!("the thread {name} has ended"))??;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

fn enter(netns: &File) -> Result<tokio::runtime::Runtime> {
    move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))
        .context("cannot enter the fabric")?;
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")
}

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic was printed when it happened.
            let _ = thread.join();
        }
    }
}
