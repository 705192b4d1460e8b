//! Where this kernel keeps what it counts of a TCP socket.

use std::path::Path;

use aya::EbpfLoader;

use crate::datapath::host::btf::{Btf, BtfError, KERNEL};

/// From `struct tcp_sock` to the structures at its begin.
const CONNECTION: &str = "inet_conn";
const INET: &str = "icsk_inet";
const SOCKET: &str = "sk";

/// The fields that accounting reads: the constants of the programs, and the paths.
const FIELDS: [(&str, &[&str]); 8] = [
    ("SK_FLAGS", &[CONNECTION, INET, SOCKET, "__sk_common", "skc_flags"]),
    ("SK_ERR", &[CONNECTION, INET, SOCKET, "sk_err"]),
    ("BYTES_SENT", &["bytes_sent"]),
    ("BYTES_RETRANS", &["bytes_retrans"]),
    ("BYTES_ACKED", &["bytes_acked"]),
    ("BYTES_RECEIVED", &["bytes_received"]),
    ("TOTAL_RETRANS", &["total_retrans"]),
    ("SRTT_US", &["srtt_us"]),
];

/// The offsets of these fields in `struct tcp_sock`, in bytes. All zero: unknown.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpFields([u32; FIELDS.len()]);

impl TcpFields {
    /// Finds them in the BTF of the running kernel.
    ///
    /// # Errors
    /// It has none, or lacks a field.
    pub fn find() -> Result<Self, BtfError> {
        let btf = Btf::read(Path::new(KERNEL))?;
        let mut offsets = [0; FIELDS.len()];
        for (offset, (_, path)) in offsets.iter_mut().zip(FIELDS) {
            *offset = btf.offset("tcp_sock", path)?;
        }
        Ok(Self(offsets))
    }

    /// Sets them in programs that are not loaded yet.
    pub(crate) fn put<'a>(&'a self, loader: &mut EbpfLoader<'a>) {
        for ((name, _), offset) in FIELDS.iter().zip(&self.0) {
            loader.override_global(name, offset, true);
        }
    }
}
