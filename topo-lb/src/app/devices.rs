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
}

impl Devices {
    /// Attaches to those that are there, and hears of those that come from now on.
    pub(super) fn follow(patterns: &[Pattern], datapath: &mut Datapath) -> anyhow::Result<Self> {
        if patterns.is_empty() {
            datapath.remove_tc();
            return Ok(Self { patterns: Vec::new(), changes: None, chosen: Vec::new() });
        }
        // Listening begins before looking: nothing comes in between.
        let changes = Changes::listen().context("cannot follow the devices of this host")?;
        let mut devices =
            Self { patterns: patterns.to_vec(), changes: Some(changes), chosen: Vec::new() };
        devices.attach(datapath, true);
        Ok(devices)
    }

    /// Returns after some device has come, gone, or changed.
    pub(super) async fn changed(&mut self) -> std::io::Result<()> {
        match &mut self.changes {
            Some(changes) => changes.changed().await,
            None => std::future::pending().await,
        }
    }

    pub(super) fn attach(&mut self, datapath: &mut Datapath, renew: bool) {
        match device::chosen(&self.patterns) {
            Ok(devices) => {
                datapath.attach_devices(&devices, renew);
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
