//! The cluster that a command is about, and the Services in it that were named.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use topo_lb::aside::say;
use topo_lb::cli::{ScopeArgs, SourceArgs};
use topo_lb::commands::top;
use topo_lb_core::cluster::{ServiceId, State, Update};
use topo_lb_core::explain::some;
use topo_lb_core::topology::Scope;
use topo_lb_kube::source::clock::now;
use topo_lb_kube::source::kube::KubeTarget;
use topo_lb_kube::source::{self, Listing};

use crate::block_on;

/// The current state of the cluster; with Namespaces and Pods if `with_clients` is set.
pub(crate) fn read_cluster(source: &SourceArgs, with_clients: bool) -> anyhow::Result<Listing> {
    if let Some(path) = &source.manifests {
        return read_manifests(path);
    }
    read_api_server(&source.target(), with_clients)
}

pub(crate) fn read_api_server(target: &KubeTarget, with_clients: bool) -> anyhow::Result<Listing> {
    block_on(async {
        let server = source::kube::connect(target).await?;
        let mut listing = source::kube::read(&server).await?;
        if with_clients && let Err(error) = source::kube::add_metadata(&server, &mut listing).await
        {
            say(format_args!("meshes are not looked for: {error}"));
        }
        anyhow::Ok(listing)
    })?
}

/// The objects of a file or folder; of standard input, if `path` is `-`.
pub(crate) fn read_manifests(path: &Path) -> anyhow::Result<Listing> {
    Ok(if path == Path::new("-") {
        let mut content = Vec::new();
        std::io::stdin().read_to_end(&mut content).context("cannot read standard input")?;
        source::file::parse(Path::new("standard input"), &content)?
    } else {
        source::file::read(path)?
    })
}

/// Which Services agents handle, by the flag or by what the agents behind `target` are told; `None` if neither
/// says it.
pub(crate) fn known_scope(args: &ScopeArgs, target: Option<KubeTarget>) -> Option<Scope> {
    if args.scope.is_some() {
        return args.scope;
    }
    let scope = block_on(top::scope(&target?, &args.pods.agents_namespace)).ok()??;
    if scope == Scope::OptIn {
        say("shown as the cluster's agents decide, whose scope is opt-in");
    }
    Some(scope)
}

/// The state of a whole cluster, as `node` sees it.
pub(crate) fn cluster(updates: Vec<Update>, node: &str) -> State {
    let mut state = State::default();
    let time = Update::Time(now());
    for update in updates.into_iter().chain([time]) {
        // The state was empty: everything has changed.
        let _ = state.apply(update, node);
    }
    state
}

/// The Services with these names, or all if there are none.
pub(crate) fn service_ids(names: &[String], state: &State) -> anyhow::Result<Vec<ServiceId>> {
    if names.is_empty() {
        return Ok(state.services().cloned().collect());
    }
    names.iter().map(|name| service_id(name, state)).collect()
}

pub(crate) fn service_id(text: &str, state: &State) -> anyhow::Result<ServiceId> {
    let Some((namespace, name)) = text.split_once('/') else {
        bail!("{text:?} is not a Service: write it as NAMESPACE/NAME, for example default/{text}");
    };
    let id = ServiceId { namespace: namespace.into(), name: name.into() };
    if state.service(&id).is_none() {
        bail!("there is no Service {id}; without names, explain shows every Service there is");
    }
    Ok(id)
}

/// Says on standard error of which Services nothing is shown, and why.
pub(crate) fn say_skipped<'a>(state: &State, ids: impl IntoIterator<Item = &'a ServiceId>) {
    for id in ids {
        if let Some(why) = state.service(id).and_then(|service| service.skipped) {
            say(format_args!("{id} is skipped, {}", <&str>::from(why)));
        }
    }
}

/// That no Node has a label with this value, and which values there are.
pub(crate) fn unknown((key, value): (&str, &str), state: &State) -> Option<String> {
    let mut values: BTreeSet<&str> = BTreeSet::new();
    for (_, labels) in state.nodes() {
        values.extend(labels.get(key).map(|own| &**own));
    }
    if values.contains(value) {
        return None;
    }
    let values: Vec<&str> = values.into_iter().collect();
    Some(match &values[..] {
        [] => format!("no Node has the label {key}"),
        values => {
            format!("no Node has {key}={value}; there are {}", some(values.iter().copied(), 8))
        }
    })
}
