//! Gives other tasks read access to the agent task's state: they send queries, and it answers with
//! shared data. The owner copies no state for them, and waits for none of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use topo_lb_core::cluster::{ServiceId, State};
use topo_lb_core::plan::Lack;
use topo_lb_core::refusal::Refusal;
use topo_lb_core::topology::exposed::Exposing;

/// Most waiting queries; further ones fail with [`Busy`].
const WAITING: usize = 16;
/// Deadline for an answer. The owner answers between two plans.
const PATIENCE: Duration = Duration::from_secs(5);

/// A snapshot of the agent task's state.
#[derive(Clone, Debug)]
pub struct View {
    /// The cluster. Drop it soon: a change that arrives meanwhile costs a copy of its indexes.
    pub state: Arc<State>,
    /// Services that lack room in the maps.
    pub unprogrammed: BTreeMap<ServiceId, Lack>,
    /// Which frontends besides ClusterIPs are handled.
    pub exposing: Exposing,
    /// Devices on which tc translates packets.
    pub devices: Vec<String>,
    /// Frontends in the maps.
    pub frontends: usize,
}

/// A message to the owner.
#[derive(Debug)]
pub enum Question {
    /// Requests a [`View`].
    View(oneshot::Sender<View>),
    /// Requests which Service ports refuse connections, and why.
    Reasons(oneshot::Sender<BTreeMap<Arc<str>, Refusal>>),
    /// Reports how many connections Service ports have refused, for Events. Needs no answer.
    Refused(BTreeMap<Arc<str>, u64>),
}

/// Sends queries to the owner.
#[derive(Clone, Debug)]
pub struct StateQueryHandle(mpsc::Sender<Question>);

/// Receives them for the owner.
pub type Questions = mpsc::Receiver<Question>;

/// The sender of queries, and the receiver for the agent task.
#[must_use]
pub fn state_query() -> (StateQueryHandle, Questions) {
    let (sender, questions) = mpsc::channel(WAITING);
    (StateQueryHandle(sender), questions)
}

/// The owner does not answer: it is busy, has not started, or has ended.
#[derive(Debug, thiserror::Error)]
#[error("the agent is busy: it did not answer within {} s; try again", PATIENCE.as_secs())]
pub struct Busy;

impl StateQueryHandle {
    /// Requests a snapshot.
    ///
    /// # Errors
    /// The owner does not answer in time.
    pub async fn view(&self) -> Result<View, Busy> {
        self.ask(Question::View).await
    }

    /// Requests which Service ports refuse connections, and why.
    ///
    /// # Errors
    /// The owner does not answer in time.
    pub async fn reasons(&self) -> Result<BTreeMap<Arc<str>, Refusal>, Busy> {
        self.ask(Question::Reasons).await
    }

    /// Reports refused connections of Service ports. The report is lost if the owner is busy.
    pub fn refused(&self, counted: BTreeMap<Arc<str>, u64>) {
        let _ = self.0.try_send(Question::Refused(counted));
    }

    async fn ask<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> Question,
    ) -> Result<T, Busy> {
        let (sender, answer) = oneshot::channel();
        self.0.try_send(question(sender)).map_err(|_| Busy)?;
        tokio::time::timeout(PATIENCE, answer).await.map_err(|_| Busy)?.map_err(|_| Busy)
    }
}
