//! Watches of the fake API server.

use std::io;
use std::sync::Arc;

use axum::body::Bytes;
use futures::future;
use serde_json::json;
use tokio::sync::watch;

use super::{Changed, EXPIRED, Inner, is_named, status};

/// An open watch.
pub(super) struct Watch {
    inner: Arc<Inner>,
    path: String,
    /// The only object that it is about.
    name: Option<String>,
    next: Next,
    changed: watch::Receiver<()>,
    broken: watch::Receiver<()>,
}

/// What a watch sends next.
#[derive(Clone, Copy)]
enum Next {
    /// The changes from this index on.
    Change(usize),
    /// Nothing, but the connection stays open.
    Stall,
    /// Its end.
    End,
}

impl Watch {
    /// A watch of the changes from this index on, of all objects of a path or of one.
    pub(super) fn begin(inner: &Arc<Inner>, path: &str, name: Option<&str>, from: usize) -> Self {
        inner.state().watches += 1;
        Self {
            path: path.to_owned(),
            name: name.map(str::to_owned),
            next: Next::Change(from),
            changed: inner.changed.subscribe(),
            broken: inner.broken.subscribe(),
            inner: Arc::clone(inner),
        }
    }

    pub(super) async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            if let Some(line) = self.line() {
                return Some(Ok(line));
            }
            let changed = match self.next {
                Next::Change(_) => future::Either::Left(self.changed.changed()),
                Next::Stall => future::Either::Right(future::pending()),
                Next::End => return None,
            };
            tokio::select! {
                _ = changed => {}
                _ = self.broken.changed() => return Some(Err(io::Error::other("hung up"))),
            }
        }
    }

    /// What can be sent now.
    fn line(&mut self) -> Option<Bytes> {
        let Next::Change(from) = self.next else { return None };
        let mut state = self.inner.state();
        if state.ends_watches {
            self.next = Next::End;
            return None;
        }
        if state.stalled {
            self.next = Next::Stall;
            return None;
        }
        if from < state.oldest {
            self.next = Next::End;
            let event = json!({"type": "ERROR", "object": status(EXPIRED)});
            return Some(format!("{event}\n").into());
        }
        let is_meant = |change: &Changed| {
            let name = self.name.as_deref();
            change.path == self.path && name.is_none_or(|name| is_named(&change.name, name))
        };
        let Some(found) = state.log.iter().skip(from).position(is_meant) else {
            self.next = Next::Change(state.log.len());
            return None;
        };
        let line = state.log[from + found].line.as_bytes();
        let (line, next) = match state.sends_half {
            true => (&line[..line.len() / 2], Next::Stall),
            false => (line, Next::Change(from + found + 1)),
        };
        let line = Bytes::copy_from_slice(line);
        (self.next, state.sends_half) = (next, false);
        state.watched += line.len() as u64;
        Some(line)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.inner.state().watches -= 1;
    }
}
