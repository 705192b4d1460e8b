//! Unconnected datagram sockets: very many of them, and many threads with one.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::panic::resume_unwind;
use std::sync::Barrier;
use std::thread;

use topo_lb_tests::traffic::{Answers, Failure, Step, Via};

use crate::exchange::{Open, at};

/// Opens `sockets` one after the other. Each sends two datagrams, and closes.
pub(crate) fn scatter(to: SocketAddr, sockets: u32) -> Result<(), Failure> {
    let any = match to {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    for _ in 0..sockets {
        let socket = UdpSocket::bind(any).map_err(at(Step::Socket))?;
        // There may be no way to the endpoint: the hook of `sendto` runs before the kernel looks.
        let _ = (socket.send_to(b"?", to), socket.send_to(b"?", to));
    }
    Ok(())
}

/// `rounds` times: opens a socket, and has a thread for each address send a request through it, all
/// at the same moment.
pub(crate) fn race(to: &[SocketAddr], rounds: u32) -> Result<Answers, Failure> {
    let mut answers = Answers::new();
    for _ in 0..rounds {
        let open = Open::new(Via::Udp, to[0])?;
        let barrier = Barrier::new(to.len());
        thread::scope(|scope| {
            let send = |&to| {
                scope.spawn({
                    let (open, barrier) = (&open, &barrier);
                    move || {
                        barrier.wait();
                        open.send(to)
                    }
                })
            };
            let threads: Vec<_> = to.iter().map(send).collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            let mut sent = joined.map(|sent| sent.unwrap_or_else(|panic| resume_unwind(panic)));
            sent.try_for_each(|sent| sent)
        })?;
        for _ in to {
            // A network may lose a datagram; the caller sees how many.
            let Ok(reply) = open.receive() else { break };
            *answers.entry(reply.pod).or_default().entry(reply.peer).or_default() += 1;
        }
    }
    Ok(answers)
}
