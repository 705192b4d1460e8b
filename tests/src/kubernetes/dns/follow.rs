//! Follows the Services and Endpoints of the API server.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use futures::future::join;
use futures::pin_mut;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams, WatchEvent, WatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::Value;

use super::directory::Directory;

/// How long to wait after a failure.
const PAUSE: Duration = Duration::from_millis(200);

type Objects = BTreeMap<(String, String), Value>;

/// Publishes a new directory after every change, for good.
pub(super) async fn follow(client: &Client, publish: impl Fn(Directory)) {
    let state: tokio::sync::Mutex<[Objects; 2]> = tokio::sync::Mutex::default();
    let (state, publish) = (&state, &publish);
    let kind = |index: usize, kind: &'static str| async move {
        loop {
            let change = async |change: Change| {
                let mut state = state.lock().await;
                change.apply(&mut state[index]);
                let lists = state.each_ref().map(|one| one.values().cloned().collect::<Vec<_>>());
                publish(Directory::of(&lists[0], &lists[1]));
            };
            // kube-apiserver may be down: the names stay as they are.
            let _ = once(client, kind, change).await;
            tokio::time::sleep(PAUSE).await;
        }
    };
    // Both go on for ever.
    join(kind(0, "Service"), kind(1, "Endpoints")).await;
}

enum Change {
    List(Vec<DynamicObject>),
    Put(Box<DynamicObject>),
    Remove(Box<DynamicObject>),
}

impl Change {
    fn apply(self, to: &mut Objects) {
        let key = |object: &DynamicObject| {
            let metadata = &object.metadata;
            (
                metadata.namespace.clone().unwrap_or_default(),
                metadata.name.clone().unwrap_or_default(),
            )
        };
        let pair = |object: DynamicObject| {
            let key = key(&object);
            (key, serde_json::to_value(object).unwrap_or_default())
        };
        match self {
            Self::List(all) => *to = all.into_iter().map(pair).collect(),
            Self::Put(object) => to.extend([pair(*object)]),
            Self::Remove(object) => {
                to.remove(&key(&object));
            }
        }
    }
}

/// Lists, and watches until the watch ends.
async fn once(client: &Client, kind: &str, change: impl AsyncFn(Change)) -> Result<()> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", kind));
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let list = api.list(&ListParams::default()).await?;
    let version = list.metadata.resource_version.clone().context("a list has a version")?;
    change(Change::List(list.items)).await;
    let events = api.watch(&WatchParams::default(), &version).await?;
    pin_mut!(events);
    while let Some(event) = events.next().await {
        match event? {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                change(Change::Put(Box::new(object))).await;
            }
            WatchEvent::Deleted(object) => change(Change::Remove(Box::new(object))).await,
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(_) => break,
        }
    }
    Ok(())
}
