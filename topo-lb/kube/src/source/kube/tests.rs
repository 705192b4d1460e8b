use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use axum::http::{StatusCode, Uri};
use futures::{Stream, StreamExt};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use topo_lb_fake_api::{CLUSTER_POLICIES, NODES, OLD_SLICES, SERVICES, SLICES};

use super::connect::connect_with;
use super::fake::{Fake, PATIENT, TIMING};
use super::reflect::{self, Query};
use super::timing::Timing;
use super::{KubeTarget, Nodes, Server, connect, read};
use crate::source::Event;
use crate::source::object::Kind;
use topo_lb_core::cluster::Freshness;
use topo_lb_core::cluster::{Change, KnownNodes, Service, TopologyPolicy, Update};

const ALL: [&str; 3] = [NODES, SERVICES, SLICES];
const PATIENCE: Duration = Duration::from_secs(30);

fn node(name: &str, pool: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"pool": pool}, "managedFields": [{}]}})
}

fn service(name: &str, port: u32) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"},
           "spec": {"clusterIP": "10.96.0.5", "ports": [{"port": port}], "topologyKeys": ["*"]}})
}

fn slice(name: &str, address: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}, "addressType": "IPv4",
           "endpoints": [{"addresses": ["10.1.1.1"]}, {"addresses": [address]}]})
}

type Events = Pin<Box<dyn Stream<Item = Event> + Send>>;

/// Follows all objects, including all Nodes.
fn follow(server: Server) -> Events {
    let (_, wanted) = watch::channel(KnownNodes::All);
    Box::pin(super::follow(server, Nodes::new("n1".into(), wanted)))
}

/// A server with the default resources and the Service `web`, and a stream after its first events.
async fn listed(timing: Timing) -> (Fake, Events) {
    let fake = Fake::new(&ALL).await;
    fake.change(SERVICES, "ADDED", service("web", 80));
    let mut events = follow(fake.connect(timing).await);
    some(&mut events, 4).await;
    (fake, events)
}

/// A server with the Nodes `n1` and `n2`, and the stream of `n1`, which wants only its own.
async fn two_nodes() -> (Fake, watch::Sender<KnownNodes>, Events) {
    let fake = Fake::new(&ALL).await;
    fake.change(NODES, "ADDED", node("n1", "beijing"));
    fake.change(NODES, "ADDED", node("n2", "hangzhou"));
    let (wanted, nodes) = watch::channel(KnownNodes::Own);
    let events = super::follow(fake.server.clone(), Nodes::new("n1".into(), nodes));
    (fake, wanted, Box::pin(events))
}

async fn soon(events: &mut Events) -> Event {
    timeout(PATIENCE, events.next()).await.expect("nothing came").expect("it never ends")
}

/// Looks again soon for a kind that the server does not have.
const SHORT: Timing = Timing { absent: Duration::from_millis(300), ..PATIENT };

fn policy(name: &str, key: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"topologyKeys": [key]}})
}

/// The next change of ClusterTopologyPolicies: the names of all in a listing, or the name of one with its keys.
async fn next_policy(events: &mut Events) -> String {
    loop {
        match soon(events).await {
            Event::Update(Update::ClusterTopologyPolicy(Change::Applied(policy))) => {
                let TopologyPolicy { id, policy, .. } = &policy.0;
                return format!("{} {}", id.name, policy.spec_topology_keys.join(","));
            }
            Event::Update(Update::ClusterTopologyPolicy(Change::Listed(all, named))) => {
                assert!(all.is_empty());
                let names: Vec<_> = named.iter().map(|id| &*id.name).collect();
                return format!("all: {}", names.join(" "));
            }
            Event::Trouble(trouble) => return trouble,
            Event::Kept(kind, is_so) => return format!("kept {kind}: {is_so}"),
            _ => {}
        }
    }
}

#[tokio::test]
async fn policies_are_followed_and_outlive_their_kind() {
    let fake = Fake::new(&[NODES, SERVICES, SLICES, CLUSTER_POLICIES]).await;
    fake.change(CLUSTER_POLICIES, "ADDED", policy("a", "zone"));
    fake.change(CLUSTER_POLICIES, "ADDED", policy("b", "*"));
    let mut events = follow(fake.connect(SHORT).await);
    assert_eq!(next_policy(&mut events).await, "a zone");
    assert_eq!(next_policy(&mut events).await, "b *");
    assert_eq!(next_policy(&mut events).await, "all: a b");
    fake.change(CLUSTER_POLICIES, "MODIFIED", policy("a", "rack"));
    assert_eq!(next_policy(&mut events).await, "a rack");
    // A deletion holds once it is sure that the kind is still there.
    fake.change(CLUSTER_POLICIES, "DELETED", policy("b", "*"));
    assert_eq!(next_policy(&mut events).await, "a rack");
    assert_eq!(next_policy(&mut events).await, "all: a");
    // Deleting the CustomResourceDefinition deletes all objects.
    fake.change(CLUSTER_POLICIES, "DELETED", policy("a", "rack"));
    fake.state().refuse.insert(CLUSTER_POLICIES, (404, "the server could not find it"));
    fake.hang_up();
    let trouble = next_policy(&mut events).await;
    let begin = format!(
        "the API server at {} has no clustertopologypolicies.topo-lb.io any more: the last ones stay in \
         force until the agent restarts",
        fake.server.url()
    );
    assert!(trouble.starts_with(&begin), "{trouble}");
    assert_eq!(next_policy(&mut events).await, "kept ClusterTopologyPolicy: true");
    // They come back with it.
    fake.change(CLUSTER_POLICIES, "ADDED", policy("c", "*"));
    fake.state().refuse.clear();
    assert_eq!(next_policy(&mut events).await, "c *");
    assert_eq!(next_policy(&mut events).await, "kept ClusterTopologyPolicy: false");
    assert_eq!(next_policy(&mut events).await, "all: c");
}

#[tokio::test]
async fn without_the_custom_resources_everything_else_works_and_what_was_saved_is_dropped() {
    let (_fake, mut events) = listed(SHORT).await;
    assert_eq!(
        next_policy(&mut events).await,
        "all: ",
        "at the second time that the server has none"
    );
}

/// The text of the next event. Skips the freshness, which changes on a slow machine, and which Nodes
/// are known.
async fn next(events: &mut Events) -> String {
    loop {
        match soon(events).await {
            Event::Freshness(_) | Event::Update(Update::KnownNodes(_)) => {}
            event => return text(event),
        }
    }
}

/// The texts of the events before `last`.
async fn up_to(events: &mut Events, last: &str) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        match text(soon(events).await) {
            said if said == last => return all,
            said => all.push(said),
        }
    }
}

/// An event as a short text: a kind with counts or names, or the trouble.
fn text(event: Event) -> String {
    match event {
        Event::Synced => "synced".to_owned(),
        Event::Trouble(trouble) | Event::Unserved(trouble) => format!("trouble: {trouble}"),
        Event::Update(update) => match update {
            Update::Node(Change::Listed(_, named)) => format!("{} nodes", named.len()),
            Update::Service(Change::Listed(_, named)) => format!("{} services", named.len()),
            Update::Slice(Change::Listed(_, named)) => format!("{} slices", named.len()),
            Update::Node(Change::Applied(node)) => {
                format!("node {} in {}", node.name, node.labels.get("pool").unwrap())
            }
            Update::Service(Change::Applied(service)) => {
                format!("service {} {}", service.id, service.ports[0].port)
            }
            Update::Slice(Change::Applied(slice)) => {
                format!("slice {} {}", slice.id.name, slice.endpoints.len())
            }
            Update::Node(Change::Deleted(name)) => format!("node {name} gone"),
            Update::Service(Change::Deleted(id)) => format!("service {id} gone"),
            Update::Slice(Change::Deleted(id)) => {
                format!("slice {}/{} gone", id.namespace, id.name)
            }
            Update::KnownNodes(known) => format!("{known:?} nodes are known"),
            update => format!("{update:?}"),
        },
        event => format!("{event:?}"),
    }
}

/// The next events, sorted, without single objects.
async fn some(events: &mut Events, count: usize) -> Vec<String> {
    let mut some = Vec::new();
    while some.len() < count {
        let event = next(events).await;
        if !["node ", "service ", "slice "].iter().any(|kind| event.starts_with(kind)) {
            some.push(event);
        }
    }
    some.sort();
    some
}

/// Checks that no event is pending: the next events are those of objects added and deleted here.
async fn nothing(fake: &Fake, events: &mut Events) {
    let last = [
        (NODES, node("last", "there")),
        (SERVICES, service("last", 80)),
        (SLICES, slice("last-1", "10.1.1.2")),
    ];
    for how in ["ADDED", "DELETED"] {
        last.iter().for_each(|(path, object)| fake.change(path, how, object.clone()));
    }
    for _ in 0..2 * last.len() {
        let said = next(events).await;
        let name = said.split(' ').nth(1).unwrap_or_default();
        assert!(name.trim_start_matches("default/").starts_with("last"), "{said}");
    }
}

/// Checks that no event comes until `so` returns true.
async fn nothing_until(events: &mut Events, so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < PATIENCE, "it is never so");
        let event = timeout(Duration::from_millis(20), events.next()).await;
        assert!(event.is_err(), "{event:?}");
    }
}

/// Waits for Service `web` with port 81. Until then, allows only events about the server's absence.
async fn port_81(events: &mut Events) {
    loop {
        let said = next(events).await;
        if said == "service default/web 81" {
            return;
        }
        assert!(said.starts_with("trouble: cannot reach"), "{said}");
    }
}

async fn freshness(events: &mut Events) -> Freshness {
    loop {
        if let Event::Freshness(freshness) = soon(events).await {
            return freshness;
        }
    }
}

#[tokio::test]
async fn all_is_listed_before_it_is_synced_and_followed_from_there() {
    let fake = Fake::new(&ALL).await;
    fake.change(NODES, "ADDED", node("n1", "beijing"));
    fake.change(SERVICES, "ADDED", service("web", 80));
    let mut events = follow(fake.server.clone());
    assert_eq!(some(&mut events, 3).await, ["0 slices", "1 nodes", "1 services"]);
    assert_eq!(next(&mut events).await, "synced");

    for (path, how, object, said) in [
        (NODES, "MODIFIED", node("n1", "shanghai"), "node n1 in shanghai"),
        (SLICES, "ADDED", slice("web-1", "10.1.1.2"), "slice web-1 2"),
        (SERVICES, "MODIFIED", service("web", 81), "service default/web 81"),
        (SERVICES, "DELETED", service("web", 81), "service default/web gone"),
        (SLICES, "DELETED", slice("web-1", "10.1.1.2"), "slice default/web-1 gone"),
        (NODES, "DELETED", node("n1", "shanghai"), "node n1 gone"),
    ] {
        fake.change(path, how, object);
        assert_eq!(next(&mut events).await, said);
    }
    nothing(&fake, &mut events).await;
}

#[tokio::test]
async fn of_nodes_only_metadata_is_asked_for() {
    let (fake, _events) = listed(PATIENT).await;
    read(&fake.server).await.unwrap();
    let requests = fake.state().requests.clone();
    for (path, accept) in requests {
        let metadata_only = accept.contains("as=PartialObjectMetadata");
        let expected = path.contains("nodes") || path.contains("namespaces");
        assert_eq!(metadata_only, expected, "{path}: {accept}");
    }
}

#[tokio::test]
async fn an_older_server_is_asked_for_the_older_version() {
    let fake = Fake::new(&[NODES, SERVICES, OLD_SLICES]).await;
    fake.change(OLD_SLICES, "ADDED", slice("web-1", "10.1.1.2"));
    let updates = read(&fake.server).await.unwrap().updates;
    assert!(
        matches!(&updates[4], Update::Slice(Change::Listed(all, _)) if all.len() == 1),
        "{updates:?}"
    );

    let mut events = follow(fake.server.clone());
    assert_eq!(some(&mut events, 4).await, ["0 nodes", "0 services", "1 slices", "synced"]);
    fake.change(OLD_SLICES, "DELETED", slice("web-1", "10.1.1.2"));
    assert_eq!(next(&mut events).await, "slice default/web-1 gone");
}

#[tokio::test]
async fn of_a_version_that_goes_away_between_two_pages_nothing_is_kept() {
    let page = json!({"metadata": {"continue": "1"}, "items": [slice("web-1", "10.1.1.2")]});
    let answer = move |uri: Uri| {
        let none = json!({"metadata": {"resourceVersion": "1"}, "items": []});
        std::future::ready(match uri.path() {
            SLICES if uri.to_string().contains("continue=") => Err(StatusCode::NOT_FOUND),
            SLICES => Ok(page.to_string()),
            _ => Ok(none.to_string()),
        })
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(axum::serve(listener, axum::Router::new().fallback(answer)).into_future());
    let server = connect(&KubeTarget::Server(url)).await.unwrap();
    let updates = read(&server).await.unwrap().updates;
    let is_empty = matches!(&updates[4], Update::Slice(Change::Listed(all, _)) if all.is_empty());
    assert!(is_empty, "{updates:?}");
}

#[tokio::test]
async fn a_server_that_knows_no_slices_is_named() {
    let fake = Fake::new(&[NODES, SERVICES]).await;
    let error = read(&fake.server).await.unwrap_err().to_string();
    assert!(error.contains("answers 404 to list endpointslices.discovery.k8s.io"), "{error}");
    let mut events = follow(fake.server.clone());
    let said = some(&mut events, 3).await;
    let expected = format!(
        "trouble: the API server at {} knows no endpointslices.discovery.k8s.io of version v1 or \
         v1beta1: Kubernetes 1.17 or later is needed",
        fake.server.url()
    );
    assert_eq!(said, ["0 nodes", "0 services", &expected]);
}

#[tokio::test]
async fn long_lists_come_in_pages_and_only_the_first_list_from_the_memory_of_the_server() {
    let fake = Fake::new(&ALL).await;
    fake.fill(SLICES, (0..600).map(|n| slice(&format!("web-{n}"), "10.1.1.2")));
    fake.fill(SERVICES, (0..600).map(|n| service(&format!("web-{n}"), 80)));
    let mut events = follow(fake.server.clone());
    assert_eq!(some(&mut events, 4).await, ["0 nodes", "600 services", "600 slices", "synced"]);
    let updates = read(&fake.server).await.unwrap().updates;
    assert!(matches!(&updates[4], Update::Slice(Change::Listed(all, _)) if all.len() == 600));
    assert_eq!(fake.requested("endpointslices?&limit=250"), 6, "three pages, twice");
    assert_eq!(fake.requested("services?&limit=500&resourceVersion=0"), 1);
    assert_eq!(fake.requested("nodes?&limit=500&resourceVersion=0"), 1);
    assert_eq!(fake.requested("services?&limit=500&continue=500"), 2, "by the token alone");
    fake.forget(SERVICES, [service("shop", 80)]);
    fake.hang_up();
    assert_eq!(some(&mut events, 3).await, ["0 nodes", "1 services", "600 slices"]);
    assert_eq!(fake.requested("resourceVersion=0"), Kind::ALL.len(), "nothing from memory again");
}

#[tokio::test]
async fn broken_watches_go_on_where_they_were() {
    let (fake, mut events) = listed(PATIENT).await;
    let lists = fake.requested("limit=");
    // The watches begin while events are asked for; one that breaks before is a failure.
    while fake.state().watches < ALL.len() {
        match timeout(Duration::from_millis(1), events.next()).await {
            Ok(Some(Event::Freshness(_))) | Err(_) => {}
            Ok(event) => panic!("{event:?}"),
        }
    }
    fake.hang_up();
    fake.change(SERVICES, "MODIFIED", service("web", 81));
    assert_eq!(next(&mut events).await, "service default/web 81");
    assert_eq!(fake.requested("limit="), lists, "nothing was listed again");
    nothing(&fake, &mut events).await;
}

#[tokio::test]
async fn what_the_server_has_forgotten_is_listed_again() {
    // The server ends the watch, or refuses it.
    for refuses_expired in [false, true] {
        let (fake, mut events) = listed(PATIENT).await;
        fake.state().refuses_expired = refuses_expired;
        fake.forget(SERVICES, [service("shop", 80), service("pay", 80)]);
        fake.hang_up();
        assert_eq!(some(&mut events, 3).await, ["0 nodes", "0 slices", "2 services"]);
        // `Synced` is sent once.
        nothing(&fake, &mut events).await;
    }
}

#[tokio::test]
async fn a_server_that_stalls_is_left_and_found_again() {
    let (fake, mut events) = listed(TIMING).await;
    nothing(&fake, &mut events).await;
    assert_eq!(fake.requested("watch=true"), 3);
    fake.state().stalled = true;
    fake.change(SERVICES, "MODIFIED", service("web", 81));
    // Open but silent connections do not count as live.
    assert!(matches!(freshness(&mut events).await, Freshness::AsOf(_)));
    fake.state().stalled = false;
    port_81(&mut events).await;
    while freshness(&mut events).await != Freshness::Live {}
}

#[tokio::test]
async fn a_watch_that_stalls_in_the_middle_of_an_event_is_left_for_another() {
    let (fake, mut events) = listed(TIMING).await;
    let asked = || (fake.requested("limit="), fake.requested("watch=true"));
    let (lists, watches) = asked();
    fake.state().sends_half = true;
    fake.change(SERVICES, "MODIFIED", service("web", 81));
    port_81(&mut events).await;
    assert!(!fake.state().sends_half, "no half of an event was sent");
    assert_eq!(asked().0, lists, "everything was listed anew");
    assert!(asked().1 > watches, "the watch that stalled has sent the other half");
}

#[tokio::test]
async fn freshness_is_that_of_the_last_word_of_the_server() {
    let fake = Fake::new(&ALL).await;
    let mut events = follow(fake.server.clone());
    assert_eq!(freshness(&mut events).await, Freshness::Live, "from the first listing on");
    let before = SystemTime::now();
    fake.state().refuse.extend(ALL.map(|path| (path, (503, "not now"))));
    fake.hang_up();
    let Freshness::AsOf(heard) = freshness(&mut events).await else { panic!("it is not live") };
    let distance = heard.duration_since(before).unwrap_or_else(|error| error.duration());
    assert!(distance < Duration::from_secs(5), "{distance:?}");
    fake.state().refuse.clear();
    while freshness(&mut events).await != Freshness::Live {}
}

#[tokio::test]
async fn a_watch_that_begins_again_at_once_is_no_news() {
    let (fake, mut events) = listed(Timing { grace: PATIENCE, ..TIMING }).await;
    assert_eq!(freshness(&mut events).await, Freshness::Live);
    for _ in 0..3 {
        let opened = fake.requested("watch=true");
        fake.hang_up();
        nothing_until(&mut events, || fake.requested("watch=true") >= opened + 3).await;
        nothing(&fake, &mut events).await;
    }
}

#[tokio::test]
async fn a_server_that_knows_no_roles_yet_is_not_complained_about() {
    let fake = Fake::new(&ALL).await;
    fake.change(SERVICES, "ADDED", service("web", 80));
    fake.state().refuse.extend(ALL.map(|path| (path, (403, "no roles yet"))));
    let mut events = follow(fake.connect(Timing { settling: PATIENCE, ..TIMING }).await);
    nothing_until(&mut events, || fake.requested("services") >= 2).await;
    fake.state().refuse.clear();
    assert_eq!(some(&mut events, 4).await, ["0 nodes", "0 slices", "1 services", "synced"]);
}

#[tokio::test]
async fn a_token_that_was_renewed_in_its_file_is_used() {
    let fake = Fake::new(&ALL).await;
    fake.state().token = Some("old");
    let folder = tempfile::tempdir().unwrap();
    let (token, kubeconfig) = (folder.path().join("token"), folder.path().join("kubeconfig"));
    std::fs::write(&token, "old").unwrap();
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: here\n\
         contexts: [{{name: here, context: {{cluster: here, user: me}}}}]\n\
         users: [{{name: me, user: {{tokenFile: {}}}}}]\n\
         clusters: [{{name: here, cluster: {{server: \"{}\"}}}}]\n",
        token.display(),
        fake.server.url()
    );
    std::fs::write(&kubeconfig, text).unwrap();
    let target = KubeTarget::Kubeconfig(kubeconfig);
    let patient = Timing { settling: Duration::from_secs(30), ..PATIENT };
    let server = connect_with(&target, patient).await.unwrap();
    let mut events = follow(server);
    assert_eq!(some(&mut events, 4).await, ["0 nodes", "0 services", "0 slices", "synced"]);

    // The kubelet writes a new token before the old one expires. The agent reads it when the old
    // one is refused, and reports nothing.
    std::fs::write(&token, "new").unwrap();
    fake.state().token = Some("new");
    fake.hang_up();
    fake.change(SERVICES, "ADDED", service("web", 80));
    assert_eq!(next(&mut events).await, "service default/web 80");
}

/// `default/kubernetes` and its slice, for a server at this endpoint.
fn bootstrap(endpoint: SocketAddr) -> [Value; 2] {
    let port = endpoint.port();
    [
        json!({"metadata": {"name": "kubernetes", "namespace": "default"},
               "spec": {"clusterIP": "192.0.2.1",
                        "ports": [{"name": "http", "port": 80, "targetPort": port}]}}),
        json!({"metadata": {"name": "kubernetes", "namespace": "default",
                            "labels": {"kubernetes.io/service-name": "kubernetes"}},
               "addressType": "IPv4", "endpoints": [{"addresses": [endpoint.ip().to_string()]}],
               "ports": [{"name": "http", "port": port, "protocol": "TCP"}]}),
    ]
}

#[tokio::test]
async fn endpoints_of_the_api_server_are_dialled_directly() {
    let fake = Fake::new(&ALL).await;
    let address = fake.server.url().trim_start_matches("http://").parse().unwrap();
    let [service, slice] = bootstrap(address);
    fake.change(SERVICES, "ADDED", service);
    fake.change(SLICES, "ADDED", slice);
    let listing = read(&fake.server).await.unwrap();

    // A documentation address (RFC 5737): unreachable without endpoints.
    let target = KubeTarget::Server("http://192.0.2.1".to_owned());
    let quick = Timing { connect: Duration::from_millis(200), ..TIMING };
    let server = connect_with(&target, quick).await.unwrap();
    read(&server).await.unwrap_err();
    listing.updates.iter().for_each(|update| server.observe(update));
    let again = read(&server).await.unwrap();
    assert_eq!(again.updates.len(), listing.updates.len());
}

#[tokio::test]
async fn an_object_that_cannot_be_read_spoils_no_other() {
    let fake = Fake::new(&ALL).await;
    fake.change(SERVICES, "ADDED", service("bad", 70_000));
    fake.change(SERVICES, "ADDED", service("good", 80));
    fake.change(SLICES, "ADDED", slice("good-1", "fd00::1"));
    let mut events = follow(fake.server.clone());
    let faults = [
        "EndpointSlice default/good-1: endpoints[1].addresses[0]: \"fd00::1\" is not an IPv4 \
         address; this endpoint is left out",
        "Service default/bad: spec.ports[0].port: 70000 is not a port (1–65535); this version of \
         the object is ignored",
    ];
    let [slice_fault, service_fault] = faults.map(|fault| format!("trouble: {fault}"));
    assert_eq!(
        some(&mut events, 6).await,
        ["0 nodes", "1 slices", "2 services", "synced", &slice_fault, &service_fault]
    );
    let listing = read(&fake.server).await.unwrap();
    assert!(
        matches!(&listing.updates[5], Update::Service(Change::Listed(all, _)) if all.len() == 1)
    );
    assert!(listing.faults.iter().map(|fault| &*fault.sentence).eq(faults));
    // The same fault is not reported again.
    fake.change(SLICES, "MODIFIED", slice("good-1", "fd00::1"));
    assert_eq!(next(&mut events).await, "slice good-1 1");
    fake.change(SERVICES, "MODIFIED", service("bad", 70_000));
    fake.change(SERVICES, "MODIFIED", service("bad", 8_080));
    assert_eq!(next(&mut events).await, "service default/bad 8080");
    // A good object keeps its previous state.
    fake.change(SERVICES, "MODIFIED", service("good", 0));
    let said = next(&mut events).await;
    assert!(said.starts_with("trouble: Service default/good: spec.ports[0].port: 0"), "{said}");
    nothing(&fake, &mut events).await;
    // Also after a new listing.
    fake.forget(SERVICES, [service("good", 0), service("bad", 8_080)]);
    fake.hang_up();
    loop {
        match soon(&mut events).await {
            Event::Update(Update::Service(Change::Applied(service))) => {
                assert_eq!(&*service.id.name, "bad")
            }
            Event::Update(Update::Service(Change::Listed(_, named))) => {
                let names: Vec<_> = named.iter().map(|id| &*id.name).collect();
                assert_eq!(names, ["bad", "good"], "both are there");
                break;
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn refusals_say_what_to_allow() {
    let fake = Fake::new(&ALL).await;
    let message = "services is forbidden: User \"topo-lb\" cannot list resource";
    fake.state().refuse.insert(SERVICES, (403, message));
    let expected = format!(
        "the API server at {} does not let topo-lb list services ({message}): allow the verbs list \
         and watch on services to its ServiceAccount or user",
        fake.server.url()
    );
    assert_eq!(read(&fake.server).await.unwrap_err().to_string(), expected);
    let mut events = follow(fake.server.clone());
    let said = some(&mut events, 3).await;
    assert_eq!(said, ["0 nodes", "0 slices", &format!("trouble: {expected}")]);
    // Once allowed, the watch recovers without another report.
    nothing_until(&mut events, || fake.requested("/services?") >= 4).await;
    fake.state().refuse.clear();
    assert_eq!(some(&mut events, 2).await, ["0 services", "synced"]);

    let message = "Unauthorized";
    fake.state().refuse.insert(NODES, (401, message));
    let error = read(&fake.server).await.unwrap_err().to_string();
    assert!(error.contains("does not accept this agent's credentials (Unauthorized)"), "{error}");
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_named() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let server = connect(&KubeTarget::Server(url.clone())).await.unwrap();
    let expected = format!(
        "cannot reach the API server at {url} (Connection refused (os error 111)): check the \
         address, that the server runs, and that it can be reached from here"
    );
    assert_eq!(read(&server).await.unwrap_err().to_string(), expected);
    let mut events = follow(server);
    assert_eq!(next(&mut events).await, format!("trouble: {expected}"));
}

/// Also checks that the rustls error types are those of the rustls that connects.
#[tokio::test]
async fn a_plain_server_spoken_to_in_tls_is_not_called_unreachable() {
    let fake = Fake::new(&ALL).await;
    let url = fake.server.url().replace("http:", "https:");
    let server = connect(&KubeTarget::Server(url.clone())).await.unwrap();
    let error = read(&server).await.unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("no secure connection to the API server at {url}")),
        "{error}"
    );
}

#[tokio::test]
async fn targets_that_are_none_say_so() {
    for url in ["", "localhost", "localhost:8080", "unix:///run/kube.sock", "http://"] {
        let error = connect(&KubeTarget::Server(url.to_owned())).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{url:?} is not the URL of an API server: write it like http://127.0.0.1:8080")
        );
    }
    let missing = KubeTarget::Kubeconfig(PathBuf::from("/nonexistent/kubeconfig"));
    assert_eq!(
        connect(&missing).await.unwrap_err().to_string(),
        "cannot use kubeconfig /nonexistent/kubeconfig: No such file or directory (os error 2)"
    );
}

#[tokio::test]
async fn other_nodes_are_asked_for_while_they_are_wanted() {
    let (fake, wanted, mut events) = two_nodes().await;
    let of_nodes = |mut said: Vec<String>| {
        said.retain(|said| said.contains("node"));
        said
    };
    let said = of_nodes(up_to(&mut events, "synced").await);
    // What is known comes first, so that other Nodes do not count as deleted.
    assert_eq!(said, ["node n1 in beijing", "Own nodes are known", "1 nodes"]);
    // Changes of other Nodes do not reach this agent.
    fake.change(NODES, "MODIFIED", node("n2", "beijing"));
    fake.change(NODES, "MODIFIED", node("n1", "shanghai"));
    assert_eq!(next(&mut events).await, "node n1 in shanghai");

    wanted.send_replace(KnownNodes::All);
    // Only after all Nodes.
    let said = of_nodes(up_to(&mut events, "All nodes are known").await);
    assert_eq!(said, ["node n1 in shanghai", "node n2 in beijing", "2 nodes"]);
    fake.change(NODES, "MODIFIED", node("n2", "ningbo"));
    assert_eq!(next(&mut events).await, "node n2 in ningbo");
    // No longer wanted, they stay watched for a while.
    wanted.send_replace(KnownNodes::Own);
    fake.change(NODES, "MODIFIED", node("n2", "beijing"));
    assert_eq!(next(&mut events).await, "node n2 in beijing");
    assert_eq!(fake.requested("nodes?&limit="), 1, "all of them were listed once");
}

#[tokio::test]
async fn an_agent_that_cannot_list_all_nodes_goes_on_watching_its_own() {
    for (status, attempts) in [(503, 1), (403, 4)] {
        let (fake, wanted, mut events) = two_nodes().await;
        up_to(&mut events, "synced").await;

        fake.state().refuse_all.insert(NODES, (status, "not you"));
        wanted.send_replace(KnownNodes::All);
        let mut said = Vec::new();
        for attempt in 1..=attempts {
            said.extend(up_to(&mut events, "Own nodes are known").await);
            assert!(fake.requested("nodes?&limit=") >= attempt, "it has asked for all of them");
            let pool = format!("pool-{attempt}");
            fake.change(NODES, "MODIFIED", node("n1", &pool));
            said.extend(up_to(&mut events, &format!("node n1 in {pool}")).await);
        }
        let expected = format!(
            "trouble: the API server at {} does not let this agent list all Nodes (not you): the agent \
             watches only its own Node, and Services that need labels of other Nodes wait; give its \
             ClusterRole the rule apiGroups: [\"\"], resources: [nodes], verbs: [list, watch]",
            fake.server.url()
        );
        // A lasting trouble is reported once, a temporary one never.
        let expected = if status == 403 { vec![expected] } else { Vec::new() };
        said.retain(|said| said.starts_with("trouble: "));
        assert_eq!(said, expected);

        fake.state().refuse_all.clear();
        up_to(&mut events, "All nodes are known").await;
        fake.change(NODES, "MODIFIED", node("n2", "ningbo"));
        up_to(&mut events, "node n2 in ningbo").await;
    }
}

#[tokio::test]
async fn a_server_says_how_long_it_is_to_be_left_alone() {
    let fake = Fake::new(&ALL).await;
    let asked = || fake.server.session.retry_after(Kind::Service);
    for (status, header, expected) in [
        (429, Some("20"), Some(Duration::from_secs(20))),
        (503, Some("1"), Some(Duration::from_secs(1))),
        (429, Some("tomorrow"), None),
        (429, None, None),
        (500, Some("20"), None),
        (429, Some("20"), Some(Duration::from_secs(20))),
    ] {
        fake.state().refuse.insert(SERVICES, (status, "not now"));
        fake.state().retry_after = header;
        read(&fake.server).await.unwrap_err();
        assert_eq!(asked(), expected, "{status} {header:?}");
    }
    fake.state().refuse.clear();
    read(&fake.server).await.unwrap();
    assert_eq!(asked(), None, "it serves again");
}

#[tokio::test]
async fn a_watch_that_ends_as_it_begins_is_a_failure() {
    let fake = Fake::new(&ALL).await;
    fake.state().ends_watches = true;
    let query = Query { version: 0, selector: None, cached: false, seconds: 300 };
    let mut said = reflect::changes::<Service>(&fake.server, query);
    for _ in 0..2 {
        said.next().await.unwrap().unwrap();
    }
    for _ in 0..2 {
        let next = timeout(PATIENCE, said.next()).await.expect("nothing came").unwrap();
        assert!(matches!(next, Err(reflect::Failure::Short)), "{next:?}");
    }
    assert_eq!(fake.requested("watch=true"), 2);
}
