use axum::routing::get;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::*;

/// A listener; the test sends its connections.
struct FakeListener(mpsc::UnboundedReceiver<io::Result<(DuplexStream, Peer)>>, Arc<Mutex<usize>>);

impl Accept for FakeListener {
    type Stream = DuplexStream;

    async fn accept(&mut self) -> io::Result<(DuplexStream, Peer)> {
        *self.1.lock().unwrap() += 1;
        match self.0.recv().await {
            Some(come) => come,
            None => std::future::pending().await,
        }
    }
}

struct Gate {
    sender: mpsc::UnboundedSender<io::Result<(DuplexStream, Peer)>>,
    asked: Arc<Mutex<usize>>,
}

const BIG: usize = 1 << 20;

/// Serves with this many places for waiting connections.
fn open(waiting: usize) -> Gate {
    let (sender, receiver) = mpsc::unbounded_channel();
    let asked = Arc::new(Mutex::new(0));
    let router =
        Router::new().route("/", get(async || "ok")).route("/big", get(async || vec![b'x'; BIG]));
    tokio::spawn(serve(FakeListener(receiver, Arc::clone(&asked)), router, Rooms::new(waiting)));
    Gate { sender, asked }
}

impl Gate {
    /// A connection from `10.0.0.<peer>`.
    fn connect(&self, peer: u8) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(4096);
        let peer = Peer::from(std::net::IpAddr::from([10, 0, 0, peer]));
        self.sender.send(Ok((theirs, peer))).unwrap();
        ours
    }

    async fn get(&self, peer: u8) -> String {
        asked(self.connect(peer), "/").await
    }
}

async fn asked(mut stream: DuplexStream, path: &str) -> String {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).await.unwrap();
    rest(&mut stream).await
}

/// What arrives until the other side closes.
async fn rest(stream: &mut DuplexStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test(start_paused = true)]
async fn those_who_say_nothing_make_way_at_once_and_are_closed_in_time() {
    let gate = open(8);
    let began = Instant::now();
    let mut crowd: Vec<_> = (0..100).map(|_| gate.connect(1)).collect();
    for peer in [1, 2] {
        let text = gate.get(peer).await;
        assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("ok"), "{text}");
    }
    assert!(began.elapsed() < Duration::from_millis(10), "{:?}", began.elapsed());
    // The oldest were closed at once, the last ones at the deadline; none sent a byte.
    assert_eq!(rest(&mut crowd[0]).await, "");
    assert!(began.elapsed() < Duration::from_millis(10), "{:?}", began.elapsed());
    assert_eq!(rest(&mut crowd[99]).await, "");
    assert!((HEAD..=2 * HEAD).contains(&began.elapsed()), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn those_who_came_at_once_are_not_closed_at_once() {
    let gate = open(1024);
    let began = Instant::now();
    let crowd = futures::future::join_all((0..256).map(|_| {
        let mut stream = gate.connect(1);
        async move {
            rest(&mut stream).await;
            began.elapsed().as_millis() / 100
        }
    }))
    .await;
    let together =
        crowd.iter().map(|then| crowd.iter().filter(|other| *other == then).count()).max();
    assert!(together.is_some_and(|together| together <= 8), "{crowd:?}");
}

#[tokio::test(start_paused = true)]
async fn a_byte_now_and_then_does_not_put_the_deadline_off() {
    let gate = open(8);
    let began = Instant::now();
    let mut slow = gate.connect(1);
    let mut sent = 0;
    while slow.write_all(b"G").await.is_ok() && began.elapsed() < 10 * HEAD {
        sent += 1;
        sleep(Duration::from_secs(1)).await;
    }
    assert!((5..=8).contains(&sent), "{sent} bytes were taken");
    let text = rest(&mut slow).await;
    assert!(text.starts_with("HTTP/1.1 408") && text.contains("within 5 s"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn who_never_reads_an_answer_is_left_and_keeps_nobody_out() {
    let gate = open(8);
    let mut crowd = Vec::new();
    for _ in 0..2 * ANSWERING {
        let mut stream = gate.connect(1);
        stream.write_all(b"GET /big HTTP/1.0\r\n\r\n").await.unwrap();
        crowd.push(stream);
    }
    for peer in [1, 2] {
        assert!(gate.get(peer).await.ends_with("ok"));
    }
    let began = Instant::now();
    sleep(ANSWER).await;
    let text = rest(crowd.last_mut().unwrap()).await;
    assert!(text.len() < BIG, "{} bytes were kept for it", text.len());
    assert!(began.elapsed() < ANSWER + HEAD, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_giant_head_gets_a_sentence() {
    let gate = open(8);
    let (mut reader, mut writer) = tokio::io::split(gate.connect(1));
    let head = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(2 * LONGEST));
    let writing = tokio::spawn(async move {
        // The server may not read it all.
        let _ = writer.write_all(head.as_bytes()).await;
    });
    let mut text = String::new();
    reader.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 431") && text.contains("8192 bytes"), "{text}");
    writing.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_first_of_several_requests_is_answered_and_the_connection_closed() {
    let gate = open(8);
    let mut stream = gate.connect(1);
    let request = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    stream.write_all(request.repeat(16).as_bytes()).await.unwrap();
    let text = rest(&mut stream).await;
    assert_eq!(text.matches("HTTP/1.1 200").count(), 1, "{text}");
    assert!(text.contains("connection: close") && text.ends_with("ok"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn without_descriptors_those_who_wait_make_way_and_nothing_spins() {
    let gate = open(8);
    let mut waits = gate.connect(1);
    let exhausted = || Err(Errno::MFILE.into());
    gate.sender.send(exhausted()).unwrap();
    let began = Instant::now();
    assert_eq!(rest(&mut waits).await, "", "it has made way");
    assert!(began.elapsed() < HEAD, "{:?}", began.elapsed());
    // No connection waits any more, and there are still no descriptors.
    for _ in 0..100 {
        gate.sender.send(exhausted()).unwrap();
    }
    sleep(Duration::from_secs(1)).await;
    let asked = *gate.asked.lock().unwrap();
    assert!(asked <= 60, "the host was asked {asked} times in a second");
    sleep(Duration::from_secs(2)).await;
    assert!(gate.get(1).await.ends_with("ok"));
}
