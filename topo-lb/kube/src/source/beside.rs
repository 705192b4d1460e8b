//! Reads a source in a task of its own.

use std::pin::pin;

use futures::{Stream, StreamExt as _, stream};
use tokio::sync::mpsc;

/// Events sent together, because waking a thread costs more than reading an object.
const CHUNK: usize = 256;
/// Chunks in the queue. If the owner is slow, the source waits, and TCP slows the server down.
const WAITING: usize = 4;

/// Reads `source` in a task of its own: a runtime with a worker thread receives and decodes answers
/// while the owner applies earlier ones. Keeps the order. Ends with the source.
pub fn beside<T: Send + 'static>(
    source: impl Stream<Item = T> + Send + 'static,
) -> impl Stream<Item = T> + Send + Unpin {
    let (sender, receiver) = mpsc::channel(WAITING);
    tokio::spawn(async move {
        let mut chunks = pin!(source.ready_chunks(CHUNK));
        while let Some(chunk) = chunks.next().await {
            if sender.send(chunk).await.is_err() {
                return;
            }
        }
    });
    let chunks = stream::unfold(receiver, async |mut receiver| {
        receiver.recv().await.map(|chunk| (stream::iter(chunk), receiver))
    });
    chunks.flatten().boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_events_arrive_in_their_order_and_the_end_after_them() {
        let count = 5 * CHUNK * WAITING;
        let arrived: Vec<usize> = beside(stream::iter(0..count)).collect().await;
        assert!(arrived.into_iter().eq(0..count));
    }

    #[tokio::test]
    async fn a_source_that_nobody_reads_waits() {
        let (asked, mut number) = (std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0)), 0);
        let counted = std::sync::Arc::clone(&asked);
        let source = stream::repeat_with(move || {
            number += 1;
            counted.store(number, std::sync::atomic::Ordering::Relaxed);
            number
        });
        let mut read = beside(source);
        assert_eq!(read.next().await, Some(1));
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        let most = CHUNK * (WAITING + 3);
        assert!(asked.load(std::sync::atomic::Ordering::Relaxed) <= most);
    }
}
