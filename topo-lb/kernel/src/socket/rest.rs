//! Whether a TCP connection is at rest, so that its end loses nothing: pure, but for [`Activity::of`].
//!
//! A connection with an unanswered request is as silent as one in a pool. What tells them apart is who spoke
//! last: in a pool, the server has.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Duration;

use rustix::io::ioctl_fionread;

use crate::netlink::head;

/// `TCP_ESTABLISHED`
const ESTABLISHED: u8 = 1;

/// The beginning of `struct tcp_info` (include/uapi/linux/tcp.h), up to what Linux 4.6 has added.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct TcpInfo {
    state: u8,
    others: [u8; 7],
    timers_and_sizes: [u32; 4],
    /// Segments that the peer has not acknowledged.
    unacked: u32,
    losses: [u32; 4],
    /// Milliseconds since the last data were sent.
    sent: u32,
    ack_sent: u32,
    /// Milliseconds since the last data were received.
    received: u32,
    /// Milliseconds since the last acknowledgement was received.
    acked: u32,
    estimates: [u32; 11],
    rates: [u64; 2],
    /// Bytes that the peer has acknowledged.
    bytes_acked: u64,
    /// Bytes that were received in order.
    bytes_received: u64,
    segments: [u32; 2],
    /// Bytes that wait to be sent.
    unsent: u32,
    least_rtt: u32,
    data: Said,
}

/// Segments with data that were received, and sent: while they are the same, nobody speaks.
pub(super) type Said = [u32; 2];

/// What a TCP connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Activity {
    info: TcpInfo,
    /// Bytes that the application has not read.
    unread: u32,
}

impl Activity {
    /// As sock_diag shows it: the size of the receive queue, and `INET_DIAG_INFO`. `None` if that is too short.
    pub(super) fn shown(unread: u32, info: &[u8]) -> Option<Self> {
        Some(Self { info: head(info)?, unread })
    }

    /// Of an open socket, now.
    pub(super) fn of(socket: &OwnedFd) -> io::Result<Self> {
        let mut info = TcpInfo::default();
        let mut length = size_of::<TcpInfo>() as libc::socklen_t;
        // SAFETY: the socket is open, and the kernel writes at most `length` bytes to `info`, which has so many
        // and may hold any bits.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut length,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        if (length as usize) < size_of::<TcpInfo>() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Self { info, unread: u32::try_from(ioctl_fionread(socket)?).unwrap_or(u32::MAX) })
    }

    /// Whether nothing is on its way, nothing waits, nobody has spoken for so long, and nobody waits for an answer.
    /// `before`: what an earlier look has [`heard`](Self::heard).
    pub(super) fn is_at_rest(&self, silence: Duration, before: Option<Said>) -> bool {
        let TcpInfo { state, unacked, unsent, sent, received, .. } = self.info;
        let is_silent =
            [sent, received].into_iter().all(|it| Duration::from_millis(it.into()) >= silence);
        let has_nothing = unacked == 0 && unsent == 0 && self.unread == 0;
        state == ESTABLISHED && is_silent && has_nothing && self.heard(before).is_some()
    }

    /// What was said until now, if the peer has spoken last. It has if it had by an earlier look, and nobody has spoken
    /// since: keepalive probes hide it.
    pub(super) fn heard(&self, before: Option<Said>) -> Option<Said> {
        let said = self.info.data;
        (self.peer_spoke_last() || before == Some(said)).then_some(said)
    }

    /// How many bytes it has moved in both directions. The kernel counts a SYN, too.
    pub(super) const fn moved(&self) -> u64 {
        (self.info.bytes_acked + self.info.bytes_received).saturating_sub(1)
    }

    /// Whether the peer has sent the last data, or nobody any.
    ///
    /// The kernel counts in ticks of 1 to 10 ms. If both have spoken in one tick, a later acknowledgement is, as
    /// a rule, that of a request: an answer brings the acknowledgement of its request with it.
    const fn peer_spoke_last(&self) -> bool {
        let TcpInfo { sent, received, acked, data, .. } = self.info;
        // Of a peer that has said nothing, `received` is the time of its SYN-ACK.
        match data {
            [0, sent_any] => sent_any == 0,
            _ => received < sent || received == sent && acked >= received,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    const SILENCE: Duration = Duration::from_secs(5);

    const AT_REST: TcpInfo = TcpInfo {
        state: ESTABLISHED,
        others: [0; 7],
        timers_and_sizes: [0; 4],
        unacked: 0,
        losses: [0; 4],
        sent: 9_010,
        ack_sent: 0,
        received: 9_000,
        acked: 9_000,
        estimates: [0; 11],
        rates: [0; 2],
        bytes_acked: 0,
        bytes_received: 0,
        segments: [9; 2],
        unsent: 0,
        least_rtt: 0,
        data: [1; 2],
    };

    #[test]
    fn only_what_is_silent_after_the_peers_last_word_is_at_rest() {
        let new = TcpInfo { data: [0; 2], sent: 9_000, received: 9_000, acked: 9_000, ..AT_REST };
        let tick = TcpInfo { sent: 9_000, received: 9_000, acked: 9_000, ..AT_REST };
        for (what, info, unread, at_rest) in [
            ("a pool's", AT_REST, 0, true),
            ("a new one", new, 0, true),
            ("a new one that keepalive probes keep", TcpInfo { acked: 0, ..new }, 0, true),
            ("a pool's, kept by probes", TcpInfo { acked: 10, ..AT_REST }, 0, true),
            ("an exchange within a tick", tick, 0, true),
            (
                "the next request in the tick of the answer",
                TcpInfo { acked: 8_960, ..tick },
                0,
                false,
            ),
            ("a request without an answer", TcpInfo { sent: 8_000, ..AT_REST }, 0, false),
            ("only requests", TcpInfo { data: [0, 1], sent: 8_000, ..AT_REST }, 0, false),
            ("a request in the tick of the connect", TcpInfo { data: [0, 1], ..tick }, 0, false),
            ("it has just received", TcpInfo { received: 4_999, ..AT_REST }, 0, false),
            ("it has just sent", TcpInfo { sent: 4_999, received: 4_000, ..AT_REST }, 0, false),
            ("data in flight", TcpInfo { unacked: 1, ..AT_REST }, 0, false),
            ("data to send", TcpInfo { unsent: 1, ..AT_REST }, 0, false),
            ("data to read", AT_REST, 1, false),
            ("half closed", TcpInfo { state: 8, ..AT_REST }, 0, false),
        ] {
            assert_eq!(Activity { info, unread }.is_at_rest(SILENCE, None), at_rest, "{what}");
        }
    }

    /// As of Go's `net/http`, which probes every 15 s.
    #[test]
    fn who_spoke_last_is_known_from_before_the_probes_until_somebody_speaks() {
        let of = |info| Activity { info, unread: 0 };
        let tick = TcpInfo { sent: 2_000, received: 2_000, acked: 2_000, ..AT_REST };
        let heard = of(tick).heard(None);
        assert_eq!(heard, Some([1, 1]));
        let probed = TcpInfo { sent: 62_000, received: 62_000, acked: 10, ..AT_REST };
        assert!(!of(probed).is_at_rest(SILENCE, None));
        assert!(of(probed).is_at_rest(SILENCE, heard));
        assert_eq!(of(probed).heard(heard), heard, "also at the next look");
        let asked = TcpInfo { data: [1, 2], ..probed };
        assert!(!of(asked).is_at_rest(SILENCE, heard));
        assert_eq!(of(asked).heard(heard), None);
    }

    #[test]
    fn a_kernel_that_tells_less_is_not_understood() {
        let all = bytemuck::bytes_of(&AT_REST);
        assert_eq!(all.len(), 160);
        assert_eq!(Activity::shown(0, all), Some(Activity { info: AT_REST, unread: 0 }));
        assert_eq!(Activity::shown(0, &all[..159]), None);
    }

    /// The kernel's fields are where they are taken to be.
    #[test]
    fn a_real_connection_shows_who_spoke_and_what_is_unread() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let twin = |stream: &TcpStream| OwnedFd::from(stream.try_clone().unwrap());
        let of = |stream: &TcpStream| Activity::of(&twin(stream)).unwrap();
        let fresh = of(&client);
        assert_eq!((fresh.info.state, fresh.info.data, fresh.unread), (ESTABLISHED, [0, 0], 0));
        client.write_all(b"who?").unwrap();
        server.read_exact(&mut [0; 4]).unwrap();
        // Longer than a tick, so that the order shows.
        std::thread::sleep(Duration::from_millis(25));
        server.write_all(b"me!").unwrap();
        client.peek(&mut [0; 3]).unwrap();
        let answered = of(&client);
        assert_eq!((answered.info.data, answered.unread), ([1, 1], 3));
        assert!(answered.info.received < answered.info.sent && answered.peer_spoke_last());
        client.read_exact(&mut [0; 3]).unwrap();
        assert_eq!((of(&client).unread, of(&client).moved()), (0, 7));
        std::thread::sleep(Duration::from_millis(25));
        client.write_all(b"and now?").unwrap();
        server.read_exact(&mut [0; 8]).unwrap();
        assert!(!of(&client).peer_spoke_last());
        assert!(of(&server).peer_spoke_last());
    }
}
