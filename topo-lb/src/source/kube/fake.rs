//! A fake API server: lists in pages, watches that resume, and failures.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::connect::connect_with;
use super::timing::Timing;
use super::{KubeTarget, Server};

/// Shorter than [`Timing::DEFAULT`].
pub(super) const TIMING: Timing = Timing {
    connect: Duration::from_secs(2),
    read: Duration::from_secs(1),
    settling: Duration::from_millis(300),
    grace: Duration::from_millis(600),
    renewal: Duration::ZERO,
};

#[derive(Default)]
pub(super) struct State {
    /// Objects by path, such as `/api/v1/nodes`. Other paths give 404.
    lists: BTreeMap<String, Vec<Value>>,
    /// Path and line of every change; the index is its resource version minus 1.
    log: Vec<(String, String)>,
    /// Watches from an older resource version are refused as expired.
    oldest: usize,
    /// Paths that are answered with this status.
    pub(super) refuse: BTreeMap<String, (u16, &'static str)>,
    /// The answer to requests for all objects of this path; those for one object are served.
    pub(super) refuse_all: Option<(&'static str, u16, &'static str)>,
    /// All requests: path with query, and the header `accept`.
    pub(super) requests: Vec<(String, String)>,
    /// Requests and watches get no answer; connections stay open.
    pub(super) stalled: bool,
    /// Sends half of the next watch event, and then nothing more.
    pub(super) says_half: bool,
    /// Expired watches are answered with status 410, not begun and ended with an error event.
    pub(super) refuses_expired: bool,
    /// Watches end when they begin.
    pub(super) ends_watches: bool,
    /// Other requests get 401.
    pub(super) token: Option<&'static str>,
    pub(super) retry_after: Option<&'static str>,
}

pub(super) struct Fake {
    pub(super) state: Arc<Mutex<State>>,
    moved: watch::Sender<u64>,
    /// Counts calls of [`Fake::hang_up`].
    broken: watch::Sender<u64>,
    pub(super) server: Server,
}

impl Fake {
    /// A server with these paths and no objects.
    pub(super) async fn new(paths: &[&str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let lists = paths.iter().map(|path| ((*path).to_owned(), Vec::new())).collect();
        let state = Arc::new(Mutex::new(State { lists, ..State::default() }));
        let (moved, broken) = (watch::Sender::new(0), watch::Sender::new(0));
        let serving = (Arc::clone(&state), moved.clone(), broken.clone());
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let (state, moved, broken) = serving.clone();
                tokio::spawn(async move {
                    let mut broken = broken.subscribe();
                    tokio::select! {
                        _ = serve(connection, state, moved) => {}
                        _ = broken.changed() => {}
                    }
                });
            }
        });
        // Most tests have long silences.
        let timing = Timing { read: Timing::DEFAULT.read, ..TIMING };
        let server = connect_with(&KubeTarget::Server(url), timing).await.unwrap();
        Self { state, moved, broken, server }
    }

    /// Adds, changes or deletes an object (`ADDED`, `MODIFIED`, `DELETED`).
    pub(super) fn change(&self, path: &str, how: &str, mut object: Value) {
        let mut state = self.state.lock().unwrap();
        let version = state.log.len() + 1;
        object["metadata"]["resourceVersion"] = version.to_string().into();
        let id = |object: &Value| {
            (object["metadata"]["namespace"].clone(), object["metadata"]["name"].clone())
        };
        let list = state.lists.get_mut(path).unwrap();
        list.retain(|other| id(other) != id(&object));
        if how != "DELETED" {
            list.push(object.clone());
        }
        // Keys are sorted: the object comes before the type, unlike in a real server.
        let line = json!({"type": how, "object": object}).to_string();
        state.log.push((path.to_owned(), line));
        drop(state);
        self.moved.send_modify(|moved| *moved += 1);
    }

    /// Replaces objects without telling watches, and expires all earlier versions.
    pub(super) fn forget(&self, path: &str, objects: Vec<Value>) {
        let mut state = self.state.lock().unwrap();
        state.lists.insert(path.to_owned(), objects);
        state.log.push((String::new(), String::new()));
        state.oldest = state.log.len();
    }

    pub(super) fn hang_up(&self) {
        self.broken.send_modify(|broken| *broken += 1);
    }

    pub(super) fn requested(&self, part: &str) -> usize {
        let state = self.state.lock().unwrap();
        state.requests.iter().filter(|(path, _)| path.contains(part)).count()
    }
}

async fn serve(
    connection: TcpStream,
    state: Arc<Mutex<State>>,
    moved: watch::Sender<u64>,
) -> std::io::Result<()> {
    let mut connection = BufReader::new(connection);
    loop {
        let (mut request, mut accept, mut token) = (String::new(), String::new(), None);
        if connection.read_line(&mut request).await? == 0 {
            return Ok(());
        }
        loop {
            let mut header = String::new();
            connection.read_line(&mut header).await?;
            if let Some(value) = header.strip_prefix("accept: ") {
                value.trim().clone_into(&mut accept);
            }
            if let Some(value) = header.strip_prefix("authorization: Bearer ") {
                token = Some(value.trim().to_owned());
            }
            if header.trim().is_empty() {
                break;
            }
        }
        let target = request.split_whitespace().nth(1).unwrap_or_default().to_owned();
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let path = path.replace("//", "/");
        let query: BTreeMap<_, _> = query.split('&').filter_map(|it| it.split_once('=')).collect();
        while state.lock().unwrap().stalled {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let answer = {
            let mut state = state.lock().unwrap();
            state.requests.push((target.clone(), accept));
            let from = query.get("resourceVersion").and_then(|from| from.parse::<usize>().ok());
            let expired = from.is_some_and(|from| from < state.oldest);
            if state.token.is_some() && state.token != token.as_deref() {
                Some(status(401, "Unauthorized"))
            } else if expired && state.refuses_expired && query.contains_key("watch") {
                Some(status(410, "too old resource version"))
            } else if let Some((code, message)) = state.refuse.get(&path).copied() {
                Some(status(code, message))
            } else if let Some((_, code, message)) =
                state.refuse_all.filter(|(all, ..)| *all == path && selected(&query).is_none())
            {
                Some(status(code, message))
            } else if !state.lists.contains_key(&path) {
                Some(status(404, "the server could not find the requested resource"))
            } else if query.contains_key("watch") {
                None
            } else {
                Some((200, page(&state, &path, &query)))
            }
        };
        let Some((code, body)) = answer else {
            let from = query.get("resourceVersion").and_then(|from| from.parse().ok());
            let name = selected(&query);
            return stream(connection, &state, &path, name, from.unwrap_or(0), moved).await;
        };
        let body = body.to_string();
        let retry_after = state.lock().unwrap().retry_after.filter(|_| code != 200);
        let retry_after = retry_after.map(|it| format!("retry-after: {it}\r\n"));
        let head = format!(
            "HTTP/1.1 {code} X\r\ncontent-type: application/json\r\n{}content-length: {}\r\n\r\n",
            retry_after.unwrap_or_default(),
            body.len()
        );
        connection.write_all((head + &body).as_bytes()).await?;
    }
}

fn status(code: u16, message: &str) -> (u16, Value) {
    let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                      "message": message, "reason": "Test", "code": code});
    (code, body)
}

/// The name in the field selector, if any.
fn selected<'a>(query: &BTreeMap<&str, &'a str>) -> Option<&'a str> {
    query.get("fieldSelector")?.strip_prefix("metadata.name%3D")
}

fn page(state: &State, path: &str, query: &BTreeMap<&str, &str>) -> Value {
    let number = |key: &str| query.get(key).and_then(|it| it.parse::<usize>().ok());
    let (start, limit) = (number("continue").unwrap_or(0), number("limit").unwrap_or(usize::MAX));
    let name = selected(query);
    let mut all = state.lists[path].clone();
    all.retain(|object| name.is_none_or(|name| object["metadata"]["name"] == name));
    let end = start.saturating_add(limit).min(all.len());
    let token = if end < all.len() { end.to_string() } else { String::new() };
    json!({
        "kind": "TestList", "apiVersion": "v1",
        "metadata": {"resourceVersion": state.log.len().to_string(), "continue": token},
        "items": if all.is_empty() { Value::Null } else { all[start..end].into() },
    })
}

async fn stream(
    mut connection: BufReader<TcpStream>,
    state: &Mutex<State>,
    path: &str,
    name: Option<&str>,
    mut from: usize,
    moved: watch::Sender<u64>,
) -> std::io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\
                transfer-encoding: chunked\r\n\r\n";
    connection.write_all(head.as_bytes()).await?;
    if state.lock().unwrap().ends_watches {
        return connection.write_all(b"0\r\n\r\n").await;
    }
    let mut moved = moved.subscribe();
    loop {
        while state.lock().unwrap().stalled {
            std::future::pending::<()>().await;
        }
        let (lines, expired): (Vec<String>, bool) = {
            let state = state.lock().unwrap();
            let is_meant = |line: &str| {
                let Some(name) = name else { return true };
                let line: Value = serde_json::from_str(line).unwrap();
                line["object"]["metadata"]["name"] == name
            };
            let new = state.log.iter().skip(from);
            let new = new.filter(|(of, line)| of == path && is_meant(line));
            (new.map(|(_, line)| line.clone()).collect(), from < state.oldest)
        };
        if expired {
            let (_, object) = status(410, "too old resource version");
            let line = json!({"type": "ERROR", "object": object}).to_string() + "\n";
            let last = format!("{:x}\r\n{line}\r\n0\r\n\r\n", line.len());
            return connection.write_all(last.as_bytes()).await;
        }
        from = state.lock().unwrap().log.len().max(from);
        for line in lines {
            let chunk = format!("{:x}\r\n{line}\n\r\n", line.len() + 1);
            if std::mem::take(&mut state.lock().unwrap().says_half) {
                connection.write_all(&chunk.as_bytes()[..chunk.len() / 2]).await?;
                std::future::pending::<()>().await;
            }
            connection.write_all(chunk.as_bytes()).await?;
        }
        if moved.changed().await.is_err() {
            return Ok(());
        }
    }
}
