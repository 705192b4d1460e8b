//! What the kernel has counted of a TCP socket, read from its own structure.
//!
//! The fields that contexts show lack `bytes_sent` and `bytes_retrans`. Where a field is differs between
//! kernels: the agent finds that in the kernel's BTF, and sets constants. The verifier knows their
//! values, and checks each access against the structure.

use core::ffi::c_void;

use aya_ebpf::Global;
use aya_ebpf::helpers::generated::bpf_skc_to_tcp_sock;

/// Bytes from the begin of `struct tcp_sock` to a field.
macro_rules! offsets {
    ($($name:ident $field:literal,)+) => {
        $(
            #[doc = concat!("Offset of `", $field, "`, in bytes.")]
            #[unsafe(no_mangle)]
            pub(crate) static $name: Global<u32> = Global::new(0);
        )+
    };
}

offsets! {
    SK_FLAGS "sk_flags",
    SK_ERR "sk_err",
    BYTES_SENT "bytes_sent",
    BYTES_RETRANS "bytes_retrans",
    BYTES_ACKED "bytes_acked",
    BYTES_RECEIVED "bytes_received",
    TOTAL_RETRANS "total_retrans",
    SRTT_US "srtt_us",
}

/// `SOCK_DONE` (`enum sock_flags`, include/net/sock.h): the peer's FIN has arrived.
const SOCK_DONE: u32 = 1;

/// The kernel's numbers of a TCP socket.
#[derive(Clone, Copy)]
pub(crate) struct TcpFigures {
    /// Bytes that were sent at least once.
    pub(crate) sent: u64,
    /// Bytes that arrived in order.
    pub(crate) received: u64,
    /// Segments that were sent again.
    pub(crate) retransmitted: u32,
    /// Smoothed round trip, in microseconds; zero without a sample.
    pub(crate) rtt_micros: u32,
    /// `sk_err`: zero, or a positive number of include/uapi/asm-generic/errno.h.
    pub(crate) error: u32,
}

impl TcpFigures {
    /// Reads them; `None` if it is no TCP socket.
    ///
    /// # Safety
    /// `sk` is a socket of a context.
    #[inline(always)]
    pub(crate) unsafe fn read(sk: *mut c_void) -> Option<Self> {
        // SAFETY: the caller's socket; the fields are of `struct tcp_sock`, and the verifier checks that.
        unsafe {
            let tcp = bpf_skc_to_tcp_sock(sk);
            if tcp.is_null() {
                return None;
            }
            let word = |offset: &Global<u32>| field::<u32>(tcp.cast(), offset);
            let long = |offset: &Global<u32>| field::<u64>(tcp.cast(), offset);
            // A FIN counts as a byte (`tcp_rcv_nxt_update`, net/ipv4/tcp_input.c).
            let fin = long(&SK_FLAGS) >> SOCK_DONE & 1;
            Some(Self {
                sent: long(&BYTES_SENT).wrapping_sub(long(&BYTES_RETRANS)),
                received: long(&BYTES_RECEIVED).saturating_sub(fin),
                retransmitted: word(&TOTAL_RETRANS),
                // The kernel keeps eight times the value.
                rtt_micros: word(&SRTT_US) >> 3,
                error: word(&SK_ERR),
            })
        }
    }

    /// Reads them while the socket is in use; `None` if it is no TCP socket. Nothing is larger than it
    /// will be at the end: sent is what was acknowledged, at most two bytes less, and received at most
    /// one byte less.
    ///
    /// # Safety
    /// `sk` is a socket of a context.
    #[inline(always)]
    pub(crate) unsafe fn settled(sk: *mut c_void) -> Option<Self> {
        // SAFETY: as in `read`.
        unsafe {
            let tcp = bpf_skc_to_tcp_sock(sk);
            if tcp.is_null() {
                return None;
            }
            // SYN and FIN count as a byte each.
            Some(Self {
                sent: field::<u64>(tcp.cast(), &BYTES_ACKED).saturating_sub(2),
                received: field::<u64>(tcp.cast(), &BYTES_RECEIVED).saturating_sub(1),
                retransmitted: field(tcp.cast(), &TOTAL_RETRANS),
                rtt_micros: 0,
                error: 0,
            })
        }
    }
}

/// Reads a field.
///
/// # Safety
/// `from` begins a structure with a `T` there.
#[inline(always)]
unsafe fn field<T>(from: *const u8, offset: &Global<u32>) -> T {
    // SAFETY: the caller's.
    unsafe { from.add(offset.load() as usize).cast::<T>().read_volatile() }
}
