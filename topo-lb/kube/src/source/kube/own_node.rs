//! This node's own Node as a whole, for what its metadata does not tell. One Node changes every few
//! minutes, so that costs the API server little.

use std::time::Duration;

use futures::StreamExt as _;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::debug;

use super::backoff::{LONGEST, pause, random};
use super::connect::{Server, connect};
use super::error::is_gone;
use super::reflect::{Failure, Query, Reflected, changes};
use super::resource::Watched;
use super::target::KubeTarget;
use super::watch::watch_seconds;
use topo_lb_core::cluster::Leaving;

/// A failure this long after the last one is the first in a row. Exceeds the longest pause.
const QUIET: Duration = Duration::from_secs(60);

/// Follows whether a Node is about to leave; at first not. A deleted Node is about to leave. Has a
/// connection of its own: the watch of the Nodes' metadata tells how fresh the state is, and reports
/// why an API server does not answer.
#[must_use]
pub fn leaving(target: KubeTarget, node: String) -> watch::Receiver<bool> {
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        let mut failures = 0;
        let server = loop {
            match connect(&target).await {
                Ok(server) => break server,
                Err(error) => debug!("the Node {node} cannot be watched: {error}"),
            }
            failures += 1;
            sleep(pause(failures, LONGEST, random())).await;
        };
        follow(&server, &node, sender).await;
    });
    receiver
}

async fn follow(server: &Server, node: &str, sender: watch::Sender<bool>) {
    let begin = || {
        let selector = Some(format!("metadata.name={node}"));
        let query = Query { version: 0, selector, cached: true, seconds: watch_seconds() };
        changes::<Leaving>(server, query)
    };
    let set = |leaves: bool| {
        sender.send_if_modified(|before| std::mem::replace(before, leaves) != leaves);
    };
    // An unreadable Node stays as it was.
    let read = |object: Watched<Leaving>| object.object.ok().map(|(leaving, _)| leaving.0);
    let (mut all, mut failures, mut last) = (begin(), 0, None::<Instant>);
    let mut listed = None;
    while !sender.is_closed() {
        match all.next().await {
            Some(Ok(Reflected::Begin)) => listed = None,
            Some(Ok(Reflected::Listed(object))) => listed = Some(read(object)),
            // `None`: the Node does not exist.
            Some(Ok(Reflected::Complete)) => match listed {
                None => set(true),
                Some(leaves) => leaves.into_iter().for_each(set),
            },
            Some(Ok(Reflected::Applied(object))) => read(object).into_iter().for_each(set),
            Some(Ok(Reflected::Deleted(_))) => set(true),
            Some(Err(failure)) => {
                debug!("watching the Node {node} again: {failure:?}");
                let is_first = last.is_none_or(|last| last.elapsed() > QUIET);
                failures = if is_first { 1 } else { failures + 1 };
                sleep(pause(failures, LONGEST, random())).await;
                last = Some(Instant::now());
                if matches!(&failure, Failure::Begin(error) if is_gone(error)) {
                    all = begin();
                }
            }
            None => all = begin(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::fake::Fake;
    use super::*;

    const NODES: &str = "/api/v1/nodes";

    fn object(name: &str, taint: Option<&str>) -> Value {
        let taints: Vec<_> = taint.iter().map(|key| json!({"key": key})).collect();
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"taints": taints}})
    }

    #[tokio::test]
    async fn a_taint_and_a_deletion_are_told_and_taken_back() {
        let fake = Fake::new(&[NODES]).await;
        fake.change(NODES, "ADDED", object("n1", None));
        let target = KubeTarget::Server(fake.url());
        let mut leaving = leaving(target, "n1".to_owned());
        assert!(!*leaving.borrow());
        let mut next = async || {
            let wait = tokio::time::timeout(Duration::from_secs(10), leaving.changed());
            wait.await.expect("no change").expect("it has ended");
            *leaving.borrow()
        };
        fake.change(NODES, "MODIFIED", object("n1", Some("ToBeDeletedByClusterAutoscaler")));
        assert!(next().await);
        fake.change(NODES, "MODIFIED", object("n1", Some("other")));
        assert!(!next().await);
        fake.change(NODES, "DELETED", object("n1", None));
        assert!(next().await);
    }
}
