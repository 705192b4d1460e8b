//! Optional kinds that an API server does not have, or does not allow to read.

use std::time::Duration;

use tokio::time::Instant;

use super::{Attempts, Watch};
use crate::source::Event;
use crate::source::kube::KubeError;
use crate::source::kube::backoff::random;
use crate::source::kube::error::is_forbidden;
use crate::source::kube::resource::StateKind;
use topo_lb_core::cluster::Change;

/// Pause while a server may not know roles or custom resources yet.
const ROLES_PAUSE: Duration = Duration::from_secs(2);

impl<T: StateKind> Watch<T> {
    /// The server does not have this kind, or does not allow to read it. Known objects stay in force, but for
    /// those of an earlier run that this server never had.
    pub(super) fn absent(&mut self, verb: &'static str, error: &::kube::Error) {
        let (url, now) = (self.server.url(), Instant::now());
        let before = match self.attempts {
            Attempts::Failing { passing_since, .. } => Some(passing_since.unwrap_or(now)),
            Attempts::Succeeding => None,
        };
        let since = before.unwrap_or(now);
        let timing = self.server.session.timing;
        let more = u32::try_from(random() % 100).unwrap_or_default();
        let mut pause = timing.absent + timing.absent * more / 1_000;
        let was_there = is_forbidden(error) || self.had_contact;
        let trouble = match is_forbidden(error) {
            // A freshly started server may know neither the roles nor the custom resources yet.
            _ if was_there && now - since < timing.settling => {
                pause = ROLES_PAUSE;
                None
            }
            true => Some(KubeError::of(error, url, verb, T::resource()).to_string()),
            false if was_there => Some(format!(
                "the API server at {url} has no {} any more: the last ones stay in force until the \
                 agent restarts; install the CustomResourceDefinitions again (`topo-lb crds`)",
                T::resource(),
            )),
            false => {
                if before.is_some() {
                    let none = Change::Listed(Vec::new(), Vec::new());
                    self.say(Event::Update(T::update(none)));
                }
                None
            }
        };
        if let Some(trouble) = trouble {
            if self.absence.as_ref() != Some(&trouble) {
                self.say(Event::Trouble(trouble.clone()));
                if T::IS_CUSTOM {
                    self.say(Event::Kept(T::KIND, true));
                }
            }
            self.absence = Some(trouble);
        }
        if !self.had_contact && pause != ROLES_PAUSE {
            self.has_listed = true;
        }
        let opened = self.server.session.watch_health.opened(T::KIND);
        let (passing_since, next) = (Some(since), now + pause);
        self.attempts = Attempts::Failing { count: 1, opened, passing_since, next };
        self.relist = None;
        self.begin(true);
    }
}
