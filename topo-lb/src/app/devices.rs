//! The devices whose packets are translated, as they come and go.

use std::time::Instant;

use anyhow::Context as _;
use tracing::warn;

use crate::datapath::load::Datapath;
use crate::device::{self, Changes, Pattern, Unmatched};

/// The devices that tc is on.
pub(super) struct Devices {
    patterns: Vec<Pattern>,
    /// None where no device is to be chosen.
    changes: Option<Changes>,
    /// Names of those that were there at the last look.
    chosen: Vec<String>,
    /// Whether programs of an earlier agent may still be attached.
    renew: bool,
    unmatched: Unmatched,
}

impl Devices {
    /// Attaches to those that are there, and hears of those that come from now on.
    pub(super) fn follow(patterns: &[Pattern], datapath: &mut Datapath) -> anyhow::Result<Self> {
        let unmatched = Unmatched::new(patterns, Instant::now());
        if patterns.is_empty() {
            datapath.remove_tc();
            let (patterns, chosen) = (Vec::new(), Vec::new());
            return Ok(Self { patterns, changes: None, chosen, renew: false, unmatched });
        }
        // Listening begins before looking: nothing comes in between.
        let changes = Changes::listen().context("cannot follow the devices of this host")?;
        let (patterns, chosen) = (patterns.to_vec(), Vec::new());
        let mut devices = Self { patterns, changes: Some(changes), chosen, renew: true, unmatched };
        devices.attach(datapath);
        Ok(devices)
    }

    /// Returns after some device has come, gone, or changed.
    pub(super) async fn changed(&mut self) -> std::io::Result<()> {
        match &mut self.changes {
            Some(changes) => changes.changed().await,
            None => std::future::pending().await,
        }
    }

    /// Attaches to those that are there now, and to no others.
    pub(super) fn attach(&mut self, datapath: &mut Datapath) {
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

    /// Names of the devices.
    pub(super) fn names(&self) -> &[String] {
        &self.chosen
    }
}
