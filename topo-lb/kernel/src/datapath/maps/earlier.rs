//! tc's connections in the layout of earlier versions: without the client's device in the key.

use std::path::Path;

use aya::maps::{HashMap, Map, MapError};
use bytemuck::{Pod, bytes_of, pod_read_unaligned};

use super::pinned::{BPF_NOEXIST, Raw, added};
use crate::datapath::pin::pins;

/// Copies the entries of `old` to `new`. Which device a client is behind is not known: each entry
/// is written for every device whose programs are pinned in `pin_dir`. The copies of the other
/// devices never match a packet of the client, and leave with the least recently used entries.
///
/// `OK` and `OV` are key and value of the earlier version, as words; `K` and `V` those of this one.
///
/// # Errors
/// A map has other sizes, or cannot be written.
pub(super) fn copy<OK: Pod, OV: Pod, K: Pod, V: Pod>(
    pin_dir: &Path,
    old: &Map,
    new: &mut Map,
) -> Result<(), MapError> {
    let old = HashMap::<_, Raw<OK>, Raw<OV>>::try_from(old)?;
    let mut new = HashMap::<_, Raw<K>, Raw<V>>::try_from(new)?;
    let mut devices: Vec<u32> = pins(pin_dir).into_iter().map(|pin| pin.device).collect();
    devices.sort_unstable();
    devices.dedup();
    for (key, value) in old.iter().filter_map(Result::ok) {
        for device in &devices {
            let (key, value) = with_device(bytes_of(&key.0), bytes_of(&value.0), *device);
            added(new.insert(Raw(key), Raw(value), BPF_NOEXIST))?;
        }
    }
    Ok(())
}

/// An entry in the current layout. Its sequence numbers are not known: until the connection ends, a
/// RST or FIN does not count.
fn with_device<K: Pod, V: Pod>(key: &[u8], value: &[u8], device: u32) -> (K, V) {
    let (last_used, rest) = value.split_at(8);
    // State and kind, two reserved bytes, and the time of the first unanswered packet.
    let (translation, tail) = rest.split_at(rest.len() - 8);
    let key = [key, &device.to_ne_bytes()].concat();
    let numbers = [0; 8];
    let (state_and_kind, asked) = (&tail[..2], &tail[4..]);
    let value = [last_used, &key, translation, &numbers, asked, state_and_kind, &[0; 6]].concat();
    (pod_read_unaligned(&key), pod_read_unaligned(&value))
}

#[cfg(test)]
mod tests {
    use topo_lb_common::address::TCP;
    use topo_lb_common::connection::{
        ANSWERED, CLIENT_FIN, Connection4, Connection6, REPLY, TO_CLIENT, Tuple4, Tuple6,
    };

    use super::*;

    /// Key and value of an earlier version with addresses of this many bytes.
    fn earlier(address: usize) -> (Vec<u8>, Vec<u8>) {
        let ports = [40_000_u16.to_ne_bytes(), 80_u16.to_ne_bytes()].concat();
        let addresses = [vec![1; address], vec![2; address]].concat();
        let key = [&addresses[..], &ports, &[TCP, TO_CLIENT, 0, 0]].concat();
        let mut value = [&1_234_u64.to_ne_bytes()[..], &addresses, &ports].concat();
        for word in [5_u32, 6, 7] {
            value.extend_from_slice(&word.to_ne_bytes());
        }
        value.extend_from_slice(&[ANSWERED | CLIENT_FIN, REPLY, 0, 0]);
        value.extend_from_slice(&9_u32.to_ne_bytes());
        (key, value)
    }

    #[test]
    fn an_entry_of_an_earlier_version_keeps_all_its_fields() {
        macro_rules! check {
            ($bytes:literal, $tuple:ident, $connection:ident, $key:ty, $value:ty) => {{
                let (old_key, old_value) = earlier($bytes);
                assert_eq!(old_key.len(), size_of::<$key>());
                assert_eq!(old_value.len(), size_of::<$value>());
                let (key, value): ($tuple, $connection) = with_device(&old_key, &old_value, 3);
                let wanted = $tuple {
                    source: [1; $bytes],
                    destination: [2; $bytes],
                    source_port: 40_000,
                    destination_port: 80,
                    protocol: TCP,
                    way: TO_CLIENT,
                    reserved: 0,
                    device: 3,
                };
                assert_eq!(key, wanted);
                let wanted = $connection {
                    last_used: 1_234,
                    key,
                    source: [1; $bytes],
                    destination: [2; $bytes],
                    source_port: 40_000,
                    destination_port: 80,
                    service: 5,
                    revision: 6,
                    sequence: 7,
                    asked: 9,
                    state: ANSWERED | CLIENT_FIN,
                    kind: REPLY,
                    ..$connection::default()
                };
                assert_eq!(value, wanted);
            }};
        }
        check!(4, Tuple4, Connection4, [u32; 4], [u64; 5]);
        check!(16, Tuple6, Connection6, [u32; 10], [u64; 8]);
    }
}
