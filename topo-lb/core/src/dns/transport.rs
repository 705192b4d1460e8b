//! How a query came.

/// How a query came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A datagram.
    Udp,
    /// A message of a stream.
    Tcp,
}
