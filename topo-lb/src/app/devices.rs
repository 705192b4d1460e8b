//! Follows the devices on which tc translates packets.

use std::io;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::time::{self, sleep_until};
use tracing::warn;

use crate::datapath::Datapath;
use crate::device::{self, Changes, Pattern, Unmatched};

/// Shortest time between two listings of all devices: a node that drains changes hundreds per
/// second.
const PAUSE: Duration = Duration::from_millis(200);

/// When devices are listed: at once after a change, then once for all changes within `PAUSE`.
#[derive(Debug)]
struct LookSchedule {
    /// Whether there was a change since the last listing.
    is_due: bool,
    /// Earliest time of the next listing.
    earliest: time::Instant,
}

impl LookSchedule {
    fn new() -> Self {
        Self { is_due: false, earliest: time::Instant::now() }
    }

    /// Returns when a listing is due; `change` returns after a change. Dropping it loses nothing.
    async fn due(&mut self, change: impl Future<Output = io::Result<()>>) -> io::Result<()> {
        if !self.is_due {
            change.await?;
            self.is_due = true;
        }
        sleep_until(self.earliest).await;
        Ok(())
    }

    fn begin(&mut self) {
        *self = Self { is_due: false, earliest: time::Instant::now() + PAUSE };
    }
}

/// The devices that tc programs are attached to.
pub(super) struct Devices {
    patterns: Vec<Pattern>,
    /// `None` if no pattern is given.
    changes: Option<Changes>,
    look: LookSchedule,
    /// Names of the devices chosen at the last listing.
    chosen: Vec<String>,
    /// Whether programs of an earlier agent may still be attached.
    renew: bool,
    unmatched: Unmatched,
}

impl Devices {
    /// Attaches to existing devices, and follows changes from now on.
    pub(super) fn follow(patterns: &[Pattern], datapath: &mut Datapath) -> anyhow::Result<Self> {
        let unmatched = Unmatched::new(patterns, Instant::now());
        if patterns.is_empty() {
            datapath.remove_tc();
            let (patterns, chosen) = (Vec::new(), Vec::new());
            let look = LookSchedule::new();
            return Ok(Self { patterns, changes: None, look, chosen, renew: false, unmatched });
        }
        // Listening begins before the listing, so no change is missed.
        let changes = Some(Changes::listen().context("cannot follow the devices of this host")?);
        let (patterns, look, chosen) = (patterns.to_vec(), LookSchedule::new(), Vec::new());
        let mut devices = Self { patterns, changes, look, chosen, renew: true, unmatched };
        devices.attach(datapath);
        Ok(devices)
    }

    /// Returns when a listing is due after a change of devices.
    pub(super) async fn changed(&mut self) -> io::Result<()> {
        match &mut self.changes {
            Some(changes) => self.look.due(changes.changed()).await,
            None => std::future::pending().await,
        }
    }

    /// Attaches to the chosen devices, and detaches from all others.
    pub(super) fn attach(&mut self, datapath: &mut Datapath) {
        self.look.begin();
        match device::chosen(&self.patterns) {
            Ok(devices) => {
                let all_ours = datapath.attach_devices(&devices, self.renew);
                self.renew &= !all_ours;
                self.chosen = devices.into_iter().map(|device| device.name).collect();
                let names = self.chosen.iter().map(String::as_str);
                if let Some(sentence) = self.unmatched.look(names, Instant::now()) {
                    warn!("{sentence}");
                }
            }
            Err(error) => warn!("the devices of this host cannot be listed: {error}"),
        }
    }

    pub(super) fn names(&self) -> &[String] {
        &self.chosen
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::{Instant, interval, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_of_changes_is_looked_at_when_it_begins_and_then_five_times_a_second() {
        let (began, mut look, mut looks) = (Instant::now(), LookSchedule::new(), Vec::new());
        let mut changes = interval(Duration::from_millis(1));
        while began.elapsed() < Duration::from_secs(1) {
            let change = async {
                changes.tick().await;
                Ok(())
            };
            look.due(change).await.expect("a look");
            looks.push(began.elapsed().as_millis());
            look.begin();
        }
        assert_eq!(looks, [0, 200, 400, 600, 800, 1000]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_not_lost_where_the_agent_turns_to_something_else() {
        let mut look = LookSchedule::new();
        look.begin();
        let soon = Duration::from_millis(1);
        assert!(timeout(soon, look.due(async { Ok(()) })).await.is_err(), "no pause");
        look.due(pending()).await.expect("a look");
    }
}
