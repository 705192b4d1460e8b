//! The devices whose packets are translated, as they come and go.

use anyhow::Context as _;
use tracing::warn;

use crate::datapath::load::Datapath;
use crate::device::{self, Changes, Pattern};

/// The devices that tc is on.
pub(super) struct Devices {
    patterns: Vec<Pattern>,
    /// None where no device is to be chosen.
    changes: Option<Changes>,
    /// Names of those that were there at the last look.
    chosen: Vec<String>,
    /// Whether programs of an earlier agent may still be attached.
    renew: bool,
}

impl Devices {
    /// Attaches to those that are there, and hears of those that come from now on.
    pub(super) fn follow(patterns: &[Pattern], datapath: &mut Datapath) -> anyhow::Result<Self> {
        if patterns.is_empty() {
            datapath.remove_tc();
            let (patterns, chosen) = (Vec::new(), Vec::new());
            return Ok(Self { patterns, changes: None, chosen, renew: false });
        }
        // Listening begins before looking: nothing comes in between.
        let changes = Changes::listen().context("cannot follow the devices of this host")?;
        let (patterns, chosen) = (patterns.to_vec(), Vec::new());
        let mut devices = Self { patterns, changes: Some(changes), chosen, renew: true };
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
            }
            Err(error) => warn!("the devices of this host cannot be listed: {error}"),
        }
    }

    /// Names of the devices.
    pub(super) fn names(&self) -> &[String] {
        &self.chosen
    }
}
