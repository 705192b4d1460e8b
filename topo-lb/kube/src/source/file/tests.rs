use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::{FutureExt, StreamExt};

use super::follow::{Pace, follow_at};
use super::{Following, follow, parse, read};
use crate::source::{Event, Listing};
use topo_lb_core::cluster::{
    Change, ClusterTopologyPolicy, Namespace, Node, Service, ServiceId, Slice, State,
    TopologyPolicy, Update,
};
use topo_lb_core::exclusion::Pod;

const NODE: &str = "apiVersion: v1\nkind: Node\nmetadata: {name: n1, labels: {pool: beijing}}\n";
const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n\
                       spec: {clusterIP: 10.96.0.5, ports: [{port: 80}]}\n";
const PATIENCE: Duration = Duration::from_secs(20);
/// Longer than any test takes.
const NEVER: Duration = Duration::from_secs(3_600);
/// Only inotify events lead to a reading: no periodic checks, no end of patience.
const TOLD: Pace = Pace { patience: NEVER, look_again: NEVER, ..Pace::DEFAULT };

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn at(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.at(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    fn error(&self) -> String {
        let error = read(self.path()).expect_err("it is wrong").to_string();
        error.replace(&format!("{}/", self.path().display()), "")
    }

    /// The objects that can be read, and the faults of the others.
    fn read(&self) -> (All, Vec<String>) {
        let (all, faults) = All::of(self.path());
        let here = format!("{}/", self.path().display());
        (all, faults.into_iter().map(|fault| fault.replace(&here, "")).collect())
    }

    fn counts(&self) -> [usize; 3] {
        let (all, faults) = self.read();
        assert_eq!(faults, [""; 0]);
        all.counts()
    }
}

#[derive(Debug, Default, PartialEq)]
struct All {
    services: Vec<Service>,
    slices: Vec<Slice>,
    nodes: Vec<Node>,
    namespaces: Vec<Namespace>,
    policies: Vec<TopologyPolicy>,
    cluster_policies: Vec<ClusterTopologyPolicy>,
}

impl All {
    /// The objects at `path` that can be read, and the faults of the others.
    fn of(path: &Path) -> (Self, Vec<String>) {
        let mut all = Self::default();
        let Listing { updates, faults, .. } = read(path).unwrap();
        updates.into_iter().for_each(|update| all.take(update));
        (all, faults.into_iter().map(|fault| fault.sentence).collect())
    }

    fn take(&mut self, update: Update) {
        match update {
            Update::Service(Change::Listed(services, _)) => self.services = services,
            Update::Slice(Change::Listed(slices, _)) => self.slices = slices,
            Update::Node(Change::Listed(nodes, _)) => self.nodes = nodes,
            Update::Namespace(Change::Listed(all, _)) => self.namespaces = all,
            Update::TopologyPolicy(Change::Listed(all, _)) => self.policies = all,
            Update::ClusterTopologyPolicy(Change::Listed(all, _)) => self.cluster_policies = all,
            other => panic!("a single object from files: {other:?}"),
        }
    }

    fn counts(&self) -> [usize; 3] {
        [self.services.len(), self.slices.len(), self.nodes.len()]
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}

fn slice(name: &str, addresses: impl Iterator<Item = String>) -> serde_json::Value {
    serde_json::json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "web"}},
        "endpoints": addresses
            .map(|address| serde_json::json!({"addresses": [address], "nodeName": "n1"}))
            .collect::<Vec<_>>(),
    })
}

#[test]
fn fixtures_are_read_whole_and_the_same_as_yaml() {
    for (name, counts) in
        [("kubernetes-1.36.json", [19, 19, 3]), ("kubernetes-1.20.json", [18, 18, 3])]
    {
        let folder = Folder::new();
        // JSON is YAML; the extension selects the YAML parser.
        fs::copy(fixture(name), folder.at("all.yaml")).unwrap();
        let json = All::of(&fixture(name));
        assert_eq!((json.0.counts(), json.1.len()), (counts, 0));
        assert_eq!(folder.read(), json);
    }
}

#[test]
fn a_folder_is_its_manifests_one_level_deep() {
    let folder = Folder::new();
    assert_eq!(folder.counts(), [0, 0, 0], "an empty cluster");
    folder.write("b.yml", SERVICE);
    folder.write("a.yaml", NODE);
    folder.write("10-a.v2.yaml", NODE.replace("n1", "n2"));
    folder.write("c.json", slice("s", std::iter::empty()).to_string());
    for name in ["sub/a.yaml", "dir.yaml/a.yaml", "notes.txt", "yaml", "..data", "a.yaml.tmp"] {
        folder.write(name, "this: [is not read");
    }
    // What editors leave behind.
    for name in
        ["a.yaml~", ".a.yaml", ".yaml", ".a.yaml.swp", "#a.yaml#", ".#a.yaml", "a.YAML.orig"]
    {
        folder.write(name, "this: [is not read");
    }
    assert_eq!(folder.counts(), [1, 1, 2]);
}

#[test]
fn documents_and_lists_of_every_shape_are_read() {
    let folder = Folder::new();
    let node = |name: &str| format!("{{\"metadata\": {{\"name\": \"{name}\"}}}}");
    folder.write(
        "all.yaml",
        format!(
            "# a comment\n---\n---\n{SERVICE}---\nnull\n---\napiVersion: apps/v1\nkind: Deployment\n\
             ---\napiVersion: v1\nkind: List\nitems:\n- {{apiVersion: v1, kind: Node, metadata: \
             {{name: n1}}}}\n- {{apiVersion: v1, kind: Secret}}\n---\napiVersion: v1\n\
             kind: NodeList\nitems: [{}, {}]\n---\napiVersion: v1\nkind: PodList\nitems: 5\n",
            node("n2"),
            node("n3"),
        ),
    );
    folder.write("null.json", r#"{"apiVersion": "v1", "kind": "List", "items": null} null"#);
    folder.write(
        "typed.json",
        r#"{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSliceList", "items": [
            {"addressType": "IPv4", "metadata": {"name": "s"}}]}
           {"apiVersion": "v1", "kind": "ServiceList", "items": []}"#,
    );
    folder.write("comments.yaml", "# nothing yet\n");
    assert_eq!(folder.counts(), [1, 1, 3]);
}

#[test]
fn a_file_without_extension_may_be_either() {
    let folder = Folder::new();
    let yaml = folder.write("yaml", SERVICE);
    assert_eq!(All::of(&yaml).0.counts(), [1, 0, 0]);
    let json = folder.write("json", format!("\u{feff} \n{}", slice("s", std::iter::empty())));
    assert_eq!(All::of(&json).0.counts(), [0, 1, 0]);
}

#[test]
fn what_comes_from_elsewhere_is_read_by_its_name() {
    let updates = parse(Path::new("-"), SERVICE.as_bytes()).unwrap().updates;
    assert!(matches!(&updates[5], Update::Service(Change::Listed(all, _)) if all.len() == 1));
    let error = parse(Path::new("standard input"), b"kind: []").unwrap_err().to_string();
    assert!(error.starts_with("standard input, document 1: kind: invalid type"), "{error}");
}

#[test]
fn a_path_without_anything_is_an_error_that_says_what_to_do() {
    let missing = Path::new("/nonexistent/manifests");
    let expected = "there is no file or folder /nonexistent/manifests: create it, or name another \
                    one to read manifests from";
    assert_eq!(read(missing).unwrap_err().to_string(), expected);
    assert_eq!(follow(missing.to_owned()).unwrap_err().to_string(), expected);
}

#[test]
fn errors_name_file_document_object_and_field() {
    let nothing =
        " is empty: remove it, or write a List without items to say that nothing is there";
    let cases: [(&str, &[u8], &str); 12] = [
        (
            "a.yaml",
            b"apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n---\napiVersion: v1\n\
              kind: Service\nmetadata: we",
            ", document 2: Service: metadata: invalid type: string \"we\", expected an object",
        ),
        (
            "a.json",
            br#"{"apiVersion": "v1", "kind": "List", "items": {}}"#,
            ", document 1: List: items: is not a list",
        ),
        (
            "a.yaml",
            b"apiVersion: v1\nkind: List\nitems: 5\n",
            ", document 1: List: items: is not a list",
        ),
        (
            "a.yaml",
            b"apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: List}]\n",
            ", document 1, items[0]: kind: a List within a list is not read: take its items out",
        ),
        (
            "a.yaml",
            b"replicas: 3\n",
            ", document 1: kind: is missing: this is no Kubernetes object",
        ),
        (
            "a.yaml",
            b"just text\n",
            ", document 1: invalid type: string \"just text\", expected an object",
        ),
        (
            "a.json",
            b"{\"apiVersion\": \"v1\",\n \"kind\": \"Nod",
            ": EOF while parsing a string at line 2 column 13",
        ),
        ("a.yaml", b"kind: Node\nmetadata: {name: n", ": "),
        ("a.yaml", b"kind: Node\nkind: Node\n", ": "),
        ("a.yaml", b"", nothing),
        ("a.json", b" \n\n", nothing),
        ("a.yaml", b"kind: \xff\xfe\n", ": is not UTF-8 text (byte 6)"),
    ];
    for (name, content, expected) in cases {
        let folder = Folder::new();
        folder.write(name, content);
        let error = folder.error();
        let expected = format!("{name}{expected}");
        assert!(error.starts_with(&expected), "{error}\nis not\n{expected}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn an_object_with_a_bad_field_costs_itself_alone() {
    let folder = Folder::new();
    folder.write(
        "a.yaml",
        format!(
            "{NODE}---\n{SERVICE}---\n{}",
            SERVICE.replace("web", "bad").replace("80", "70000")
        ),
    );
    folder.write(
        "b.json",
        r#"{"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "Pod"},
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n2", "labels": []}},
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n3"}},
            {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
             "metadata": {"name": "s"}, "ports": [{"port": 0}]}]}"#,
    );
    let (all, said) = folder.read();
    assert_eq!(all.counts(), [1, 0, 2]);
    assert_eq!(
        said,
        [
            "a.yaml, document 3: Service default/bad: spec.ports[0].port: 70000 is not a port \
             (1–65535); this version of the object is ignored",
            "b.json, document 1, items[1]: Node n2: metadata.labels: invalid type: sequence, \
             expected a map; this version of the object is ignored",
            "b.json, document 1, items[3]: EndpointSlice default/s: ports[0].port: 0 is not a port \
             (1–65535); this version of the object is ignored",
        ]
    );
}

#[test]
fn of_two_objects_of_one_name_the_first_counts_and_both_places_are_named() {
    let folder = Folder::new();
    folder.write("a.yaml", format!("{NODE}---\n{SERVICE}"));
    folder.write(
        "b.json",
        r#"{"apiVersion": "v1", "kind": "ServiceList", "items": [
            {"metadata": {"name": "web", "namespace": "other"}},
            {"metadata": {"name": "web", "namespace": "default"}}]}"#,
    );
    let (all, said) = folder.read();
    assert_eq!(all.counts(), [2, 0, 1]);
    assert_eq!(all.services[0].ports.len(), 1, "not the first");
    assert_eq!(
        said,
        ["Service default/web is defined twice, by a.yaml, document 2 and by b.json, document 1, \
          items[1]: the first counts, remove one of them"]
    );
}

#[test]
fn large_yaml_is_within_the_budget() {
    let folder = Folder::new();
    let documents: String = (0..1_500)
        .map(|n| {
            format!(
                "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: web-{n}\nspec:\n  \
                 clusterIP: 10.96.{}.{}\n  ports:\n  - port: 80\n    name: http\n",
                n / 250,
                n % 250,
            )
        })
        .collect();
    folder.write("services.yaml", documents);
    let addresses = |n: u32| (0..5_000).map(move |m| format!("10.{n}.{}.{}", m / 250, m % 250));
    let slices: Vec<_> = (0..3).map(|n| slice(&format!("web-{n}"), addresses(n))).collect();
    let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": slices});
    folder.write("slices.yaml", list.to_string());
    let (all, said) = folder.read();
    assert_eq!((all.counts(), said.len()), ([1_500, 3, 0], 0));
    assert!(all.slices.iter().all(|slice| slice.endpoints.len() == 5_000));
}

#[test]
fn aliases_cannot_blow_up_a_small_file() {
    let folder = Folder::new();
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for n in 1..12 {
        let before = vec![format!("*a{}", n - 1); 10].join(", ");
        text.push_str(&format!("a{n}: &a{n} [{before}]\n"));
    }
    folder.write("a.yaml", text);
    let start = Instant::now();
    assert!(folder.error().starts_with("a.yaml: "));
    assert!(start.elapsed() < Duration::from_secs(10));
}

async fn soon<T>(outcome: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, outcome).await.expect("nothing came")
}

async fn next(following: &mut Following) -> Event {
    soon(following.next()).await.expect("it never ends")
}

/// Reads the stream until `enough` returns true.
async fn until(following: &mut Following, enough: impl Fn(&All) -> bool) {
    let mut all = All::default();
    while !enough(&all) {
        match next(following).await {
            Event::Update(update) => all.take(update),
            Event::Synced
            | Event::Freshness(_)
            | Event::Pods(_)
            | Event::Mended(_)
            | Event::Kept(..) => {}
            Event::Trouble(trouble) | Event::Unserved(trouble) => panic!("{trouble}"),
        }
    }
}

async fn until_in_pool(following: &mut Following, pool: &str) {
    let is_in = |node: &Node| node.labels.get("pool").is_some_and(|own| &**own == pool);
    until(following, |all| all.nodes.first().is_some_and(is_in)).await;
}

/// Follows manifests whose first Node is in the pool `beijing`, and waits for that.
async fn beijing(path: PathBuf, pace: Pace) -> Following {
    let mut following = follow_at(path, pace).unwrap();
    until_in_pool(&mut following, "beijing").await;
    following
}

/// The events until the thread has read all files `number` times.
async fn reading(following: &mut Following, number: u64) -> Vec<Event> {
    let mut said = Vec::new();
    soon(async {
        loop {
            let is_done = following.done.readings.load(Ordering::Relaxed) >= number;
            said.extend(std::iter::from_fn(|| waiting(following)));
            if is_done {
                return said;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
}

/// Waits for a few more checks of the files: one could have begun before this call.
async fn looks(following: &Following) {
    const FEW: u64 = 5;
    let looks: &AtomicU64 = &following.done.looks;
    let enough = looks.load(Ordering::Relaxed) + FEW;
    soon(async {
        while looks.load(Ordering::Relaxed) < enough {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

fn waiting(following: &mut Following) -> Option<Event> {
    following.next().now_or_never().flatten()
}

#[tokio::test]
async fn the_first_reading_is_policies_nodes_slices_services_and_synced() {
    let folder = Folder::new();
    folder.write("a.yaml", format!("{NODE}---\n{SERVICE}"));
    let pace = Pace { look_again: Duration::from_millis(1), ..Pace::DEFAULT };
    let mut following = follow_at(folder.path().to_owned(), pace).unwrap();
    let mut kinds = Vec::new();
    for _ in 0..7 {
        kinds.push(match following.next().await.unwrap() {
            Event::Update(Update::Namespace(Change::Listed(all, _))) => ("namespaces", all.len()),
            Event::Update(Update::TopologyPolicy(Change::Listed(all, _))) => ("own", all.len()),
            Event::Update(Update::ClusterTopologyPolicy(Change::Listed(all, _))) => {
                ("cluster's", all.len())
            }
            Event::Update(Update::Node(Change::Listed(nodes, _))) => ("nodes", nodes.len()),
            Event::Update(Update::Slice(Change::Listed(slices, _))) => ("slices", slices.len()),
            Event::Update(Update::Service(Change::Listed(services, _))) => {
                ("services", services.len())
            }
            Event::Synced => ("synced", 0),
            Event::Freshness(_) => ("freshness", 0),
            other => panic!("{other:?}"),
        });
    }
    let policies = [("namespaces", 0), ("cluster's", 0), ("own", 0)];
    let rest = [("nodes", 1), ("slices", 0), ("services", 1), ("synced", 0)];
    assert_eq!(kinds, [&policies[..], &rest].concat());
    looks(&following).await;
    let more = waiting(&mut following);
    assert!(more.is_none(), "nothing changed, and yet {more:?}");
}

#[tokio::test]
async fn pods_that_say_which_they_are_are_said_as_long_as_there_are_any() {
    const PODS: &str = "\
{apiVersion: v1, kind: Pod, metadata: {name: a, uid: 1-2, annotations: {topo-lb.io/exclude: 'true'}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: of a template}, spec: {containers: []}}
";
    async fn pods(following: &mut Following) -> Vec<Pod> {
        loop {
            if let Event::Pods(pods) = next(following).await {
                return pods;
            }
        }
    }
    let folder = Folder::new();
    let path = folder.write("pods.yaml", PODS);
    folder.write("nodes.yaml", NODE);
    let mut following = follow(folder.path().to_owned()).unwrap();
    let wanted = Pod {
        uid: "1-2".into(),
        namespace: "default".into(),
        name: "a".into(),
        exclude: Some("true".into()),
        steer: None,
    };
    assert_eq!(pods(&mut following).await, [wanted]);
    fs::remove_file(path).unwrap();
    assert_eq!(pods(&mut following).await, []);
}

#[tokio::test]
async fn a_file_that_is_written_or_replaced_is_seen_because_the_system_says_so() {
    for (followed, by_rename) in [("", false), ("", true), ("nodes.yaml", true)] {
        let folder = Folder::new();
        let path = folder.write("nodes.yaml", NODE);
        let mut following = beijing(folder.at(followed), TOLD).await;
        for pool in ["hangzhou", "shanghai"] {
            let name = if by_rename { ".nodes.new" } else { "nodes.yaml" };
            fs::rename(folder.write(name, NODE.replace("beijing", pool)), &path).unwrap();
            until_in_pool(&mut following, pool).await;
        }
    }
}

#[tokio::test]
async fn what_the_system_does_not_say_is_seen_by_a_look_from_time_to_time() {
    let folder = Folder::new();
    let inside = folder.write("elsewhere/nodes.yaml", NODE);
    // A second name of the file, in a folder that is not watched.
    fs::create_dir_all(folder.at("followed")).unwrap();
    fs::hard_link(&inside, folder.at("followed/nodes.yaml")).unwrap();
    let mut following = beijing(folder.at("followed"), Pace::DEFAULT).await;
    fs::write(&inside, NODE.replace("beijing", "hangzhou")).unwrap();
    until_in_pool(&mut following, "hangzhou").await;
}

#[tokio::test]
async fn a_config_map_mount_is_followed_through_its_links() {
    for followed in ["", "nodes.yaml"] {
        let folder = Folder::new();
        folder.write("..2026_1/nodes.yaml", NODE);
        symlink("..2026_1", folder.at("..data")).unwrap();
        symlink("..data/nodes.yaml", folder.at("nodes.yaml")).unwrap();
        let mut following = beijing(folder.at(followed), TOLD).await;
        // The way the kubelet does it, twice.
        for (version, pool) in [(2, "hangzhou"), (3, "shanghai")] {
            folder.write(&format!("..2026_{version}/nodes.yaml"), NODE.replace("beijing", pool));
            symlink(format!("..2026_{version}"), folder.at("..data_tmp")).unwrap();
            fs::rename(folder.at("..data_tmp"), folder.at("..data")).unwrap();
            fs::remove_dir_all(folder.at(&format!("..2026_{}", version - 1))).unwrap();
            until_in_pool(&mut following, pool).await;
        }
        // Rewrite a file behind the links.
        folder.write("..2026_3/nodes.yaml", NODE);
        until_in_pool(&mut following, "beijing").await;
    }
}

#[tokio::test]
async fn files_come_and_go() {
    let folder = Folder::new();
    folder.write("nodes.yaml", NODE);
    let mut following = follow(folder.path().to_owned()).unwrap();
    until(&mut following, |all| all.counts() == [0, 0, 1]).await;
    let service = folder.write("web.yaml", SERVICE);
    until(&mut following, |all| all.counts() == [1, 0, 1]).await;
    fs::remove_file(service).unwrap();
    until(&mut following, |all| all.counts() == [0, 0, 1]).await;
}

#[tokio::test]
async fn a_folder_that_is_replaced_is_followed_on() {
    let folder = Folder::new();
    folder.write("manifests/nodes.yaml", NODE);
    let mut following = beijing(folder.at("manifests"), Pace::DEFAULT).await;
    fs::rename(folder.at("manifests"), folder.at("old")).unwrap();
    folder.write("manifests/nodes.yaml", NODE.replace("beijing", "hangzhou"));
    until_in_pool(&mut following, "hangzhou").await;
    folder.write("manifests/nodes.yaml", NODE.replace("beijing", "shanghai"));
    until_in_pool(&mut following, "shanghai").await;
}

#[tokio::test]
async fn a_half_written_file_leaves_the_last_good_state() {
    const UPDATED: &str = "updated";
    let none = r#"{"apiVersion": "v1", "kind": "NodeList", "items": []}"#;
    let one = r#"{"apiVersion": "v1", "kind": "NodeList", "items": [{"metadata": {"name": "n"}}]}"#;
    let half = r#"{"apiVersion": "v1", "kind": "No"#;
    let folder = Folder::new();
    let path = folder.write("nodes.json", none);
    let mut following = follow_at(folder.path().to_owned(), TOLD).unwrap();
    for (number, content, expected) in [
        (1, none, UPDATED),
        (2, half, "nodes.json: EOF while parsing"),
        // The same error is not reported again, and the state stays.
        (3, half, ""),
        // Another error is.
        (4, "", "nodes.json is empty"),
        (5, NODE, "nodes.json: expected value"),
        // After a good reading, a previous error is reported again.
        (6, one, UPDATED),
        (7, "", "nodes.json is empty"),
    ] {
        if number > 1 {
            fs::write(&path, content).unwrap();
        }
        match reading(&mut following, number).await.first() {
            None => assert_eq!(expected, ""),
            Some(Event::Update(_)) => assert_eq!(expected, UPDATED),
            Some(Event::Trouble(said)) if !expected.is_empty() => {
                assert!(said.contains(expected), "{said}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn an_object_that_turns_bad_stays_as_it_was_while_others_change() {
    let folder = Folder::new();
    let path = folder.write("all.yaml", format!("{NODE}---\n{SERVICE}"));
    let mut following = follow_at(folder.path().to_owned(), TOLD).unwrap();
    let mut state = State::default();
    let (mut said, mut mended) = (Vec::new(), Vec::new());
    let bad = SERVICE.replace("80", "eighty");
    // The fault stays while another object changes.
    for (number, pool) in [(1, "beijing"), (2, "hangzhou"), (3, "shanghai"), (4, "shanghai")] {
        for event in reading(&mut following, number).await {
            match event {
                Event::Update(update) => drop(state.apply(update, "n1")),
                Event::Trouble(trouble) | Event::Unserved(trouble) => said.push(trouble),
                Event::Mended(sentence) => mended.push(sentence),
                Event::Synced | Event::Freshness(_) | Event::Pods(_) | Event::Kept(..) => {}
            }
        }
        let id = ServiceId { namespace: "default".into(), name: "web".into() };
        assert_eq!(state.service(&id).unwrap().ports[0].port, 80);
        assert_eq!(&**state.node("n1").unwrap().get("pool").unwrap(), pool);
        let next = if number == 1 { "hangzhou" } else { "shanghai" };
        let service = if number == 3 { SERVICE } else { &bad };
        fs::write(&path, format!("{}---\n{service}", NODE.replace("beijing", next))).unwrap();
    }
    let [trouble] = &*said else { panic!("{said:?}") };
    assert_eq!(mended, said);
    assert!(trouble.contains("Service default/web: spec.ports[0].port: invalid type"), "{trouble}");
}

#[tokio::test]
async fn what_somebody_is_still_writing_is_not_read() {
    let folder = Folder::new();
    let path = folder.write("all.yaml", format!("{NODE}---\n{SERVICE}"));
    let mut following = follow_at(folder.path().to_owned(), TOLD).unwrap();
    reading(&mut following, 1).await;
    // Cut between two documents, the file is valid YAML.
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(NODE.replace("beijing", "hangzhou").as_bytes()).unwrap();
    looks(&following).await;
    let half = waiting(&mut following);
    assert!(half.is_none(), "half of it was read: {half:?}");
    file.write_all(format!("---\n{SERVICE}").as_bytes()).unwrap();
    drop(file);
    until_in_pool(&mut following, "hangzhou").await;
    assert!(matches!(
        following.next().await,
        Some(Event::Update(Update::Slice(Change::Listed(..))))
    ));
    let Some(Event::Update(Update::Service(Change::Listed(services, _)))) = following.next().await
    else {
        panic!("Services come last")
    };
    assert_eq!(services.len(), 1, "half of it was read");
}

#[tokio::test]
async fn a_skipped_endpoint_is_said_once() {
    let folder = Folder::new();
    let addresses = ["10.1.1.1", "fd00::1"].map(str::to_owned).into_iter();
    folder.write("slice.json", slice("s", addresses).to_string());
    let mut following = follow_at(folder.path().to_owned(), TOLD).unwrap();
    let mut troubles = Vec::new();
    for number in 1..=4 {
        let mut endpoints = None;
        for event in reading(&mut following, number).await {
            match event {
                Event::Trouble(trouble) | Event::Unserved(trouble) => troubles.push(trouble),
                Event::Update(Update::Slice(Change::Listed(slices, _))) => {
                    endpoints = Some(slices[0].endpoints.len());
                }
                _ => {}
            }
        }
        assert_eq!(endpoints, Some(1), "reading {number}");
        folder.write(&format!("{number}.yaml"), NODE.replace("n1", &format!("n{number}")));
    }
    let [trouble] = &*troubles else { panic!("{troubles:?}") };
    assert!(
        trouble.ends_with(
            "slice.json, document 1: EndpointSlice default/s: endpoints[1].addresses[0]: \
             \"fd00::1\" is not an IPv4 address; this endpoint is left out"
        ),
        "{trouble}"
    );
}

#[tokio::test]
async fn a_busy_neighbour_in_the_same_folder_does_not_hide_a_change() {
    let folder = Folder::new();
    let path = folder.write("nodes.yaml", NODE);
    let mut following = beijing(path.clone(), TOLD).await;
    let mut log = fs::File::create(folder.at("some.log")).unwrap();
    tokio::spawn(async move {
        loop {
            log.write_all(b"x").unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    looks(&following).await;
    fs::write(&path, NODE.replace("beijing", "shanghai")).unwrap();
    until_in_pool(&mut following, "shanghai").await;
}
