//! A probe: the agent itself connects to an endpoint whose time is over, or of which nobody else says whether it
//! is alive.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;
use topo_lb_core::ejection::Probed;
use topo_lb_core::ejection::island::{self, Answer};

/// How long an endpoint has for its answer: the kernel has sent a second SYN after one second.
const PATIENCE: Duration = Duration::from_secs(3);

/// Probes an endpoint. If it does not answer, also `fellow`: an endpoint of the Service to which
/// connections go. Takes 6 s at most.
pub(crate) async fn probe(endpoint: SocketAddr, fellow: Option<SocketAddr>) -> Probed {
    if answers(endpoint).await {
        return Probed::Answered;
    }
    match fellow {
        Some(fellow) if answers(fellow).await => Probed::Failed,
        _ => Probed::Unknown,
    }
}

/// Connects to an endpoint once, for a node that is an island.
pub(crate) async fn knock(endpoint: SocketAddr) -> Answer {
    match timeout(island::PATIENCE, TcpStream::connect(endpoint)).await {
        Ok(Ok(_)) => Answer::Accepted,
        Ok(Err(error)) => match error.kind() {
            ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset => Answer::Refused,
            // That no neighbour answers may be for lost packets, too: it does not count more.
            ErrorKind::HostUnreachable | ErrorKind::TimedOut => Answer::Silent,
            // No route, no port, no descriptor, or a rule of this host: the endpoint has no part in that.
            _ => Answer::Unasked,
        },
        Err(_) => Answer::Silent,
    }
}

async fn answers(endpoint: SocketAddr) -> bool {
    matches!(timeout(PATIENCE, TcpStream::connect(endpoint)).await, Ok(Ok(_)))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn an_endpoint_fails_only_if_another_one_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let open = listener.local_addr().expect("bound");
        // Nobody listens at the port while this socket has it.
        let taken = tokio::net::TcpSocket::new_v4().expect("a socket");
        taken.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let closed = taken.local_addr().expect("bound");
        assert_eq!(probe(open, None).await, Probed::Answered);
        assert_eq!(probe(closed, Some(open)).await, Probed::Failed);
        assert_eq!(probe(closed, Some(closed)).await, Probed::Unknown);
        assert_eq!(probe(closed, None).await, Probed::Unknown);
        assert_eq!([knock(open).await, knock(closed).await], [Answer::Accepted, Answer::Refused]);
        // A host cannot connect to a network's broadcast.
        let nobody = "255.255.255.255:80".parse().expect("an address");
        assert_eq!(knock(nobody).await, Answer::Unasked);
    }
}
