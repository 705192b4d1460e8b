use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::{Stream, StreamExt as _, stream};

use super::format::{self, Whole};
use super::{Folder, Saver, StateError, before};
use crate::source::Event;
use crate::source::file::parse;
use crate::source::kube::Identity;
use topo_lb_core::cluster::Freshness;
use topo_lb_core::cluster::{Change, State, Update, ZoneRegion};

const FIXTURES: [(&str, &str); 2] = [
    ("kubernetes-1.36.json", include_str!("../../../../../tests/fixtures/kubernetes-1.36.json")),
    ("kubernetes-1.20.json", include_str!("../../../../../tests/fixtures/kubernetes-1.20.json")),
];
const NODE: &str = "kind-worker";

/// A folder that does not exist yet, in one that is removed.
struct Temporary {
    path: PathBuf,
    _parent: tempfile::TempDir,
}

impl Temporary {
    fn new() -> Self {
        let parent = tempfile::tempdir().unwrap();
        Self { path: parent.path().join("state"), _parent: parent }
    }

    fn folder(&self) -> Folder {
        Folder::new(&self.path, cluster())
    }

    fn file(&self) -> PathBuf {
        self.path.join("cluster.state")
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.path).into_iter().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// The saved time and state.
    fn load(&self) -> (SystemTime, State) {
        let saved = self.folder().load(NODE, |_| {}).unwrap().unwrap();
        (saved.as_of(), state_of(saved.into_updates()))
    }
}

fn cluster() -> Identity {
    Identity { server: "https://10.96.0.1".to_owned(), authorities: vec![1, 2] }
}

fn state_of(updates: impl IntoIterator<Item = Update>) -> State {
    let mut state = State::default();
    for update in updates {
        let _ = state.apply(update, NODE);
    }
    state
}

fn fixture(at: usize) -> State {
    let (name, text) = FIXTURES[at];
    state_of(parse(name.as_ref(), text.as_bytes()).unwrap().updates)
}

fn moment() -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(1_795_000_000_123)
}

fn written(state: &State) -> Vec<u8> {
    let mut text = Vec::new();
    format::write(state, cluster(), moment(), &mut text).unwrap();
    text
}

#[test]
fn what_is_saved_is_what_is_read_and_for_its_owner_alone() {
    for (at, (name, text)) in FIXTURES.into_iter().enumerate() {
        let (state, place) = (fixture(at), Temporary::new());
        assert!(place.folder().load(NODE, |_| {}).unwrap().is_none(), "nothing was saved");
        let size = place.folder().save(Arc::new(state.clone()), moment()).unwrap();
        assert!(place.load() == (moment(), state), "{name}");
        assert_eq!(size, fs::metadata(place.file()).unwrap().len());
        assert!(size < text.len() as u64 / 5, "{size} bytes");
        let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(place.file()), mode(place.path.clone())), (0o600, 0o700));
    }
}

#[test]
fn strings_of_any_kind_are_kept() {
    let mut state = fixture(0);
    let id = state.services().next().unwrap().clone();
    let mut service = state.service(&id).unwrap().clone();
    Arc::make_mut(&mut service.policy).topology_keys =
        Some("a\r\nb\"c\\\u{0}\u{2028}\u{1f600}{\"crc32\":1}\n".into());
    let _ = state.apply(Update::Service(Change::Applied(service)), NODE);
    let whole = Whole::read(written(&state)).unwrap();
    assert!(state_of(whole.into_objects()) == state);
}

/// Every field as version 1 writes it: must stay readable, and be written the same.
#[test]
fn version_1_is_this() {
    let text = include_bytes!("../../../../tests/golden/saved-1.state");
    let saved = Whole::read(text.to_vec()).unwrap();
    let state = golden();
    assert!(state_of(saved.objects().map(Result::unwrap)) == state);
    assert_eq!(String::from_utf8_lossy(&written(&state)), String::from_utf8_lossy(text));
}

fn golden() -> State {
    let manifest = include_bytes!("../../../../tests/golden/saved.yaml");
    let region = ZoneRegion { zone: "z".into(), region: "r".into() };
    let updates = parse("saved.yaml".as_ref(), manifest).unwrap().updates;
    state_of(updates.into_iter().chain([Update::ZoneRegion(region)]))
}

#[test]
fn no_part_of_a_file_passes_for_a_whole_one() {
    let text = written(&fixture(0));
    for length in 0..text.len() {
        assert!(Whole::read(text[..length].to_vec()).is_err(), "{length} of {} bytes", text.len());
    }
    Whole::read(text).unwrap();
}

#[test]
fn a_flipped_bit_is_noticed() {
    let text = written(&fixture(0));
    for at in 0..text.len() {
        let mut damaged = text.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(Whole::read(damaged).is_err(), "bit {} of byte {at}", at % 8);
    }
}

#[test]
fn equal_states_have_equal_digests() {
    let digests = [fixture(0), fixture(0), fixture(1)].map(|state| format::digest(&state));
    assert_eq!(digests[0], digests[1]);
    assert_ne!(digests[0], digests[2]);
}

#[test]
fn what_is_damaged_or_of_another_version_or_cluster_is_set_aside() {
    let mut text = written(&fixture(0));
    let half = text.len() / 2;
    text[half] ^= 1;
    let mut foreign = Vec::new();
    let other = Identity { authorities: vec![3], ..cluster() };
    format::write(&fixture(0), other, moment(), &mut foreign).unwrap();
    for (content, what) in [
        (&b""[..], "it is damaged: it has no header"),
        (b"\0\0\0\0\n", "it is damaged: its header"),
        (b"{\"topo_lb_state\":2,\"other\":true}\n", "it is of format version 2"),
        (&text, "it is damaged: its checksum does not match"),
        (&text[..half], "it is damaged: its end is missing"),
        (&foreign, "it is of another cluster"),
    ] {
        let place = Temporary::new();
        fs::create_dir_all(&place.path).unwrap();
        fs::write(place.file(), content).unwrap();
        let said = place.folder().load(NODE, |_| {}).unwrap_err().to_string();
        assert!(said.contains(what) && said.contains("was set aside as"), "{said}");
        assert_eq!(place.names(), ["cluster.state.set-aside"], "{said}");
        assert_eq!(fs::read(place.path.join("cluster.state.set-aside")).unwrap(), content);
        // Refused only once.
        assert!(place.folder().load(NODE, |_| {}).unwrap().is_none());
    }
}

#[test]
fn a_cluster_is_known_by_its_authorities_or_else_by_its_url() {
    let of = |server: &str, authorities: &[u32]| Identity {
        server: server.to_owned(),
        authorities: authorities.to_vec(),
    };
    assert!(of("https://a", &[1]).is_same(&of("https://b", &[1, 2])), "a renewed authority");
    assert!(!of("https://a", &[1]).is_same(&of("https://a", &[2])), "a cluster like another one");
    assert!(of("http://a", &[]).is_same(&of("http://a", &[])));
    assert!(!of("http://a", &[]).is_same(&of("http://b", &[])));
}

#[test]
fn a_state_without_this_node_is_not_used_and_stays() {
    let place = Temporary::new();
    let folder = place.folder();
    folder.save(Arc::new(fixture(0)), moment()).unwrap();
    let error = folder.load("somewhere-else", |_| {}).unwrap_err();
    assert!(matches!(error, StateError::OtherNode { .. }), "{error}");
    assert_eq!(place.names(), ["cluster.state"]);
}

#[test]
fn the_old_state_stays_until_the_new_one_is_whole() {
    let place = Temporary::new();
    let (folder, new) = (place.folder(), place.path.join("cluster.state.new"));
    folder.save(Arc::new(fixture(0)), moment()).unwrap();
    // A folder in the new file's place.
    fs::create_dir(&new).unwrap();
    let error = folder.save(Arc::new(fixture(1)), moment()).unwrap_err().to_string();
    assert!(error.contains("the state cannot be saved as"), "{error}");
    assert!(place.load().1 == fixture(0));
    // The remains of an agent that was killed during a save.
    fs::remove_dir(&new).unwrap();
    fs::write(new, "half").unwrap();
    assert!(place.load().1 == fixture(0));
    folder.save(Arc::new(fixture(1)), moment()).unwrap();
    assert!(place.load().1 == fixture(1));
    assert_eq!(place.names(), ["cluster.state"]);
}

/// A live source that is silent for this time, and then sends a whole fixture.
fn live(after: Duration) -> impl Stream<Item = Event> + Send + Unpin + 'static {
    let (name, text) = FIXTURES[1];
    let updates = parse(name.as_ref(), text.as_bytes()).unwrap().updates;
    let said = updates
        .into_iter()
        .map(Event::Update)
        .chain([Event::Synced, Event::Freshness(Freshness::Live)]);
    let wait = stream::once(async move { tokio::time::sleep(after).await });
    Box::pin(wait.flat_map(move |()| stream::iter(said.clone().collect::<Vec<_>>())))
}

/// The events on freshness and completeness, in order, each with the state by then.
async fn played(saved: Option<super::Saved>, after: Duration) -> Vec<(String, State)> {
    let mut events = Box::pin(before(saved, live(after)));
    let (mut state, mut played) = (State::default(), Vec::new());
    while let Some(event) = events.next().await {
        match event {
            Event::Update(update) => {
                let _ = state.apply(update, NODE);
            }
            Event::Trouble(trouble) => panic!("{trouble}"),
            event => played.push((format!("{event:?}"), state.clone())),
        }
    }
    played
}

fn saved() -> (Temporary, super::Saved) {
    let place = Temporary::new();
    place.folder().save(Arc::new(fixture(0)), moment()).unwrap();
    let saved = place.folder().load(NODE, |_| {}).unwrap().unwrap();
    (place, saved)
}

fn words(played: &[(String, State)]) -> Vec<&str> {
    played.iter().map(|(word, _)| word.split('(').next().unwrap_or_default()).collect()
}

#[tokio::test]
async fn a_server_that_answers_at_once_comes_first() {
    let (_place, saved) = saved();
    let played = played(Some(saved), Duration::ZERO).await;
    assert_eq!(words(&played), ["Synced", "Freshness"]);
    assert_eq!(played[1].0, "Freshness(Live)");
    assert!(played[0].1 == fixture(1));
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_delays_the_saved_state_by_its_head_start_alone() {
    let (_place, saved) = saved();
    let begun = tokio::time::Instant::now();
    let mut events = Box::pin(before(Some(saved), live(Duration::from_secs(3_600))));
    while !matches!(events.next().await, Some(Event::Synced)) {}
    assert_eq!(begun.elapsed(), Duration::from_millis(400));
}

#[tokio::test(start_paused = true)]
async fn without_a_server_it_starts_from_what_was_saved_and_drops_what_is_gone_later() {
    let (_place, saved) = saved();
    let played = played(Some(saved), Duration::from_secs(1)).await;
    assert_eq!(words(&played), ["Freshness", "Synced", "Freshness"], "complete is said once");
    assert!(played[0].0.contains("AsOf"), "{}", played[0].0);
    assert!(played[1].1 == fixture(0), "what was saved");
    assert!(played[2].1 == fixture(1), "what is live, and nothing else");
}

#[tokio::test(start_paused = true)]
async fn with_nothing_saved_it_waits() {
    let played = played(None, Duration::from_millis(700)).await;
    assert_eq!(words(&played), ["Synced", "Freshness"]);
    assert!(played[0].1 == fixture(1));
}

#[tokio::test]
async fn a_change_is_saved_soon_and_once_the_source_is_live() {
    let place = Temporary::new();
    let mut saver = Saver::new(Some(place.folder()));
    saver.changed();
    let idle = Duration::from_millis(1_500);
    assert!(tokio::time::timeout(idle, saver.due()).await.is_err(), "it is known from there");
    saver.observe(Freshness::Live);
    tokio::time::timeout(Duration::from_secs(30), saver.due()).await.expect("nothing is due");
    saver.save(Arc::new(fixture(0)));
    // Waits for the running save, and then for a change.
    assert!(tokio::time::timeout(idle, saver.due()).await.is_err());
    let (as_of, saved) = place.load();
    assert!(as_of.elapsed().unwrap() < Duration::from_secs(60));
    assert!(saved == fixture(0));
}

#[tokio::test]
async fn the_last_state_is_saved_at_the_end_with_the_time_of_the_last_word() {
    let place = Temporary::new();
    let mut saver = Saver::new(Some(place.folder()));
    saver.observe(Freshness::Live);
    saver.observe(Freshness::AsOf(moment()));
    saver.finish(Arc::new(fixture(1))).await;
    assert!(place.load() == (moment(), fixture(1)));
}

#[tokio::test]
async fn what_was_never_live_is_not_saved_again() {
    let place = Temporary::new();
    let mut saver = Saver::new(Some(place.folder()));
    saver.observe(Freshness::AsOf(moment()));
    saver.finish(Arc::new(fixture(1))).await;
    assert_eq!(place.names(), Vec::<String>::new());
}
