//! Follows the devices on which tc translates packets: those of guests, and those of clients outside.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::time::{self, sleep_until};
use tracing::warn;

use super::config::{Config, MasqueradeBy};
use crate::metrics::Figures;
use topo_lb_core::flag::{EXTERNAL_DEVICES, MASQUERADE};
use topo_lb_core::once::Once;
use topo_lb_kernel::datapath::Datapath;
use topo_lb_kernel::datapath::direction::Role;
use topo_lb_kernel::device::{self, Changes, Device, Pattern, Unmatched, Uplinks};

/// Shortest time between two listings of all devices: a node that drains changes hundreds per
/// second.
const PAUSE: Duration = Duration::from_millis(200);
/// Most devices that are logged as not served: a server of PPP makes one for each of its users.
const LOGGED: usize = 64;

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
    guests: Vec<Pattern>,
    /// Patterns of the devices of clients outside, if any are given; `None`: these are not served.
    external: Option<Vec<Pattern>>,
    masquerade: MasqueradeBy,
    /// `None` if no device can be chosen.
    changes: Option<Changes>,
    look: LookSchedule,
    /// Names of the devices chosen at the last listing.
    chosen: Vec<String>,
    /// Whether programs of an earlier agent may still be attached.
    renew: bool,
    unmatched: Unmatched,
    /// Whether the last listing found no device of clients outside.
    has_no_uplink: bool,
    /// Those of the last listing by which clients outside may come, and that no program serves.
    unserved: Vec<Device>,
    /// The names of such devices that were logged.
    logged: Once<String>,
    figures: Arc<Figures>,
}

impl Devices {
    /// Attaches to existing devices, and follows changes from now on.
    pub(super) fn follow(
        config: &Config,
        datapath: &mut Datapath,
        figures: Arc<Figures>,
    ) -> anyhow::Result<Self> {
        let external = config.replacement.as_ref().map(|it| it.devices.clone());
        let is_needed = external.is_some() || !config.devices.is_empty();
        // Listening begins before the listing, so no change is missed.
        let changes = is_needed.then(Changes::listen).transpose();
        let mut devices = Self {
            guests: config.devices.clone(),
            external,
            masquerade: config.replacement.as_ref().map(|it| it.masquerade).unwrap_or_default(),
            changes: changes.context("cannot follow the devices of this host")?,
            look: LookSchedule::new(),
            chosen: Vec::new(),
            renew: is_needed,
            unmatched: Unmatched::new(&config.devices, Instant::now()),
            has_no_uplink: false,
            unserved: Vec::new(),
            logged: Once::new(),
            figures,
        };
        if is_needed {
            devices.attach(datapath);
        } else {
            datapath.remove_tc();
        }
        if devices.external.is_none() {
            datapath.remove_masquerade();
        }
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
        if self.changes.is_none() {
            return;
        }
        self.look.begin();
        let devices = match self.choose() {
            Ok(devices) => devices,
            Err(error) => {
                warn!("the devices of this host cannot be listed: {error}");
                return;
            }
        };
        self.choose_source(datapath, &devices);
        let by_programs = datapath.gives_sources();
        for (by, figure) in [Some(true), Some(false)].into_iter().zip(&self.figures.source_nat) {
            figure.store((by_programs == by).into(), Relaxed);
        }
        let all_ours = datapath.attach_devices(&devices, self.renew);
        self.renew &= !all_ours;
        let of = |role| devices.iter().filter(move |(of, _)| *of == role).map(|(_, device)| device);
        for (role, figure) in Role::BOTH.into_iter().zip(&self.figures.devices) {
            figure.store(of(role).count() as u64, Relaxed);
        }
        self.figures.xdp_devices.store(datapath.devices_with_xdp() as u64, Relaxed);
        let guests = of(Role::Guest).map(|device| device.name.as_str());
        if let Some(sentence) = self.unmatched.look(guests, Instant::now()) {
            warn!("{sentence}");
        }
        self.log_unserved();
        let has_no_uplink = self.external.is_some() && of(Role::External).next().is_none();
        if has_no_uplink && !self.has_no_uplink {
            warn!("{}", self.no_uplink());
        }
        self.has_no_uplink = has_no_uplink;
        self.chosen = devices.into_iter().map(|(_, device)| device.name).collect();
    }

    /// Logs each device once that is not served.
    fn log_unserved(&mut self) {
        self.figures.unserved.store(self.unserved.len() as u64, Relaxed);
        let is_new = |device: &&Device| !self.logged.has(&device.name);
        let new: Vec<Device> = self.unserved.iter().filter(is_new).cloned().collect();
        if self.logged.count() < LOGGED
            && let Some(sentence) = device::unserved(&new)
        {
            warn!("{sentence}; {}", device::remedy());
            for device in new {
                self.logged.begins(device.name);
            }
        }
    }

    /// A sentence about clients outside who are not served; `None` if there are none.
    pub(super) fn unserved(&self) -> Option<String> {
        let nowhere = self.has_no_uplink.then(|| self.no_uplink());
        let all: Vec<_> = nowhere.into_iter().chain(device::unserved(&self.unserved)).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Says who gives packets to other nodes their source, before connections need it.
    fn choose_source(&self, datapath: &mut Datapath, devices: &[(Role, Device)]) {
        let uplinks = devices.iter().filter(|(role, _)| *role == Role::External);
        let uplinks: Vec<Device> = uplinks.map(|(_, device)| device.clone()).collect();
        if uplinks.is_empty() {
            return;
        }
        let sole = match self.masquerade {
            MasqueradeBy::Auto => device::sole_uplink(&uplinks, &datapath.source_addresses()),
            MasqueradeBy::Nftables => Ok(Err(format!("{MASQUERADE} nftables"))),
        };
        datapath.choose_source(sole.unwrap_or_else(|error| Err(error.to_string())));
    }

    fn no_uplink(&self) -> String {
        let lacks = match self.external.as_deref() {
            None | Some([]) => {
                format!("has an address of the host: name them by {EXTERNAL_DEVICES}")
            }
            Some(_) => format!("matches {EXTERNAL_DEVICES}: `ip -br link` shows all"),
        };
        format!("clients outside of this node are not served, as no Ethernet device {lacks}")
    }

    /// The devices and their roles. One that matches `--tc-devices` is a guest's, whatever its address.
    fn choose(&mut self) -> io::Result<Vec<(Role, Device)>> {
        let mut all: Vec<(Role, Device)> = Vec::new();
        all.extend(device::chosen(&self.guests)?.into_iter().map(|device| (Role::Guest, device)));
        if let Some(patterns) = &self.external {
            let Uplinks { mut served, unserved } = device::uplinks(patterns)?;
            self.unserved = unserved;
            served.retain(|uplink| all.iter().all(|(_, guest)| guest != uplink));
            all.extend(served.into_iter().map(|device| (Role::External, device)));
        }
        Ok(all)
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
