//! Starts from the saved state if the API server is slow.

use std::collections::VecDeque;
use std::time::Duration;

use futures::{Stream, StreamExt as _, stream};
use tokio::time::{Instant, timeout_at};

use super::folder::Saved;
use crate::source::Event;
use topo_lb_core::cluster::Freshness;
use topo_lb_core::cluster::Update;

/// How long an API server has to list the whole cluster before the agent starts from the saved
/// state. Longer than a working server takes, and short enough for a start within 1 s.
const HEAD_START: Duration = Duration::from_millis(400);

/// `live`, preceded by the saved state unless `live` is complete within 0.4 s. The saved state
/// comes with its time and `Synced`. Later listings of `live` replace it kind by kind.
pub fn before(
    saved: Option<Saved>,
    live: impl Stream<Item = Event> + Send + Unpin + 'static,
) -> impl Stream<Item = Event> + Send {
    let start = Start { live, saved, first: Box::new(std::iter::empty()), begun: false };
    stream::unfold(start, async |mut start| Some((start.next().await?, start)))
}

struct Start<S> {
    live: S,
    saved: Option<Saved>,
    /// Events to send before those of `live`.
    first: Box<dyn Iterator<Item = Event> + Send>,
    /// The saved state was sent with its `Synced`, so drop that of `live`.
    begun: bool,
}

impl<S: Stream<Item = Event> + Unpin> Start<S> {
    async fn next(&mut self) -> Option<Event> {
        if let Some(saved) = self.saved.take() {
            self.first = self.choose(saved).await;
        }
        if let Some(event) = self.first.next() {
            return Some(event);
        }
        loop {
            match self.live.next().await? {
                Event::Synced if self.begun => {}
                event => return Some(event),
            }
        }
    }

    async fn choose(&mut self, saved: Saved) -> Box<dyn Iterator<Item = Event> + Send> {
        let until = Instant::now() + HEAD_START;
        let mut heard = VecDeque::new();
        while let Ok(Some(mut event)) = timeout_at(until, self.live.next()).await {
            if let Event::Update(update) = &mut event {
                saved.remind(update);
            }
            let complete = matches!(event, Event::Synced);
            heard.push_back(event);
            if complete {
                return Box::new(heard.into_iter());
            }
        }
        self.begun = true;
        let as_of = Event::Freshness(Freshness::AsOf(saved.as_of()));
        let known_nodes = Event::Update(Update::KnownNodes(saved.known_nodes()));
        let objects = saved.into_updates().map(Event::Update);
        Box::new(
            [as_of, known_nodes].into_iter().chain(objects).chain(heard).chain([Event::Synced]),
        )
    }
}
