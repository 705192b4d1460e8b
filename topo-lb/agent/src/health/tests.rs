//! Real requests to real sockets; the steps of `TestServer`, `TestHealthzServer` and `TestLivezServer` of
//! pkg/proxy/healthcheck/healthcheck_test.go.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::*;
use crate::{serve::door, serve::listen};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const SOON: Duration = Duration::from_secs(20);

struct Served {
    wanted: watch::Sender<Wanted>,
    readiness: watch::Sender<Readiness>,
    leaving: watch::Sender<bool>,
    proxy: Arc<Proxy>,
    figures: Arc<Figures>,
}

/// Serves no Service yet, with at most this many listeners.
fn served(most: usize) -> Served {
    let programmed = Readiness { programmed: true, ..Readiness::default() };
    let (readiness, ready) = watch::channel(programmed);
    let (leaving, leaves) = watch::channel(false);
    let (wanted, receiver) = watch::channel(Wanted::default());
    let figures = Arc::<Figures>::default();
    figures.beat();
    let publisher = EventPublisher::silent(Arc::clone(&figures));
    let proxy = Arc::new(Proxy::new(Arc::clone(&figures), ready, false, leaves, receiver.clone()));
    let common = Common {
        node: "here".into(),
        proxy: Arc::clone(&proxy),
        rooms: Rooms::new(8),
        figures: Arc::clone(&figures),
        publisher,
    };
    tokio::spawn(Servers::new(common, most).follow(receiver));
    Served { wanted, readiness, leaving, proxy, figures }
}

impl Served {
    /// These Services with their ports and local endpoints, and no others.
    fn set(&self, services: &[(&str, u16, usize)]) {
        let checks = services.iter().map(|&(name, port, local)| {
            let id = ServiceId { namespace: "a".into(), name: name.into() };
            (id, Check { port, local, uid: None })
        });
        self.wanted.send_replace(Wanted {
            checks: checks.collect(),
            addresses: vec![HERE],
            is_left: false,
        });
    }
}

/// So many free ports.
fn ports<const N: usize>() -> [u16; N] {
    let held = [(); N].map(|()| TcpListener::bind((HERE, 0)).expect("a free port"));
    held.map(|one| one.local_addr().expect("its address").port())
}

/// The answer: status, lines of the head, body.
async fn ask(port: u16, path: &str) -> std::io::Result<(u16, Vec<String>, Value)> {
    let mut stream = TcpStream::connect((HERE, port)).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    let (head, body) = text.split_once("\r\n\r\n").expect("a whole answer");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let body = serde_json::from_str(body).unwrap_or_default();
    Ok((status, head.lines().map(str::to_lowercase).collect(), body))
}

/// Asks until a server is there and answers so.
async fn expect(port: u16, name: &str, status: u16, local: usize, healthy: bool) {
    let wanted = serde_json::json!({
        "service": {"namespace": "a", "name": name},
        "localEndpoints": local,
        "serviceProxyHealthy": healthy,
    });
    let mut last = None;
    let asked = timeout(SOON, async {
        loop {
            if let Ok((got, head, body)) = ask(port, "/any/path?at=all").await {
                if (got, &body) == (status, &wanted) {
                    return head;
                }
                last = Some((got, body));
            }
            sleep(Duration::from_millis(10)).await;
        }
    });
    let head = asked.await.unwrap_or_else(|_| panic!("{name} answers {last:?}"));
    let weight = format!("x-load-balancing-endpoint-weight: {local}");
    for line in ["content-type: application/json", "x-content-type-options: nosniff", &*weight] {
        assert!(head.iter().any(|one| one == line), "{line}: {head:?}");
    }
}

async fn expect_closed(port: u16) {
    let closed = async {
        while TcpStream::connect((HERE, port)).await.is_ok() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, closed).await.unwrap_or_else(|_| panic!("port {port} is open"));
}

#[tokio::test]
async fn servers_follow_services_and_endpoints() {
    let served = served(64);
    let [one, two, three, three_later, four] = ports();
    served.set(&[("b", one, 0)]);
    expect(one, "b", 503, 0, true).await;
    served.set(&[("b", one, 18)]);
    expect(one, "b", 200, 18, true).await;
    served.set(&[("b", one, 0)]);
    expect(one, "b", 503, 0, true).await;
    served.set(&[]);
    expect_closed(one).await;
    served.set(&[("b", one, 9), ("d", two, 3), ("f", three, 7)]);
    expect(one, "b", 200, 9, true).await;
    expect(two, "d", 200, 3, true).await;
    expect(three, "f", 200, 7, true).await;
    served.set(&[("d", two, 3), ("f", three_later, 7), ("h", four, 6)]);
    expect_closed(one).await;
    expect_closed(three).await;
    expect(two, "d", 200, 3, true).await;
    expect(three_later, "f", 200, 7, true).await;
    expect(four, "h", 200, 6, true).await;
    served.readiness.send_modify(|readiness| readiness.programmed = false);
    expect(two, "d", 503, 3, false).await;
    served.readiness.send_modify(|readiness| readiness.programmed = true);
    expect(two, "d", 200, 3, true).await;
}

#[tokio::test]
async fn a_port_that_moves_to_another_service_is_never_busy() {
    let served = served(64);
    let [port] = ports();
    for (name, local) in [("b", 1), ("d", 2), ("b", 3)] {
        served.set(&[(name, port, local)]);
        let begun = std::time::Instant::now();
        expect(port, name, 200, local, true).await;
        assert!(begun.elapsed() < listen::PAUSE, "{name} waited for a retry");
    }
}

#[tokio::test]
async fn a_busy_port_is_taken_when_it_is_free_and_others_are_answered_meanwhile() {
    let served = served(64);
    let [other] = ports();
    let busy = TcpListener::bind((HERE, 0)).expect("a port");
    let port = busy.local_addr().expect("its address").port();
    served.set(&[("b", port, 1), ("d", other, 2)]);
    expect(other, "d", 200, 2, true).await;
    let unanswered = || served.figures.unanswered_health_checks[0].load(Relaxed);
    assert_eq!(unanswered(), 1);
    drop(busy);
    expect(port, "b", 200, 1, true).await;
    // A listener answers before it is counted.
    let counted = async {
        while unanswered() != 0 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(5), counted).await.expect("it still counts as unanswered");
}

#[tokio::test]
async fn silent_clients_of_one_service_keep_nobody_waiting() {
    let served = served(64);
    let [crowded, other] = ports();
    served.set(&[("b", crowded, 1), ("d", other, 2)]);
    expect(crowded, "b", 200, 1, true).await;
    let mut silent = Vec::new();
    for _ in 0..64 {
        silent.push(TcpStream::connect((HERE, crowded)).await.expect("it listens"));
    }
    let begun = std::time::Instant::now();
    expect(other, "d", 200, 2, true).await;
    expect(crowded, "b", 200, 1, true).await;
    assert!(begun.elapsed() < Duration::from_secs(4), "it waited for the silent ones to give up");
}

#[tokio::test]
async fn services_beyond_the_limit_get_no_listener() {
    let served = served(2);
    let [one, two, three] = ports();
    served.set(&[("b", one, 1), ("d", two, 1), ("f", three, 1)]);
    expect(one, "b", 200, 1, true).await;
    expect(two, "d", 200, 1, true).await;
    assert!(ask(three, "/").await.is_err(), "it has a listener");
    served.set(&[("b", one, 1), ("f", three, 1)]);
    expect(three, "f", 200, 1, true).await;
}

#[tokio::test]
async fn a_node_that_leaves_is_alive_but_not_healthy() {
    let served = served(64);
    let listener = listen::listen(SocketAddr::new(HERE, 0)).expect("a port");
    let port = listener.local_addr().expect("its address").port();
    tokio::spawn(door::serve(listener, servers::of_node(&served.proxy), Rooms::new(8)));
    for (leaving, is_left, programmed, healthz, livez) in [
        (false, false, true, 200, 200),
        (true, false, true, 503, 200),
        (false, true, true, 503, 200),
        (false, false, true, 200, 200),
        (false, false, false, 503, 503),
        (true, true, false, 503, 503),
    ] {
        let leaves = leaving || is_left;
        served.leaving.send_replace(leaving);
        served.wanted.send_modify(|wanted| wanted.is_left = is_left);
        served.readiness.send_modify(|readiness| readiness.programmed = programmed);
        let (status, _, body) = ask(port, "/healthz").await.expect("an answer");
        assert_eq!((status, &body["nodeEligible"]), (healthz, &Value::Bool(!leaves)), "{body}");
        let (status, head, body) = ask(port, "/livez").await.expect("an answer");
        assert_eq!(status, livez, "{body}");
        assert_eq!(body.get("nodeEligible"), None, "{body}");
        assert!(head.iter().any(|line| line == "x-content-type-options: nosniff"), "{head:?}");
        assert_eq!(body["healthy"], Value::Bool(programmed), "{body}");
        assert_eq!(body["lastUpdated"] == body["currentTime"], livez == 200, "{body}");
    }
    assert_eq!(ask(port, "/").await.expect("an answer").0, 404);
}
