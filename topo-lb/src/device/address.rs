//! The addresses that devices of this host have, as they come and go.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use futures::{Stream, stream};
use tokio::time::sleep;
use tracing::warn;

use super::follow::Changes;
use crate::cluster::LocalAddresses;

/// Devices whose addresses say nothing of who serves there: kube-proxy's IPVS mode and kube-router
/// give them every ClusterIP, for the kernel to take the packets in.
const PROXIES: [&str; 2] = ["kube-ipvs0", "kube-dummy-if"];
/// Changes are gathered for so long: proxies and CNIs make many at once.
const GATHER: Duration = Duration::from_millis(200);
/// Pause before the next attempt where the kernel does not say.
const AGAIN: Duration = Duration::from_secs(2);

/// All addresses, now and whenever they change. Never ends.
pub fn follow() -> impl Stream<Item = LocalAddresses> + Send {
    stream::unfold(Follower::default(), async |mut follower| {
        Some((follower.next().await, follower))
    })
}

#[derive(Default)]
struct Follower {
    changes: Option<Changes>,
    /// What was said last.
    said: Option<LocalAddresses>,
    /// Whether people know that the kernel does not say.
    warned: bool,
}

impl Follower {
    async fn next(&mut self) -> LocalAddresses {
        loop {
            match self.look().await {
                Ok(all) => {
                    self.warned = false;
                    if self.said.as_ref() != Some(&all) {
                        self.said = Some(all.clone());
                        return all;
                    }
                }
                Err(error) => {
                    self.changes = None;
                    if !std::mem::replace(&mut self.warned, true) {
                        warn!(
                            "the addresses of this host cannot be listed ({error}): a ClusterIP that \
                             a device of this host has may be handled; the agent retries every {} s",
                            AGAIN.as_secs()
                        );
                    }
                    if self.said.is_none() {
                        // Whoever starts must not wait for it.
                        return self.said.insert(BTreeMap::new()).clone();
                    }
                    sleep(AGAIN).await;
                }
            }
        }
    }

    /// All addresses: the first time at once, later after a change.
    async fn look(&mut self) -> io::Result<LocalAddresses> {
        match &mut self.changes {
            Some(changes) => {
                changes.changed().await?;
                sleep(GATHER).await;
            }
            // Listening begins before looking: nothing comes in between.
            None => self.changes = Some(Changes::of_addresses()?),
        }
        all()
    }
}

/// All addresses of devices that are no proxy's, each with the first device by name.
fn all() -> io::Result<LocalAddresses> {
    let mut all = BTreeMap::new();
    each(|address, device| take(&mut all, address, device))?;
    Ok(all)
}

/// Gives every address of this host to `see`, with the device that has it.
fn each(mut see: impl FnMut(IpAddr, &str)) -> io::Result<()> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: a place for the list's head.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut entry = list;
    while !entry.is_null() {
        // SAFETY: an entry of the list, which is not freed yet.
        let one = unsafe { &*entry };
        // SAFETY: a terminated name.
        let name = unsafe { CStr::from_ptr(one.ifa_name) }.to_string_lossy();
        // SAFETY: an address of the kind that it says, or null.
        if let Some(address) = unsafe { address(one.ifa_addr) } {
            see(address, device(&name));
        }
        entry = one.ifa_next;
    }
    // SAFETY: the list that was given out above, once.
    unsafe { libc::freeifaddrs(list) };
    Ok(())
}

/// # Safety
/// The pointer is null, or to an address as long as its family demands.
unsafe fn address(raw: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller's pointer, if it is one; what is read has the family's own layout, and may
    // lie unaligned.
    unsafe {
        match i32::from((!raw.is_null()).then(|| (&raw const (*raw).sa_family).read())?) {
            libc::AF_INET => {
                let address = raw.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes()).into())
            }
            libc::AF_INET6 => {
                let address = raw.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}

/// The device of an IPv4 address's label, which begins with its name: `eth0:1`.
fn device(label: &str) -> &str {
    label.split(':').next().unwrap_or_default()
}

/// Takes an address in, unless nobody can serve a Service there.
fn take(all: &mut LocalAddresses, address: IpAddr, device: &str) {
    // Every pod's device comes and goes with one of its own.
    let is_link_local = matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
    if is_link_local || address.is_loopback() || PROXIES.contains(&device) {
        return;
    }
    let first = all.entry(address).or_insert_with(|| device.into());
    if device < &**first {
        *first = device.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let mut all = LocalAddresses::new();
        for (address, label) in pairs {
            take(&mut all, address.parse().expect("an address"), device(label));
        }
        all.iter().map(|(address, device)| (address.to_string(), device.to_string())).collect()
    }

    #[test]
    fn proxies_and_addresses_that_no_service_can_have_do_not_count() {
        let pairs = [
            ("127.0.0.1", "lo"),
            ("::1", "lo"),
            ("fe80::1", "veth1"),
            ("10.96.0.10", "kube-ipvs0"),
            ("10.96.0.11", "kube-dummy-if"),
            ("10.96.0.10", "nodelocaldns"),
            ("10.96.0.12", "lo:dns"),
        ];
        let wanted = [("10.96.0.10", "nodelocaldns"), ("10.96.0.12", "lo")];
        assert_eq!(taken(&pairs), wanted.map(|(a, b)| (a.to_owned(), b.to_owned())));
    }

    #[test]
    fn of_several_devices_the_first_by_name_is_told_in_whatever_order_they_come() {
        let wanted = [("10.96.0.10".to_owned(), "a".to_owned())];
        assert_eq!(taken(&[("10.96.0.10", "a"), ("10.96.0.10", "b")]), wanted);
        assert_eq!(taken(&[("10.96.0.10", "b"), ("10.96.0.10", "a")]), wanted);
    }

    #[test]
    fn the_kernel_tells_of_this_host() {
        let mut told = Vec::new();
        each(|address, device| told.push((address, device.to_owned()))).expect("the kernel says");
        let loopback = (IpAddr::from(Ipv4Addr::LOCALHOST), "lo".to_owned());
        assert!(told.contains(&loopback), "{told:?}");
    }
}
