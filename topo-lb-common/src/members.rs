//! `members4` and `members6`: whether an endpoint still belongs to a Service.
//!
//! Programs check here whether a socket or client may keep its endpoint after a change. The maps
//! have the endpoints of UDP Services and of Services with session affinity; with tc or
//! `--terminate-tcp`, of all Services. Those of TCP Services with ejection are there, too: programs count
//! in them how many connects in a row have failed.

use crate::device::seeded;
use crate::layout::layout;

/// [`Member::state`]: new connections of this node may use the endpoint. Without it, the endpoint
/// serves but the topology prefers others: only existing flows keep it.
pub const CHOSEN: u32 = 1;

/// The lowest bit of an endpoint's node in [`Member::state`], of 15 ([`node_tag`]).
pub const NODE_SHIFT: u32 = 1;
/// The bits of an endpoint's node in [`Member::state`].
pub const NODE: u32 = 0x7fff << NODE_SHIFT;

/// [`Member::state`]: programs add this for a connect that has failed. The agent writes zero in its place.
pub const ONE_FAILURE: u32 = 1 << 16;

layout! {
    /// Key of both: an endpoint of a Service port.
    #[repr(C)]
    pub struct MemberKey<A> as MemberKey4<[u8; 4]>, MemberKey6<[u8; 16]> {
        /// Index of the Service port.
        pub service: u32,
        /// Network order.
        pub address: A,
        /// Host order.
        pub port: u16,
        /// Zero.
        pub reserved: u16,
    }
}

/// Value of both: an endpoint that serves.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Member {
    /// [`CHOSEN`] or zero; in the bits of [`NODE`], the tag of the node to which packets of clients outside may be
    /// sent on unchanged ([`crate::hop`]), or zero; from [`ONE_FAILURE`] on, how many connects in a row have failed.
    pub state: u32,
}

/// The tag of a node by its name, 1–32,767: two nodes of a large cluster may have the same.
#[must_use]
pub const fn node_tag(name: &[u8]) -> u16 {
    let (mut hash, mut at) = (0, 0);
    while at < name.len() {
        hash = seeded(hash, name[at] as u64);
        at += 1;
    }
    (hash % 0x7fff) as u16 + 1
}

impl Member {
    /// The tag of the endpoint's node; zero for none.
    #[inline(always)]
    pub const fn node(state: u32) -> u16 {
        ((state & NODE) >> NODE_SHIFT) as u16
    }

    /// How many connects in a row have failed.
    #[inline(always)]
    pub const fn failed_in_a_row(state: u32) -> u16 {
        (state / ONE_FAILURE) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nodes_tag_is_never_zero_and_leaves_the_other_bits_alone() {
        let names = (0..100_000).map(|number: u32| format!("node-{number}"));
        for name in names.chain([String::new()]) {
            let tag = node_tag(name.as_bytes());
            let state = u32::from(tag) << NODE_SHIFT | CHOSEN | (3 * ONE_FAILURE);
            assert!((1..=0x7fff).contains(&tag), "{name}: {tag}");
            assert_eq!((Member::node(state), Member::failed_in_a_row(state)), (tag, 3), "{name}");
        }
        assert_eq!(Member::node(CHOSEN | ONE_FAILURE), 0);
    }
}
