//! How others look at what the owner of the state knows: they ask, and it hands out what is shared
//! already. It copies nothing for them, and waits for nobody.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::cluster::{ServiceId, State};
use crate::events::concern::Refusal;
use crate::plan::Lack;

/// Questions that may wait. Whoever comes while as many wait is told that the agent is busy.
const WAITING: usize = 16;
/// How long an answer may take. The owner answers between two plans.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the owner knows.
#[derive(Clone, Debug)]
pub struct View {
    /// The cluster. Drop it soon: a change that comes while it is held costs a copy of its indexes.
    pub state: Arc<State>,
    /// Services that lack room in the maps.
    pub unprogrammed: BTreeMap<ServiceId, Lack>,
    /// Devices whose packets are translated.
    pub devices: Vec<String>,
    /// Frontends in the maps.
    pub frontends: usize,
}

/// Something that the owner is asked.
#[derive(Debug)]
pub enum Question {
    /// What it knows.
    View(oneshot::Sender<View>),
    /// Which Service ports refuse connections, and why.
    Reasons(oneshot::Sender<BTreeMap<Arc<str>, Refusal>>),
    /// Nothing: that Service ports have refused so many connections, which people should know.
    Refused(BTreeMap<Arc<str>, u64>),
}

/// Where questions are put.
#[derive(Clone, Debug)]
pub struct StateQueryHandle(mpsc::Sender<Question>);

/// Where the owner finds them.
pub type Questions = mpsc::Receiver<Question>;

/// A handle for those who ask, and the receiver for the owner of the state.
#[must_use]
pub fn state_query() -> (StateQueryHandle, Questions) {
    let (sender, questions) = mpsc::channel(WAITING);
    (StateQueryHandle(sender), questions)
}

/// The owner does not answer: it is busy, has not begun, or is gone.
#[derive(Debug, thiserror::Error)]
#[error("the agent is busy: it did not answer within {} s; try again", PATIENCE.as_secs())]
pub struct Busy;

impl StateQueryHandle {
    /// Asks what the owner knows.
    ///
    /// # Errors
    /// It does not answer in time.
    pub async fn view(&self) -> Result<View, Busy> {
        self.ask(Question::View).await
    }

    /// Asks which Service ports refuse connections, and why.
    ///
    /// # Errors
    /// It does not answer in time.
    pub async fn reasons(&self) -> Result<BTreeMap<Arc<str>, Refusal>, Busy> {
        self.ask(Question::Reasons).await
    }

    /// Says how many connections Service ports have refused. An owner that is busy is not told.
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
