//! Who gives connections from outside to endpoints of other nodes an address of this node as their
//! source: the programs where one device leads to all of them, otherwise the kernel, by the masquerade
//! table.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use topo_lb_common::maps as names;
use tracing::{info, warn};

use super::mark::Mark;
use super::repair::Repairs;
use crate::datapath::Datapath;
use crate::datapath::host::source_nat::Hindrances;
use crate::datapath::maps::{connections, snat};
use crate::datapath::masquerade;
use crate::device::SoleUplink;

/// How often the connections are searched for one that needs the table, once new ones do not.
const SEARCH: Duration = Duration::from_secs(5);

/// Who does it.
#[derive(Debug, Default)]
pub(crate) struct SourceNat {
    /// What the devices allow; an error says why it is left to the kernel. `None`: no device for clients
    /// outside was found yet.
    uplink: Option<Result<SoleUplink, String>>,
    /// What was decided last: the programs with the addresses of this device, or the kernel.
    decided: Option<Result<SoleUplink, String>>,
    hindrances: Hindrances,
    /// Whether a program met a route that only the kernel can use. It stays so while this process runs.
    is_declined: bool,
    /// When connections were last searched for one that needs the table.
    searched: Option<Instant>,
}

impl Datapath {
    /// Leaves it to the programs if only `uplink` leads to other nodes and nothing else forbids it, or else
    /// to the kernel. An error says what else leads to them.
    pub fn choose_source(&mut self, uplink: Result<SoleUplink, String>) {
        self.source.uplink = Some(uplink);
        self.settle_source(None);
    }

    /// The addresses that the programs have given connections as their source.
    #[must_use]
    pub fn source_addresses(&self) -> Vec<IpAddr> {
        let snat = self.ebpf.map(names::SNAT).and_then(|map| snat::read(map).ok());
        snat.iter().flat_map(snat::addresses).collect()
    }

    /// Decides again who does it. Writes the masquerade table if it is needed and missing or changed; removes
    /// it once no connection needs it. Without `repairs` it only writes one that was not needed before: the
    /// next inspection reports a failure.
    pub(crate) fn settle_source(&mut self, repairs: Option<&mut Repairs>) {
        if self.masquerade.is_none() {
            return;
        }
        let Some(uplink) = self.source.uplink.clone() else { return };
        let before = self.source.decided.take();
        let decided = uplink.and_then(|uplink| match self.hindrance() {
            Some(hindrance) => Err(hindrance),
            None if before.as_ref().is_some_and(|before| before.as_ref() == Ok(&uplink)) => {
                Ok(uplink)
            }
            None => self.write_snat(Some(&uplink)).map(|()| uplink),
        });
        let is_new = decided.is_err() && !matches!(before, Some(Err(_)));
        let is_written = match repairs {
            None if is_new => self.keep_table(&mut Repairs::default()),
            Some(repairs) if decided.is_err() || self.has_table() => self.keep_table(repairs),
            _ => true,
        };
        if decided.is_err() && before.as_ref().is_some_and(Result::is_ok) && !is_written {
            // The programs go on until the table can be written.
            self.source.decided = before;
            return;
        }
        match (&before, &decided) {
            (Some(Ok(before)), Ok(uplink)) if before == uplink => {}
            (_, Ok(uplink)) => info!(
                device = uplink.device.name, addresses = ?uplink.addresses,
                "connections from outside to endpoints of other nodes get their source by tc"
            ),
            (Some(Err(_)), Err(_)) => {}
            (_, Err(reason)) => {
                info!(
                    "connections from outside to endpoints of other nodes get their source by the \
                     nftables table inet topo-lb: {reason}"
                );
                // Only now, as the table is there.
                if let Err(error) = self.write_snat(None) {
                    warn!("{error}; the programs go on with it");
                }
            }
        }
        if decided.is_ok() {
            self.remove_unused_table();
        } else {
            self.source.searched = None;
        }
        self.source.decided = Some(decided);
    }

    /// A sentence about what besides devices forbids that the programs do it.
    fn hindrance(&mut self) -> Option<String> {
        let snat = self.ebpf.map(names::SNAT).and_then(|map| snat::read(map).ok());
        self.source.is_declined |= snat.is_some_and(|snat| snat.declined != 0);
        if self.source.is_declined {
            return Some("the route to an endpoint has an encapsulation".to_owned());
        }
        self.source.hindrances.find()
    }

    fn write_snat(&mut self, uplink: Option<&SoleUplink>) -> Result<(), String> {
        let Some(map) = self.ebpf.map_mut(names::SNAT) else { return Ok(()) };
        snat::write(map, uplink).map_err(|error| error.to_string())
    }

    /// Whether this agent or an earlier one has written the table and not removed it.
    fn has_table(&self) -> bool {
        Mark::of_masquerade(&self.options.pin_dir).is_set()
    }

    /// Writes the table if it is missing or changed; returns whether it is there.
    fn keep_table(&mut self, repairs: &mut Repairs) -> bool {
        let Some(masquerade) = &mut self.masquerade else { return false };
        let mark = Mark::of_masquerade(&self.options.pin_dir);
        match mark.set().map(|()| masquerade.keep()) {
            Ok(Ok(false)) => {}
            Ok(Ok(true)) => {
                repairs.done.push("the nftables table inet topo-lb was removed or changed".into());
            }
            Ok(Err(error)) => repairs.outside = Some(error.to_string()),
            Err(error) => {
                repairs.outside = Some(format!(
                    "{} cannot be made, so the nftables table inet topo-lb is not written: \
                     {error}",
                    mark.path().display()
                ));
            }
        }
        repairs.outside.is_none()
    }

    /// Removes the table if no connection needs it, and none will: only programs of this agent are attached,
    /// and its tables have all connections.
    fn remove_unused_table(&mut self) {
        let is_due = self.source.searched.is_none_or(|at| at.elapsed() >= SEARCH);
        let is_settled = self.reply_filter.is_some() && self.carried.is_none();
        if !is_due || !is_settled || !self.has_table() {
            return;
        }
        // A program that read `snat` before it was written may still open a connection: so it takes two
        // searches.
        let is_first = self.source.searched.replace(Instant::now()).is_none();
        match connections::any_masqueraded(|name| self.ebpf.map(name)) {
            Ok(false) if !is_first => {
                self.remove_masquerade();
                self.source.searched = None;
                if let Some(masquerade) = &mut self.masquerade {
                    masquerade.forget();
                }
                info!(
                    "no connection needs the nftables table inet topo-lb any more: it is removed"
                );
            }
            Ok(true) if is_first => {
                info!(
                    "connections still need the nftables table inet topo-lb; it stays until they end"
                );
            }
            Ok(_) => {}
            Err(error) => warn!("{error}; the nftables table inet topo-lb stays"),
        }
    }

    /// Removes the masquerade table of an earlier agent. Call it when none of its programs is attached.
    pub fn remove_masquerade(&self) {
        match remove(&self.options.pin_dir) {
            Ok(true) => info!("removed the nftables table inet topo-lb, which no connection needs"),
            Ok(false) => {}
            Err(error) => warn!("the nftables table inet topo-lb cannot be removed: {error}"),
        }
    }
}

/// Removes the table and its mark. Returns whether there was a table.
///
/// # Errors
/// The kernel does not remove one of them; the next call tries again.
pub(crate) fn remove(pin_dir: &Path) -> io::Result<bool> {
    let mark = Mark::of_masquerade(pin_dir);
    if !mark.is_set() {
        return Ok(false);
    }
    let was_there = masquerade::remove()?;
    mark.remove()?;
    Ok(was_there)
}
