//! Who gives connections from outside to endpoints of other nodes an address of this node as their
//! source: the programs where one device leads to all of them, otherwise the kernel, by the masquerade
//! table.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use topo_lb_common::maps as names;
use topo_lb_common::snat::Snat;
use tracing::{info, warn};

use super::mark::Mark;
use crate::datapath::Datapath;
use crate::datapath::host::source_nat::{About, Hindrance};
use crate::datapath::maps::snat::Sources;
use crate::datapath::maps::{connections, snat};
use crate::datapath::masquerade::{self, Masquerade};
use crate::device::SoleUplink;

/// How often the connections are searched for one that needs the table, once new ones do not. Searching
/// takes at most a hundredth of the time.
const SEARCH: Duration = Duration::from_secs(5);
const SHARE: u32 = 100;

/// What somebody else did to the table, which is put back.
pub(super) const RESTORED: &str = "the nftables table inet topo-lb was removed or changed";

impl Datapath {
    /// Leaves it to the programs if only `uplink` leads to other nodes and nothing else forbids it, or else
    /// to the kernel. An error says what else leads to them.
    pub fn choose_source(&mut self, uplink: Result<SoleUplink, String>) {
        if self.source.uplink.as_ref() == Some(&uplink) {
            return;
        }
        self.source.uplink = Some(uplink);
        // The next inspection reports an error.
        if self.settle_source() == Ok(true) {
            warn!("{RESTORED}, by somebody else; it is put back");
        }
    }

    /// Whether the programs do it; `None`: it is not decided, as no client outside is served.
    #[must_use]
    pub fn gives_sources(&self) -> Option<bool> {
        self.source.decided.as_ref().map(Result::is_ok)
    }

    /// The one device that leads to clients outside and to other nodes, if packets may be sent on by it as they came;
    /// otherwise a sentence about what forbids that.
    ///
    /// # Errors
    /// That sentence.
    pub fn direct_uplink(&self) -> Result<&SoleUplink, &str> {
        match (&self.source.direct, &self.source.decided) {
            (Some(uplink), _) => Ok(uplink),
            (None, Some(Err(why))) => Err(why),
            (None, _) => Err("no device of clients outside is found"),
        }
    }

    /// The addresses that the programs have given connections as their source.
    #[must_use]
    pub fn source_addresses(&self) -> Vec<IpAddr> {
        self.snat().iter().flat_map(snat::addresses).collect()
    }

    /// Decides again who does it. Writes the masquerade table if connections need it, and removes it once
    /// none does. Returns whether somebody else had removed or changed it.
    ///
    /// # Errors
    /// Which connections fail, and why.
    pub(crate) fn settle_source(&mut self) -> Result<bool, String> {
        let Some(uplink) = self.source.uplink.clone().filter(|_| self.masquerade.is_some()) else {
            return Ok(false);
        };
        match uplink.map(|uplink| (self.hindrance(), uplink)) {
            Ok((None, uplink)) => self.leave_to_programs(uplink),
            Ok((Some(Hindrance { sentence, about }), uplink)) => {
                self.leave_to_kernel(sentence, (about != About::Ways).then_some(uplink))
            }
            Err(reason) => self.leave_to_kernel(reason, None),
        }
    }

    fn leave_to_programs(&mut self, uplink: SoleUplink) -> Result<bool, String> {
        let decided = Some(Ok(uplink.clone()));
        if self.source.decided != decided {
            if let Err(error) = self.write_snat(Sources::Given(&uplink)) {
                return self.leave_to_kernel(error, None);
            }
            self.source.direct = Some(uplink.clone());
            info!(
                device = uplink.device.name, addresses = ?uplink.addresses,
                "connections from outside to endpoints of other nodes get their source by tc"
            );
            self.source.decided = decided;
        }
        if !self.has_table() {
            return Ok(false);
        }
        let kept = self.keep_table().map_err(|error| {
            format!(
                "earlier connections from outside to endpoints of other nodes have no answers, as {error}"
            )
        });
        self.remove_unused_table();
        kept
    }

    /// `direct`: by what packets are sent on as they came all the same.
    fn leave_to_kernel(
        &mut self,
        reason: String,
        direct: Option<SoleUplink>,
    ) -> Result<bool, String> {
        self.source.next_search = None;
        let kept = self.keep_table();
        // Also those of an earlier agent.
        let are_programs_on =
            self.snat().is_some_and(|snat| snat.device4 != 0 || snat.device6 != 0);
        if let (true, Err(error)) = (are_programs_on, &kept) {
            return Err(format!(
                "connections from outside to endpoints of other nodes may fail: the kernel is to give them \
                 their source, as {reason}, but {error}; so tc still does it where it can"
            ));
        }
        // Only now, as the table is there.
        let sources = direct.as_ref().map_or(Sources::None, Sources::Direct);
        let is_other = self.source.direct != direct || self.source.decided.is_none();
        if (are_programs_on || is_other)
            && let Err(error) = self.write_snat(sources)
        {
            return Err(format!("tc still gives connections from outside their source: {error}"));
        }
        self.source.direct = direct;
        if !matches!(self.source.decided, Some(Err(_))) {
            info!(
                "connections from outside to endpoints of other nodes get their source by the \
                 nftables table inet topo-lb: {reason}"
            );
        }
        self.source.decided = Some(Err(reason));
        kept.map_err(|error| {
            format!(
                "connections from outside to endpoints of other nodes have no answers, as {error}"
            )
        })
    }

    fn snat(&self) -> Option<Snat> {
        self.ebpf.map(names::SNAT).and_then(|map| snat::read(map).ok())
    }

    /// What besides devices forbids that the programs do it.
    fn hindrance(&mut self) -> Option<Hindrance> {
        if self.snat().is_some_and(|snat| snat.declined != 0) {
            let sentence = "the route to an endpoint has an encapsulation".to_owned();
            return Some(Hindrance { sentence, about: About::Ways });
        }
        self.source.hindrances.find()
    }

    fn write_snat(&mut self, sources: Sources<'_>) -> Result<(), String> {
        let Some(map) = self.ebpf.map_mut(names::SNAT) else { return Ok(()) };
        snat::write(map, sources).map_err(|error| error.to_string())
    }

    /// Whether this agent or an earlier one has written the table and not removed it.
    fn has_table(&self) -> bool {
        Mark::of_masquerade(&self.options.pin_dir).is_set()
    }

    /// Writes the table if it is missing or changed; returns whether somebody else did that.
    ///
    /// # Errors
    /// It is not there, and why.
    fn keep_table(&mut self) -> Result<bool, String> {
        let mark = Mark::of_masquerade(&self.options.pin_dir);
        let was_set = mark.is_set();
        mark.set().map_err(|error| {
            format!(
                "the nftables table inet topo-lb is not written without {}, which cannot be made: {error}",
                mark.path().display()
            )
        })?;
        let kept = self.masquerade.as_mut().map(Masquerade::keep).transpose();
        if kept.is_err() && !was_set {
            // The kernel has written nothing. If the mark stays, it only makes the next agent look.
            let _ = mark.remove();
        }
        kept.map(Option::unwrap_or_default).map_err(|error| error.to_string())
    }

    /// Removes the table if no connection needs it, and none will: only programs of this agent are attached,
    /// and its tables have all connections.
    fn remove_unused_table(&mut self) {
        let began = Instant::now();
        let is_due = self.source.next_search.is_none_or(|at| began >= at);
        let is_settled = self.reply_filter.is_some() && self.carried.is_none();
        if !is_due || !is_settled {
            return;
        }
        let found = connections::any_masqueraded(|name| self.ebpf.map(name));
        let next = began + SEARCH.max(began.elapsed() * SHARE);
        // A program that read `snat` before it was written may still open a connection: so it takes two
        // searches.
        let is_first = self.source.next_search.replace(next).is_none();
        match found {
            Ok(false) if !is_first => {
                self.remove_masquerade();
                self.source.next_search = None;
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
