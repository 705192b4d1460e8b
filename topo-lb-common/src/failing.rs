//! `failing`: a ring buffer in which programs tell the agent that connects to an endpoint fail.
//!
//! A Service with the annotation `topo-lb.io/ejection` says after how many failures in a row. The programs
//! count a row in the endpoint's [`Member`](crate::members::Member): a failure adds one, a connection
//! that is established begins again at zero.

/// Bytes of the ring buffer: a power of two, and a multiple of the largest page (64 KiB).
pub const RING_BYTES: u32 = 64 * 1_024;

/// Most failures in a row that a Service can ask for: what fits into four bits of
/// [`Record::localities`](crate::record::Record::localities).
pub const MOST_FAILURES: u8 = 15;

/// Element of the ring buffer: an endpoint of a Service port has failed as often in a row as asked, or a
/// multiple of that.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Failing {
    /// The endpoint's address in network order; an IPv4 address as an IPv4-mapped IPv6 address.
    pub address: [u8; 16],
    /// Index of the Service port.
    pub service: u32,
    /// The endpoint's port, host order.
    pub port: u16,
    /// How the last connect failed: a [`Failure`](crate::totals::Failure).
    pub failure: u8,
    /// Zero.
    pub reserved: u8,
}

/// Whether the agent hears of the last failure of so many in a row. It hears again after as many more:
/// the ring buffer may have been full, or there was no room to leave the endpoint out.
#[inline(always)]
pub const fn is_told(in_a_row: u16, failures: u8) -> bool {
    failures != 0 && in_a_row != 0 && in_a_row.is_multiple_of(failures as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every order of up to twelve successes and failures.
    #[test]
    fn an_endpoint_is_told_exactly_when_so_many_connects_in_a_row_have_failed() {
        for failures in 1..=4_u8 {
            for connects in 0..1_u16 << 12 {
                let mut row = 0;
                for connect in 0..12 {
                    let has_failed = connects >> connect & 1 == 1;
                    row = if has_failed { row + 1 } else { 0 };
                    let last = (connects << (15 - connect)).leading_ones() as u16;
                    let told = last > 0 && last.is_multiple_of(u16::from(failures));
                    assert_eq!(is_told(row, failures), told, "{connects:b} at {connect}");
                }
            }
        }
    }

    #[test]
    fn an_endpoint_that_refuses_every_second_connect_is_never_told() {
        for failures in 2..=MOST_FAILURES {
            assert!((0..100).all(|connect| !is_told(connect % 2, failures)));
        }
        assert!((0..100).all(|row| !is_told(row, 0)), "nobody asked");
    }
}
