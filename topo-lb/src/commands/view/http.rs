//! The server of the page: files in this program, and a stream of pictures.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use futures::{Stream, stream};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::host::is_meant;
use super::picture::{Asked, Sent, Viewer};
use super::token::Token;
use topo_lb_agent::serve::door::{self, Rooms};
use topo_lb_agent::serve::{descriptors, waiting};

/// The path for readiness probes.
const READY: &str = "/ready";
/// Pages at the same time. A browser has at most six streams of one server.
const PAGES: usize = 64;
/// The pause between two pictures of a page.
const PAUSE: Duration = Duration::from_millis(90);

/// What the page is made of: path, type, content.
const FILES: [(&str, &str, &str); 14] = [
    ("/", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("/style.css", "text/css; charset=utf-8", include_str!("page/style.css")),
    ("/page.js", SCRIPT, include_str!("page/page.js")),
    ("/map.js", SCRIPT, include_str!("page/map.js")),
    ("/service.js", SCRIPT, include_str!("page/service.js")),
    ("/lines.js", SCRIPT, include_str!("page/lines.js")),
    ("/time.js", SCRIPT, include_str!("page/time.js")),
    ("/link.js", SCRIPT, include_str!("page/link.js")),
    ("/state.js", SCRIPT, include_str!("page/state.js")),
    ("/csv.js", SCRIPT, include_str!("page/csv.js")),
    ("/picture.js", SCRIPT, include_str!("page/picture.js")),
    ("/save.js", SCRIPT, include_str!("page/save.js")),
    ("/format.js", SCRIPT, include_str!("page/format.js")),
    ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
];
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Nothing from elsewhere, nothing inline, and no text that becomes markup. `blob:` is what the page itself made:
/// its map, to be saved.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

#[derive(Clone)]
struct Server {
    viewer: Arc<Viewer>,
    pages: Arc<Semaphore>,
}

/// Most connections that are answered: pages, and as many short answers. Beyond it, and beyond the limit
/// of those that have not asked yet, the oldest one of the peer with most makes way.
const ANSWERED: usize = 2 * PAGES;

/// Serves for ever.
pub(super) async fn serve(listener: TcpListener, viewer: Viewer, readers: Readers) {
    let rooms = Rooms::of_streams(waiting(descriptors()), ANSWERED);
    door::serve(listener, router(viewer, readers), rooms).await;
}

/// Who gets an answer.
#[derive(Debug, Default)]
pub(super) struct Readers {
    /// Names that the server answers to beside addresses and `localhost`. With a token: to all, as a page of
    /// somebody else does not know it.
    pub(super) hosts: Vec<String>,
    /// What a reader has to know; `None`: nothing.
    pub(super) token: Option<Token>,
}

fn router(viewer: Viewer, readers: Readers) -> Router {
    let server = Server { viewer: Arc::new(viewer), pages: Arc::new(Semaphore::new(PAGES)) };
    let files = FILES.into_iter().fold(Router::new(), |router, (path, kind, content)| {
        router.route(path, get(async move || ([(header::CONTENT_TYPE, kind)], content)))
    });
    let readers = Arc::new(readers);
    files
        .route("/picture", get(picture))
        .route("/pictures", get(pictures))
        .route(READY, get(ready))
        .fallback(async || (StatusCode::NOT_FOUND, "there is no such page: open /\n"))
        .layer(middleware::from_fn(move |request: Request, next: Next| {
            let readers = Arc::clone(&readers);
            async move { guarded(request, next, &readers).await }
        }))
        .with_state(server)
}

/// Answers only requests that were meant for this server, and says how little the page may do.
async fn guarded(request: Request, next: Next, readers: &Readers) -> Response {
    let headers = request.headers();
    let text = |name: HeaderName| headers.get(name).and_then(|text| text.to_str().ok());
    // A browser says whose page asks. A picture costs this server work, even if the other page cannot read it.
    let is_of_other_page = request.uri().path() != "/"
        && matches!(
            text(HeaderName::from_static("sec-fetch-site")),
            Some("cross-site" | "same-site")
        );
    let is_called = |host| is_meant(host, &readers.hosts);
    let is_meant = readers.token.is_some() || text(header::HOST).is_some_and(is_called);
    // The kubelet knows no token, and learns nothing.
    let is_open = readers.token.is_none() || request.uri().path() == READY;
    let is_admitted = is_open
        || readers.token.as_ref().is_some_and(|token| token.admits(text(header::AUTHORIZATION)));
    let mut response = if is_of_other_page {
        let sentence = "another page asks for this: open the page of this server itself\n";
        (StatusCode::FORBIDDEN, sentence).into_response()
    } else if !is_admitted {
        // A browser asks for a password: the token, with any user.
        let challenge =
            [(header::WWW_AUTHENTICATE, "Basic realm=\"topo-lb view\", charset=\"UTF-8\"")];
        let sentence = "the token is needed: as password, or as `Authorization: Bearer TOKEN`\n";
        (StatusCode::UNAUTHORIZED, challenge, sentence).into_response()
    } else if is_meant {
        next.run(request).await
    } else {
        let sentence = "this server is not called by that name: open it by its address, as localhost, \
                        or give its name with --host\n";
        (StatusCode::MISDIRECTED_REQUEST, sentence).into_response()
    };
    let headers = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Whether the cluster has been listed.
async fn ready(State(server): State<Server>) -> Response {
    match &server.viewer.cluster.borrow().begins {
        None => "ready\n".into_response(),
        Some(begins) => (StatusCode::SERVICE_UNAVAILABLE, format!("{begins}\n")).into_response(),
    }
}

/// One picture, for scripts.
async fn picture(State(server): State<Server>, Query(asked): Query<Asked>) -> Response {
    match make(server.viewer, asked, Sent::default()).await {
        Some((text, _)) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// A picture now, and one after each change.
async fn pictures(State(server): State<Server>, Query(asked): Query<Asked>) -> Response {
    let Ok(permit) = server.pages.try_acquire_owned() else {
        let sentence = format!("{PAGES} pages are open: close one\n");
        return (StatusCode::SERVICE_UNAVAILABLE, sentence).into_response();
    };
    let events = events(server.viewer, asked);
    let events = stream::StreamExt::map(events, move |event| {
        let _open = &permit;
        Ok::<_, Infallible>(event)
    });
    Sse::new(events).keep_alive(KeepAlive::default()).into_response()
}

fn events(viewer: Arc<Viewer>, asked: Asked) -> impl Stream<Item = Event> {
    let (looks, cluster) = (viewer.looks.newest.clone(), viewer.cluster.clone());
    let begin = (viewer, looks, cluster, Sent::default(), true);
    // The next picture is made when the last one is on its way, so a browser that does not read costs
    // one picture, and then gets the newest.
    stream::unfold(begin, move |(viewer, mut looks, mut cluster, sent, is_first)| {
        let asked = asked.clone();
        async move {
            if !is_first {
                sleep(PAUSE).await;
                tokio::select! {
                    changed = looks.changed() => changed.ok()?,
                    changed = cluster.changed() => changed.ok()?,
                }
            }
            looks.mark_unchanged();
            cluster.mark_unchanged();
            let (text, sent) = make(Arc::clone(&viewer), asked, sent).await?;
            Some((Event::default().data(text), (viewer, looks, cluster, sent, false)))
        }
    })
}

/// Makes a picture on a thread of its own, so that no other request waits for it.
async fn make(viewer: Arc<Viewer>, asked: Asked, mut sent: Sent) -> Option<(String, Sent)> {
    // A client that is gone by now costs nothing.
    let permit = Arc::clone(&viewer.making).acquire_owned().await.ok()?;
    let made = spawn_blocking(move || {
        let _making = permit;
        let text = viewer.picture(&asked, &mut sent);
        text.map(|text| (text, sent))
    });
    made.await.ok()?.ok()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::body::Body;
    use futures::StreamExt as _;
    use http_body_util::BodyExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::sync::watch;
    use tower::ServiceExt as _;

    use super::*;
    use crate::commands::view::cluster::Cluster;
    use crate::{commands::view::look::Looks, commands::view::newest::Newest};
    use topo_lb_core::topology::Scope;

    type Senders = (watch::Sender<Arc<Newest>>, watch::Sender<Arc<Cluster>>);

    fn viewer() -> (Viewer, Senders) {
        let (looks, newest) = watch::channel(Arc::default());
        let (clusters, cluster) = watch::channel(Arc::default());
        let histories = Arc::default();
        let viewer = Viewer::new(
            cluster,
            Looks { newest, interval: Duration::from_secs(2), histories },
            "zone".to_owned(),
            Some(Scope::All),
        );
        (viewer, (looks, clusters))
    }

    async fn get(host: &str, path: &str) -> Response {
        let request = Request::get(path).header("host", host).body(Body::empty()).unwrap();
        router(viewer().0, Readers::default()).oneshot(request).await.unwrap()
    }

    #[tokio::test]
    async fn with_a_token_only_who_knows_it_reads_by_any_name() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0123456789abcdef").unwrap();
        let token = || Some(Token::of(file.path().to_owned()).unwrap());
        let ask = async |path: &str, authorization: Option<&str>| {
            let request = Request::get(path).header("host", "view.example");
            let request = match authorization {
                Some(value) => request.header("authorization", value),
                None => request,
            };
            let readers = Readers { hosts: Vec::new(), token: token() };
            let request = request.body(Body::empty()).unwrap();
            router(viewer().0, readers).oneshot(request).await.unwrap()
        };
        for path in ["/", "/page.js", "/picture", "/pictures", "/nothing"] {
            for wrong in [None, Some("Bearer 0123456789abcdee")] {
                let refused = ask(path, wrong).await;
                assert_eq!(refused.status(), StatusCode::UNAUTHORIZED, "{path}");
                assert!(refused.headers().contains_key(header::WWW_AUTHENTICATE), "{path}");
                let body = refused.into_body().collect().await.unwrap().to_bytes();
                assert!(body.starts_with(b"the token is needed"), "{path}");
            }
        }
        for path in ["/", "/picture", "/pictures"] {
            let answer = ask(path, Some("Bearer 0123456789abcdef")).await;
            assert_eq!(answer.status(), StatusCode::OK, "{path}");
        }
        // Nothing has been listed, and the kubelet has no token.
        assert_eq!(ask("/ready", None).await.status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn a_name_that_somebody_else_leads_here_gets_nothing() {
        for path in ["/", "/picture", "/pictures"] {
            let refused = get("evil.example:19878", path).await;
            assert_eq!(refused.status(), StatusCode::MISDIRECTED_REQUEST, "{path}");
            assert_eq!(get("127.0.0.1:19878", path).await.status(), StatusCode::OK, "{path}");
        }
        let request = Request::get("/").body(Body::empty()).unwrap();
        let refused = router(viewer().0, Readers::default()).oneshot(request).await.unwrap();
        assert_eq!(refused.status(), StatusCode::MISDIRECTED_REQUEST, "without a name");
    }

    #[tokio::test]
    async fn pages_of_others_make_no_pictures() {
        for (site, path, status) in [
            ("cross-site", "/picture", StatusCode::FORBIDDEN),
            ("same-site", "/pictures", StatusCode::FORBIDDEN),
            ("same-origin", "/picture", StatusCode::OK),
            // Somebody typed the address, or follows a link.
            ("none", "/picture", StatusCode::OK),
            ("cross-site", "/", StatusCode::OK),
        ] {
            let request = Request::get(path).header("host", "localhost");
            let request = request.header("sec-fetch-site", site).body(Body::empty()).unwrap();
            let answer = router(viewer().0, Readers::default()).oneshot(request).await.unwrap();
            assert_eq!(answer.status(), status, "{site} {path}");
        }
    }

    #[tokio::test]
    async fn every_answer_says_how_little_a_page_may_do() {
        for path in ["/", "/page.js", "/picture", "/nothing"] {
            let answer = get("localhost", path).await;
            let policy = answer.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
            assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
            assert!(!policy.contains("unsafe"), "{policy}");
        }
    }

    /// A connection that has sent this.
    async fn said(address: SocketAddr, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    /// The status of the answer on a connection that stays open; 0 if it was closed without one.
    async fn status(stream: &mut TcpStream) -> u16 {
        let mut head = [0; 12];
        match stream.read_exact(&mut head).await {
            Ok(_) => std::str::from_utf8(&head[9..]).unwrap().parse().unwrap(),
            Err(_) => 0,
        }
    }

    const PAGE: &str = "GET /pictures HTTP/1.1\r\nHost: localhost\r\n\r\n";

    #[tokio::test]
    async fn neither_half_requests_nor_pages_cost_more_than_a_fixed_number_of_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (viewer, _senders) = viewer();
        let rooms = Rooms::of_streams(8, ANSWERED);
        tokio::spawn(door::serve(listener, router(viewer, Readers::default()), rooms));
        let mut half = Vec::new();
        for _ in 0..300 {
            half.push(said(address, &PAGE[..9]).await);
        }
        let mut pages = Vec::new();
        for _ in 0..PAGES {
            let mut page = said(address, PAGE).await;
            assert_eq!(status(&mut page).await, 200);
            pages.push(page);
        }
        assert_eq!(status(&mut said(address, PAGE).await).await, 503);
        // All but the newest have been closed: without room for them there is no deadline to wait for.
        for stream in &mut half[..300 - 8] {
            assert_eq!(status(stream).await, 0);
        }
        // A page that is closed makes room for another one.
        drop(pages.pop());
        let reopened = async { while status(&mut said(address, PAGE).await).await != 200 {} };
        tokio::time::timeout(Duration::from_secs(30), reopened).await.unwrap();
    }

    #[test]
    fn the_page_has_neither_inline_scripts_nor_markup_from_text_nor_other_servers() {
        for (path, _, content) in FILES {
            for wrong in
                ["innerHTML", "insertAdjacentHTML", "document.write", "eval(", "onclick=", "style="]
            {
                assert!(!content.contains(wrong), "{path} has {wrong}");
            }
            let own = content.replace("http://www.w3.org/2000/svg", "");
            assert!(!own.contains("://"), "{path} names another server");
        }
    }

    #[tokio::test]
    async fn a_picture_is_json_whatever_is_asked_for() {
        for query in ["", "?by=%00&service=/&filter=%3Cimg%3E&sort=none", "?service=a/b&by="] {
            let answer = get("localhost", &format!("/picture{query}")).await;
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            let picture: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(picture["now"]["look"], 0, "{picture}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_that_did_not_read_gets_the_newest_picture_and_no_other() {
        let (viewer, (looks, _clusters)) = viewer();
        let mut events = Box::pin(events(Arc::new(viewer), Asked::default()));
        assert!(events.next().await.is_some());
        for look in 1..=1_000 {
            looks.send_replace(Arc::new(Newest { look, ..Newest::default() }));
        }
        let event = format!("{:?}", events.next().await.unwrap());
        assert!(event.contains("1000"), "{event}");
        let more = tokio::time::timeout(Duration::from_secs(60), events.next()).await;
        assert!(more.is_err(), "nothing has changed since");
    }
}
