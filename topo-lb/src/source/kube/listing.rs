//! All objects, read once.

use ::kube::Api;
use ::kube::api::ListParams;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::error::is_missing;
use super::reflect::{Change, Failure, Query, changes};
use super::resource::StateKind;
use super::{KubeError, Server};
use crate::cluster::{self, Node, Service, Slice, Update};
use crate::source::object::{Client, Clients, POD_SELECTORS};
use crate::source::{Fault, Listing};

/// Lists all Nodes, EndpointSlices and Services.
///
/// # Errors
/// A request fails, or an answer cannot be parsed. Unreadable objects are returned as faults.
pub async fn read(server: &Server) -> Result<Listing, KubeError> {
    let (nodes, slices, services) =
        futures::try_join!(all::<Node>(server), all::<Slice>(server), all::<Service>(server))?;
    let (updates, faults): (Vec<_>, Vec<_>) = [nodes, slices, services].into_iter().unzip();
    Ok(Listing { updates, faults: faults.concat(), clients: None })
}

/// Lists Namespaces, and the Pods of service meshes, for their metadata about clients.
///
/// # Errors
/// A request fails: for example, the user may not list Namespaces or Pods.
pub async fn clients(server: &Server) -> Result<Clients, KubeError> {
    let mut all = Clients::default();
    let mut add = |ObjectMeta { name, namespace, labels, annotations, .. }: ObjectMeta| {
        let (name, labels) = (name.unwrap_or_default(), labels.unwrap_or_default());
        let annotations = annotations.unwrap_or_default();
        // A Namespace is in none.
        all.add(match namespace {
            Some(namespace) => Client::new(&namespace, Some(&name), &labels, &annotations),
            None => Client::new(&name, None, &labels, &annotations),
        });
    };
    metadata::<Namespace>(server, "namespaces", None).await?.into_iter().for_each(&mut add);
    for selector in POD_SELECTORS {
        metadata::<Pod>(server, "pods", Some(selector)).await?.into_iter().for_each(&mut add);
    }
    // Two selectors may find the same Pod.
    all.meshed.sort();
    all.meshed.dedup();
    all.unclear.sort();
    all.unclear.dedup();
    Ok(all)
}

async fn metadata<T>(
    server: &Server,
    plural: &str,
    selector: Option<&str>,
) -> Result<Vec<ObjectMeta>, KubeError>
where
    T: ::kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let api = Api::<T>::all(server.client());
    let mut params = ListParams::default().limit(500);
    params.label_selector = selector.map(str::to_owned);
    let mut all = Vec::new();
    loop {
        let page = api
            .list_metadata(&params)
            .await
            .map_err(|error| KubeError::of(&error, server.url(), "list", plural.to_owned()))?;
        all.extend(page.items.into_iter().map(|item| item.metadata));
        match page.metadata.continue_ {
            Some(token) if !token.is_empty() => params.continue_token = Some(token),
            _ => return Ok(all),
        }
    }
}

async fn all<T: StateKind>(server: &Server) -> Result<(Update, Vec<Fault>), KubeError> {
    let list = |version| {
        changes::<T>(server, Query { version, selector: None, cached: false, seconds: 0 })
    };
    let (mut all, mut faults) = (Vec::new(), Vec::new());
    let (mut version, mut listing) = (0, list(0));
    loop {
        match listing.next().await {
            Some(Ok(Change::Listed(object))) => match object.object {
                Ok((object, skipped)) => {
                    faults.extend(skipped.as_ref().and_then(Fault::skipped));
                    all.push(object);
                }
                Err(error) => faults.extend(Fault::unread(&error)),
            },
            // Of another version, after some pages of the one before.
            Some(Ok(Change::Begin)) => (all, faults) = Default::default(),
            Some(Err(Failure::List(error))) => {
                version += 1;
                if version == T::VERSIONS.len() || !is_missing(&error) {
                    return Err(KubeError::of(&error, server.url(), "list", T::resource()));
                }
                listing = list(version);
            }
            // Complete, even if it cannot be watched.
            _ => return Ok((T::update(cluster::Change::Listed(all, Vec::new())), faults)),
        }
    }
}
