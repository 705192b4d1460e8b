//! `/explain`: what `topo-lb explain -o json` prints, for one Service or for all.
//!
//! The report of a large cluster is larger than the agent's memory allows: it is made and sent in
//! pieces, and stopped if the client does not read them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::answers::{in_background, json};
use super::shared::{Admin, plain};
use crate::state_query::View;
use topo_lb_core::cluster::ServiceId;
use topo_lb_core::explain;
use topo_lb_core::peers::status::Status;
use topo_lb_core::topology::Scope;
use topo_lb_kube::heap;

/// Services per piece.
const PIECE: usize = 256;
/// How long a client may take to read a piece.
const PATIENCE: Duration = Duration::from_secs(10);

type Parameters = Vec<(String, String)>;

pub(super) async fn answer(
    State(admin): State<Arc<Admin>>,
    query: Result<Query<Parameters>, QueryRejection>,
) -> Response {
    let wanted = match query.map_err(|error| error.body_text()).and_then(|Query(all)| wanted(&all))
    {
        Ok(wanted) => wanted,
        Err(sentence) => return plain(StatusCode::BAD_REQUEST, sentence),
    };
    if !admin.sources.readiness.borrow().listed {
        let sentence = "half a cluster explains nothing: Services, EndpointSlices and Nodes were \
                        not all listed yet";
        return plain(StatusCode::SERVICE_UNAVAILABLE, sentence.to_owned());
    }
    let Ok(place) = Arc::clone(&admin.long).try_acquire_owned() else {
        let sentence = "another explanation is being made: try again";
        return plain(StatusCode::SERVICE_UNAVAILABLE, sentence.to_owned());
    };
    let view = match admin.sources.state_query.view().await {
        Ok(view) => view,
        Err(busy) => return plain(StatusCode::SERVICE_UNAVAILABLE, busy.to_string()),
    };
    let (node, scope) = (Arc::clone(&admin.sources.node), admin.sources.scope);
    let peers = admin.sources.figures.peers.nodes().unwrap_or_default();
    match wanted {
        Some(wanted) => one(view, node, scope, wanted, peers).await,
        None => all(view, node, scope, peers, place),
    }
}

/// What is asked of one Service.
struct Wanted {
    id: ServiceId,
    /// As the command prints it, in place of JSON.
    as_table: bool,
}

/// The requested Service; `None` is all.
fn wanted(parameters: &[(String, String)]) -> Result<Option<Wanted>, String> {
    let (others, as_table) = match parameters {
        [others @ .., (key, value)] if key == "output" => match value.as_str() {
            "table" if !others.is_empty() => (others, true),
            "table" => return Err("output=table takes service=NAMESPACE/NAME before it".to_owned()),
            other => {
                return Err(format!("{other:?} is no output: /explain has JSON, and output=table"));
            }
        },
        all => (all, false),
    };
    match others {
        [] => Ok(None),
        [(key, value)] if key == "service" => {
            let (namespace, name) = value.split_once('/').unwrap_or_default();
            if namespace.is_empty() || name.is_empty() || name.contains('/') {
                return Err(format!(
                    "{value:?} is not a Service: write it as NAMESPACE/NAME, for example \
                     /explain?service=default/web"
                ));
            }
            let id = ServiceId { namespace: namespace.into(), name: name.into() };
            Ok(Some(Wanted { id, as_table }))
        }
        [(key, _)] => {
            Err(format!("{key:?} is no parameter: /explain takes service=NAMESPACE/NAME"))
        }
        _ => Err("/explain takes service=NAMESPACE/NAME once, or nothing".to_owned()),
    }
}

async fn one(
    view: View,
    node: Arc<str>,
    scope: Scope,
    Wanted { id, as_table }: Wanted,
    peers: Vec<Status>,
) -> Response {
    let made = in_background(move || {
        let ids = std::slice::from_ref(&id);
        let View { state, unprogrammed, exposing, .. } = &view;
        let report =
            explain::report_of_agent(state, &node, scope, ids, unprogrammed, exposing, &peers);
        if !report.unknown.is_empty() {
            return Ok(Err(format!("there is no Service {id}")));
        }
        Ok(Ok(match as_table {
            true => plain(StatusCode::OK, explain::table(&report, false).trim_end().to_owned()),
            false => json(&report),
        }))
    });
    match made.await {
        Ok(Ok(response)) => response,
        Ok(Err(unknown)) => plain(StatusCode::NOT_FOUND, unknown),
        Err(sentence) => plain(StatusCode::INTERNAL_SERVER_ERROR, sentence),
    }
}

fn all(
    view: View,
    node: Arc<str>,
    scope: Scope,
    peers: Vec<Status>,
    place: OwnedSemaphorePermit,
) -> Response {
    let (sender, mut pieces) = mpsc::channel::<io::Result<Bytes>>(1);
    let runtime = Handle::current();
    tokio::task::spawn_blocking(move || {
        // An error cuts the answer short; the client sees that it is incomplete.
        let _ = make(&view, &node, scope, &peers, |piece| {
            let sent = runtime.block_on(tokio::time::timeout(PATIENCE, sender.send(Ok(piece))));
            matches!(sent, Ok(Ok(())))
        })
        .map_err(|error| sender.try_send(Err(error)));
        drop(view);
        heap::trim();
        drop(place);
    });
    let body =
        Body::from_stream(futures::stream::poll_fn(move |context| pieces.poll_recv(context)));
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// Writes the report of all Services, piece by piece.
fn make(
    view: &View,
    node: &str,
    scope: Scope,
    peers: &[Status],
    mut send: impl FnMut(Bytes) -> bool,
) -> io::Result<()> {
    let gone = || io::Error::from(io::ErrorKind::TimedOut);
    let mut piece =
        format!("{{\"node\":{},\"services\":[", serde_json::to_string(node)?).into_bytes();
    let ids: Vec<&ServiceId> = view.state.services().collect();
    let mut is_first = true;
    for ids in ids.chunks(PIECE) {
        let ids: Vec<ServiceId> = ids.iter().map(|&id| id.clone()).collect();
        let View { state, unprogrammed, exposing, .. } = view;
        let report =
            explain::report_of_agent(state, node, scope, &ids, unprogrammed, exposing, peers);
        for port in report.services {
            if !std::mem::replace(&mut is_first, false) {
                piece.push(b',');
            }
            piece.push(b'\n');
            serde_json::to_writer(&mut piece, &port)?;
        }
        if !send(std::mem::take(&mut piece).into()) {
            return Err(gone());
        }
    }
    piece.extend_from_slice(b"]}\n");
    if send(piece.into()) { Ok(()) } else { Err(gone()) }
}
