use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::*;
use crate::metrics::Figures;
use crate::readiness::{Readiness, SelfProbe};
use crate::state_query::{Question, Questions, View, state_query};
use topo_lb_core::cluster::{ServiceId, State};
use topo_lb_core::flag::LISTEN;
use topo_lb_core::plan::{Lack, Meanwhile, Shortage};
use topo_lb_core::topology::Scope;
use topo_lb_core::topology::exposed::Exposing;
use topo_lb_kube::source::file;

const CLUSTER: &str = "---
{apiVersion: v1, kind: Node, metadata: {name: here}}
---
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: api}, spec: {clusterIP: 10.96.0.2, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: crowded}, spec: {clusterIP: 10.96.0.3, ports: [{port: 80}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: crowded-1, labels: {kubernetes.io/service-name: crowded}}
addressType: IPv4
ports: [{name: '', port: 80}]
endpoints: [{addresses: [10.1.1.1]}]
";

fn unprogrammed() -> BTreeMap<ServiceId, Lack> {
    let id = ServiceId { namespace: "default".into(), name: "crowded".into() };
    BTreeMap::from([(id, Lack { of: Shortage::Services, meanwhile: Meanwhile::KubeProxy })])
}

/// An owner that knows [`CLUSTER`] and answers. Counts scrapes: each asks once for reasons.
async fn own(mut questions: Questions, scrapes: Arc<AtomicUsize>) {
    let mut state = State::default();
    let listing = file::parse("cluster".as_ref(), CLUSTER.as_bytes()).unwrap();
    for update in listing.updates {
        let _ = state.apply(update, "here");
    }
    let state = Arc::new(state);
    while let Some(question) = questions.recv().await {
        match question {
            Question::View(to) => {
                let (unprogrammed, devices) = (unprogrammed(), Vec::new());
                let exposing = Exposing::default();
                let view = View {
                    state: Arc::clone(&state),
                    unprogrammed,
                    exposing,
                    devices,
                    frontends: 2,
                };
                let _ = to.send(view);
            }
            Question::Refused(_) => {}
            Question::Reasons(to) => {
                scrapes.fetch_add(1, Ordering::Relaxed);
                drop(to.send(BTreeMap::new()));
            }
        }
    }
}

struct Served {
    address: std::net::SocketAddr,
    readiness: watch::Sender<Readiness>,
}

async fn served() -> Served {
    served_at(PATHS).await
}

/// The shared state, its readiness, and the number of scrapes.
fn admin() -> (Arc<Admin>, watch::Sender<Readiness>, Arc<AtomicUsize>) {
    let (state_query, questions) = state_query();
    let scrapes = Arc::<AtomicUsize>::default();
    tokio::spawn(own(questions, Arc::clone(&scrapes)));
    let (readiness, receiver) = watch::channel(Readiness {
        self_probe: SelfProbe::Passed,
        listed: true,
        programmed: true,
        ..Readiness::default()
    });
    let figures = Arc::<Figures>::default();
    figures.beat();
    let admin = Admin::new(
        Sources {
            observed: None,
            node: "here".into(),
            scope: Scope::All,
            pin_dir: "/no/such/pins".into(),
            figures,
            readiness: receiver,
            state_query,
        },
        500,
    );
    (Arc::new(admin), readiness, scrapes)
}

async fn served_at(paths: &'static [&str]) -> Served {
    let (admin, readiness, _) = admin();
    let router = router(&admin, paths);
    let listener = listen::bind(([127, 0, 0, 1], 0).into(), LISTEN).await;
    let address = listener.local_addr().unwrap();
    tokio::spawn(door::serve(listener, router, door::Rooms::new(64)));
    Served { address, readiness }
}

impl Served {
    /// Status, head and body of an answer.
    async fn ask(&self, method: &str, path: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!("{method} {path} HTTP/1.0\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_owned(), body.to_owned())
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let (status, _, body) = self.ask("GET", path).await;
        (status, body)
    }
}

#[tokio::test]
async fn bad_requests_get_a_sentence() {
    let served = served().await;
    for (path, status, words) in [
        ("/explain?service=web", 400, "write it as NAMESPACE/NAME"),
        ("/explain?service=a/b/c", 400, "is not a Service"),
        ("/explain?pod=default/web", 400, "\"pod\" is no parameter"),
        ("/explain?service=default/web&service=default/api", 400, "once"),
        ("/explain?output=table", 400, "takes service="),
        ("/explain?service=default/web&output=yaml", 400, "\"yaml\" is no output"),
        ("/explain?service=default%2Fnobody", 404, "there is no Service default/nobody"),
        ("/readyz?loud", 400, "?verbose"),
        ("/state?x=1", 400, "no parameters"),
        ("/", 404, "/metrics, /healthz, /livez, /readyz, /explain, /peers, /state"),
        ("/debug/pprof", 404, "there is no \"/debug/pprof\""),
    ] {
        let (got, body) = served.get(path).await;
        assert_eq!(got, status, "{path}: {body}");
        assert!(body.contains(words), "{path}: {body}");
        assert_eq!(body.lines().count(), 1, "{path}: {body}");
    }
    let (status, _, body) = served.ask("POST", "/state").await;
    assert_eq!((status, &*body), (405, "nothing can be changed over HTTP: use GET\n"));
}

#[tokio::test]
async fn all_services_are_explained_as_one_is() {
    let served = served().await;
    let (status, head, all) = served.ask("GET", "/explain").await;
    assert_eq!(status, 200, "{all}");
    assert!(head.contains("content-type: application/json"), "{head}");
    let all: serde_json::Value = serde_json::from_str(&all).unwrap();
    let names: Vec<_> =
        all["services"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(
        (&all["node"], names.as_slice()),
        (&"here".into(), &[&"api".into(), &"crowded".into(), &"web".into()][..])
    );
    let (status, one) = served.get("/explain?service=default%2Fweb").await;
    let one: serde_json::Value = serde_json::from_str(&one).unwrap();
    assert_eq!((status, &one["services"][0]), (200, &all["services"][2]));
    let (status, table) = served.get("/explain?service=default%2Fweb&output=table").await;
    assert_eq!(status, 200, "{table}");
    assert!(table.contains("default/web"), "{table}");
}

#[tokio::test]
async fn a_service_without_room_is_explained_by_what_its_connections_do() {
    let served = served().await;
    let (_, all) = served.get("/explain").await;
    let all: serde_json::Value = serde_json::from_str(&all).unwrap();
    let (_, one) = served.get("/explain?service=default%2Fcrowded").await;
    let one: serde_json::Value = serde_json::from_str(&one).unwrap();
    for crowded in [&all["services"][1], &one["services"][0]] {
        assert_eq!(crowded["decision"]["verdict"], "bypass", "{crowded}");
        let reason = crowded["decision"]["reason"].as_str().unwrap();
        assert!(reason.contains("left to kube-proxy, whole: start the agent with"), "{reason}");
        assert_eq!(crowded["endpoints"][0]["selected"], false);
    }
}

#[tokio::test]
async fn what_is_not_known_yet_is_not_explained() {
    let served = served().await;
    served.readiness.send_modify(|readiness| readiness.listed = false);
    let (status, body) = served.get("/explain").await;
    assert_eq!(status, 503, "{body}");
    assert!(body.contains("not all listed"), "{body}");
    let (status, body) = served.get("/readyz?verbose").await;
    assert_eq!(status, 503, "{body}");
    assert!(body.contains("[-] synced: ") && body.contains("[+] hooks: "), "{body}");
    let (status, state) = served.get("/state").await;
    assert_eq!(status, 200);
    let state: serde_json::Value = serde_json::from_str(&state).unwrap();
    assert_eq!(state["ready"], false);
    assert_eq!(state["leftOut"], serde_json::json!([]));
    assert_eq!(served.get("/livez").await, (200, "ok\n".to_owned()));
}

#[tokio::test]
async fn metrics_are_there_before_there_are_maps() {
    let served = served().await;
    let (status, head, text) = served.ask("GET", "/metrics").await;
    assert_eq!(status, 200, "{text}");
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(text.contains("\ntopo_lb_ready 1\n") && text.ends_with("# EOF\n"), "{text}");
}

#[tokio::test]
async fn a_listener_for_metrics_or_probes_serves_nothing_else() {
    for (paths, others) in [(METRICS, "/explain"), (METRICS, "/livez"), (PROBES, "/metrics")] {
        let served = served_at(paths).await;
        for path in paths {
            assert_eq!(served.get(path).await.0, 200, "{path}");
        }
        let (status, body) = served.get(others).await;
        assert_eq!(status, 404, "{others}: {body}");
        assert!(body.contains(&paths.join(", ")), "{body}");
    }
}

#[tokio::test]
async fn a_crowd_that_waits_for_a_scrape_shares_the_next_one() {
    let (admin, _readiness, scrapes) = admin();
    let scrape = || Box::pin(answers::metrics(axum::extract::State(Arc::clone(&admin))));
    // One scrape is running while all others arrive.
    let goes_on = admin.scraped.lock().await;
    let mut crowd: Vec<_> = (0..32).map(|_| scrape()).collect();
    for one in &mut crowd {
        assert!(one.now_or_never().is_none());
    }
    drop(goes_on);
    for response in futures::future::join_all(crowd).await {
        assert_eq!(response.status(), StatusCode::OK);
    }
    assert_eq!(scrapes.load(Ordering::Relaxed), 1);
    // A later request gets a new scrape.
    scrape().await;
    assert_eq!(scrapes.load(Ordering::Relaxed), 2);
}

#[test]
fn most_descriptors_are_for_the_rest_of_the_agent() {
    assert_eq!(waiting(None), 2048);
    assert_eq!(waiting(Some(1 << 20)), 2048);
    assert_eq!(waiting(Some(1024)), 128);
    assert_eq!(waiting(Some(0)), 8);
}
