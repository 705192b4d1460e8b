use std::sync::Mutex;

use super::*;
use crate::source::kube::fake::{nowhere, refused};

const MINUTES: Duration = Duration::from_secs(600);

/// A watch that gets `changes`, without a server.
async fn watch(
    changes: impl Stream<Item = Result<Reflected<Service>, Failure>> + Send + 'static,
    settling: Duration,
) -> Watch<Service> {
    let mut watch = Watch::new(nowhere().await, Reach::all(), &WatchAggregator::new(settling));
    watch.changes = changes.boxed();
    watch
}

/// The pauses between attempts in the ten minutes from the first failure, and the events, of a watch that
/// gets `changes`.
async fn pauses(
    changes: impl Stream<Item = Result<Reflected<Service>, Failure>> + Send + 'static,
    settling: Duration,
) -> (Vec<Duration>, Vec<Event>) {
    let failures = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&failures);
    let changes = changes.inspect(move |change| {
        if change.is_err() {
            seen.lock().unwrap().push(Instant::now());
        }
    });
    let watch = watch(changes, settling).await;
    let (until, mut events) = (Instant::now() + MINUTES, Vec::new());
    let mut watch = std::pin::pin!(watch.events());
    while let Ok(Some(event)) = tokio::time::timeout_at(until, watch.next()).await {
        events.push(event);
    }
    let failures = failures.lock().unwrap();
    (failures.windows(2).map(|two| two[1] - two[0]).collect(), events)
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_never_reached_is_tried_every_three_seconds() {
    let nobody = || {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        Err(Failure::List(::kube::Error::Service(refused.into())))
    };
    let (pauses, said) = pauses(stream::repeat_with(nobody), Duration::ZERO).await;
    let longest = pauses.iter().max().unwrap();
    assert!(*longest <= Duration::from_millis(3_002), "{longest:?}");
    // Half of a pause is random: 1.5 s to 3 s.
    assert!((190..=420).contains(&pauses.len()), "{} pauses in ten minutes", pauses.len());
    assert_eq!(said.len(), 1, "{said:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_without_time_is_tried_every_eight_seconds_and_named_once() {
    let listed = stream::iter([Ok(Reflected::Begin), Ok(Reflected::Complete)]);
    let mut number = 0;
    let refusals = stream::repeat_with(move || {
        number += 1;
        let code = if number % 2 == 0 { 429 } else { 503 };
        Err(Failure::Begin(refused(code, number)))
    });
    let (pauses, said) = pauses(listed.chain(refusals), Duration::from_secs(20)).await;
    let longest = pauses.iter().max().unwrap();
    assert!(*longest <= Duration::from_millis(8_002), "{longest:?}");
    // Half of a pause is random: 4 s to 8 s, and the first few are shorter.
    assert!((70..200).contains(&pauses.len()), "{} pauses in ten minutes", pauses.len());
    let troubles = said.iter().filter(|event| matches!(event, Event::Unserved(_))).count();
    assert_eq!(troubles, 1, "{said:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_went_away_is_tried_every_half_minute() {
    let listed = stream::iter([Ok(Reflected::Begin), Ok(Reflected::Complete)]);
    let nobody = || {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        Err(Failure::Begin(::kube::Error::Service(refused.into())))
    };
    let changes = listed.chain(stream::repeat_with(nobody));
    let (pauses, _) = pauses(changes, Duration::ZERO).await;
    let longest = pauses.iter().max().unwrap();
    assert!((8..=30).contains(&longest.as_secs()), "{longest:?}");
    // 15 s to 30 s, and the first few are shorter.
    assert!((20..60).contains(&pauses.len()), "{} pauses in ten minutes", pauses.len());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_watches_as_they_begin_is_not_asked_without_pause() {
    let listed = stream::iter([Ok(Reflected::Begin), Ok(Reflected::Complete)]);
    let short = stream::repeat_with(|| Err(Failure::Short)).take(40);
    let last = stream::iter([Ok(Reflected::Complete)]);
    let watch = watch(listed.chain(short).chain(last), Duration::ZERO).await;
    let begun = Instant::now();
    let mut events = std::pin::pin!(watch.events());
    let mut listings = 0;
    while listings < 2 {
        let event = events.next().await;
        listings +=
            usize::from(matches!(event, Some(Event::Update(Update::Service(Change::Listed(..))))));
    }
    assert!(begun.elapsed() > MINUTES / 2, "{:?} for 40 watches", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_version_is_missing_if_a_request_says_so_and_not_if_a_watch_ends_so() {
    let mut watch =
        Watch::<Slice>::new(nowhere().await, Reach::all(), &WatchAggregator::new(Duration::ZERO));
    watch.phase = Phase::Watching;
    watch.failed(&Failure::Told(refused(404, 0))).await;
    assert_eq!(watch.version, 0);
    assert!(matches!(watch.phase, Phase::Watching));
    assert!(matches!(watch.attempts, Attempts::Failing { .. }), "it pauses");
    watch.failed(&Failure::Begin(refused(404, 1))).await;
    assert_eq!(watch.version, 1);
}
