//! What a device may still do: it cannot use up what the clients of other devices need. Clients outside
//! of this node share devices, so each has an entry like a device's.

use core::ptr::NonNull;

use aya_ebpf::bindings::BPF_NOEXIST;
use topo_lb_common::address::TCP;
use topo_lb_common::connection::REPLY;
use topo_lb_common::device::{Device, REFUSALS, outside};
use topo_lb_common::snat::MOST_OF_CLIENT;
use topo_lb_common::usage::Usage;

use crate::base::atomic::add;
use crate::base::family::{ConnectionOf, Family, TupleOf};
use crate::base::maps::{DEVICES, HALF_OPEN_ROOM, QUOTA, SEED, USAGE};
use crate::packet::outside::is_of_outside;

/// The key in `devices` of the client of a connection. `key`: that of the client's packets.
#[inline(always)]
pub(crate) fn of<F: Family>(key: &TupleOf<F>) -> u32 {
    if is_of_outside::<F>(key) { of_address::<F>(F::words(key.source)) } else { key.device }
}

/// The same of an entry of either direction. `key` is that of `connection`.
#[inline(always)]
pub(crate) fn of_entry<F: Family>(connection: NonNull<ConnectionOf<F>>, key: &TupleOf<F>) -> u32 {
    if !is_of_outside::<F>(key) {
        return key.device;
    }
    let connection = connection.as_ptr();
    // SAFETY: fields of a look-up's value, each read separately.
    let (kind, destination) = unsafe {
        let kind = (&raw const (*connection).kind).read_volatile();
        (kind, F::words((*connection).destination))
    };
    of_address::<F>(if kind & REPLY == 0 { F::words(key.source) } else { destination })
}

/// The key in `devices` of a client outside with this address.
#[inline(always)]
pub(crate) fn of_address<F: Family>(address: F::Address) -> u32 {
    let [word, _] = F::halves(address);
    outside(SEED.load(), word)
}

/// The entry of a device; a new one has full buckets.
#[inline(always)]
fn entry(device: u32) -> Option<*mut Device> {
    DEVICES.get_ptr_mut(device).or_else(|| {
        let _ = DEVICES.insert(device, Device::default(), BPF_NOEXIST.into());
        DEVICES.get_ptr_mut(device)
    })
}

/// The count of an entry for connections of this protocol.
#[inline(always)]
fn count(entry: *mut Device, protocol: u8) -> *mut u32 {
    // SAFETY: a pointer to a complete value; nothing is read.
    unsafe { if protocol == TCP { &raw mut (*entry).connections } else { &raw mut (*entry).flows } }
}

/// Whether a client may open another connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permit {
    Granted,
    /// Its device has too many connections.
    Limited,
    /// The table is full of open connections.
    Full,
}

/// Whether a client may open another connection at `now`. `key` is that of its packet. Datagrams beyond the
/// quota stay half-open.
#[inline(always)]
pub(crate) fn may_open<F: Family>(key: &TupleOf<F>, now: u64) -> Permit {
    unless_datagram(may_have::<F>(key, now), key.protocol)
}

/// Like [`may_open`], for a client that has dialled before; any other one may.
#[inline(always)]
pub(crate) fn may_open_another<F: Family>(key: &TupleOf<F>, now: u64) -> Permit {
    let Some(entry) = DEVICES.get_ptr_mut(of::<F>(key)) else { return Permit::Granted };
    unless_datagram(permit::<F>(entry, key.protocol, now), key.protocol)
}

#[inline(always)]
fn unless_datagram(permit: Permit, protocol: u8) -> Permit {
    if permit == Permit::Limited && protocol != TCP { Permit::Granted } else { permit }
}

/// Whether a client may have another open connection at `now`.
#[inline(always)]
fn may_have<F: Family>(key: &TupleOf<F>, now: u64) -> Permit {
    let Some(entry) = entry(of::<F>(key)) else { return Permit::Limited };
    permit::<F>(entry, key.protocol, now)
}

/// Whether the client of an entry may have another open connection at `now`.
#[inline(always)]
fn permit<F: Family>(entry: *mut Device, protocol: u8, now: u64) -> Permit {
    let (Some(quota), Some(usage)) = (QUOTA.get_ptr(0), usage::<F>()) else {
        return Permit::Limited;
    };
    // SAFETY: look-ups' pointers; numbers that other CPUs change meanwhile are a few too small.
    unsafe {
        if (*quota).is_full((&raw const (*usage).open).read_volatile(), now) {
            Permit::Full
        } else if (*quota).allows(*count(entry, protocol), now) {
            Permit::Granted
        } else {
            Permit::Limited
        }
    }
}

/// Whether a connection may move to the established ones at `now`. `key` is that of the client's packets. It
/// was asked for when it was opened, and many may have been opened together.
#[inline(always)]
pub(crate) fn may_establish<F: Family>(key: &TupleOf<F>, now: u64) -> bool {
    let (Some(quota), Some(usage)) = (QUOTA.get_ptr(0), usage::<F>()) else {
        return false;
    };
    // SAFETY: look-ups' pointers, as in `may_have`.
    unsafe {
        let open = (&raw const (*usage).open).read_volatile();
        if (*quota).keeps_half_open(now) || key.protocol != TCP && (*quota).is_half_full(open, now)
        {
            return false;
        }
    }
    may_have::<F>(key, now) == Permit::Granted
}

/// Whether a client has as many open connections as may have a source of tc's at `now`. `key` is that of its
/// packet.
#[inline(always)]
pub(crate) fn has_many<F: Family>(key: &TupleOf<F>, now: u64) -> bool {
    let (Some(entry), Some(quota)) = (DEVICES.get_ptr_mut(of::<F>(key)), QUOTA.get_ptr(0)) else {
        return false;
    };
    // SAFETY: look-ups' pointers, as in `may_have`.
    unsafe { *count(entry, key.protocol) >= MOST_OF_CLIENT && (*quota).holds(now) }
}

#[inline(always)]
fn usage<F: Family>() -> Option<*mut Usage> {
    USAGE.get_ptr_mut(F::IS_V6.into())
}

/// A connection is in the table of half-open ones. Returns whether another one must leave it.
#[inline(always)]
pub(crate) fn opened<F: Family>() -> bool {
    usage::<F>().is_some_and(|usage| {
        // SAFETY: an array's element, whose fields all programs change by atomic additions.
        let half_open = unsafe {
            let half_open = &raw mut (*usage).half_open;
            add(half_open.cast(), 1);
            half_open.read_volatile()
        };
        half_open > i64::from(HALF_OPEN_ROOM.load())
    })
}

/// A connection has left the table of half-open ones.
#[inline(always)]
pub(crate) fn left_half_open<F: Family>() {
    if let Some(usage) = usage::<F>() {
        // SAFETY: as above.
        unsafe { add((&raw mut (*usage).half_open).cast(), -1_i64 as u64) };
    }
}

/// A connection is established. `key` is that of its client's packets.
#[inline(always)]
pub(crate) fn established<F: Family>(key: &TupleOf<F>) {
    left_half_open::<F>();
    if let Some(usage) = usage::<F>() {
        // SAFETY: as above.
        unsafe { add((&raw mut (*usage).open).cast(), 1) };
    }
    if let Some(entry) = DEVICES.get_ptr_mut(of::<F>(key)) {
        // SAFETY: a look-up's pointer; at worst two CPUs count one connection together.
        unsafe { *count(entry, key.protocol) += 1 };
    }
}

/// An established connection of the device is not open any more.
#[inline(always)]
pub(crate) fn closed<F: Family>(device: u32, protocol: u8) {
    if let Some(usage) = usage::<F>() {
        // SAFETY: as above.
        unsafe { add((&raw mut (*usage).open).cast(), -1_i64 as u64) };
    }
    if let Some(entry) = DEVICES.get_ptr_mut(device) {
        let count = count(entry, protocol);
        // SAFETY: as above.
        unsafe { *count = (*count).saturating_sub(1) };
    }
}

/// Whether another refused packet of the device may be answered at `now`.
#[inline(always)]
pub(crate) fn may_refuse(device: u32, now: u64) -> bool {
    // SAFETY: as above.
    entry(device).is_some_and(|entry| unsafe { (*entry).refusals.take(REFUSALS, now) })
}
