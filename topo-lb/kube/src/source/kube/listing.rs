//! All objects, read once.

use std::collections::BTreeMap;

use ::kube::Api;
use ::kube::api::ListParams;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::connect::Server;
use super::error::KubeError;
use super::error::is_missing;
use super::reflect::{Failure, Query, Reflected, changes};
use super::resource::StateKind;
use crate::source::object::Identity;
use crate::source::{Fault, Listing};
use topo_lb_core::cluster::client::{Client, Clients};
use topo_lb_core::cluster::mesh::POD_SELECTORS;
use topo_lb_core::cluster::unread::Unread;
use topo_lb_core::cluster::{
    Change, ClusterTopologyPolicy, Namespace, Node, Service, Slice, TopologyPolicy, Update,
};

/// Lists all Nodes, EndpointSlices, Services, and what gives them policies: without the custom resources
/// and the right to read Namespaces there are none.
///
/// # Errors
/// A request fails, or an answer cannot be parsed. Unreadable objects are returned as faults.
pub async fn read(server: &Server) -> Result<Listing, KubeError> {
    let (nodes, slices, services) =
        futures::try_join!(all::<Node>(server), all::<Slice>(server), all::<Service>(server))?;
    let (namespaces, policies, of_cluster) = futures::try_join!(
        optional::<Namespace>(server),
        optional::<TopologyPolicy>(server),
        optional::<ClusterTopologyPolicy>(server)
    )?;
    let all = [namespaces, policies, of_cluster, nodes, slices, services];
    let (updates, faults): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    Ok(Listing { updates, faults: faults.concat(), ..Listing::default() })
}

/// Lists the metadata of Services, Nodes, Namespaces, and the Pods of service meshes, and adds what they
/// say about clients, and what nobody reads in them.
///
/// # Errors
/// A request fails: for example, the user may not list Namespaces or Pods.
pub async fn add_metadata(server: &Server, listing: &mut Listing) -> Result<(), KubeError> {
    for (kind, plural) in [("Service", "services"), ("Node", "nodes")] {
        let all = match kind {
            "Service" => metadata::<v1::Service>(server, plural, None).await?,
            _ => metadata::<v1::Node>(server, plural, None).await?,
        };
        all.iter().for_each(|one| listing.unread.append(&mut unread(kind, one)));
    }
    let mut all = Clients::default();
    let mut add = |one: ObjectMeta| {
        let kind = if one.namespace.is_some() { "Pod" } else { "Namespace" };
        listing.unread.append(&mut unread(kind, &one));
        let ObjectMeta { name, namespace, labels, annotations, .. } = one;
        let (name, labels) = (name.unwrap_or_default(), labels.unwrap_or_default());
        let annotations = annotations.unwrap_or_default();
        // A Namespace is in none.
        all.add(match namespace {
            Some(namespace) => Client::new(&namespace, Some(&name), &labels, &annotations),
            None => Client::new(&name, None, &labels, &annotations),
        });
    };
    metadata::<v1::Namespace>(server, "namespaces", None).await?.into_iter().for_each(&mut add);
    for selector in POD_SELECTORS {
        metadata::<v1::Pod>(server, "pods", Some(selector)).await?.into_iter().for_each(&mut add);
    }
    // Two selectors may find the same Pod.
    all.meshed.sort();
    all.meshed.dedup();
    all.unclear.sort();
    all.unclear.dedup();
    listing.clients = Some(all);
    Ok(())
}

fn unread(kind: &str, one: &ObjectMeta) -> Vec<Unread> {
    let keys = |all: &Option<BTreeMap<String, String>>| -> Vec<String> {
        all.iter().flat_map(|all| all.keys().cloned()).collect()
    };
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (labels, annotations) = (keys(&one.labels), keys(&one.annotations));
    Unread::in_metadata(kind, &text(&one.namespace), &text(&one.name), &labels, &annotations)
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

/// The same as [`all`]. No objects if the server does not have the kind; a fault if it does not allow to read
/// it.
async fn optional<T: StateKind>(server: &Server) -> Result<(Update, Vec<Fault>), KubeError> {
    let fault = match all::<T>(server).await {
        Err(KubeError::Refused { code: 404, .. }) => None,
        Err(error @ KubeError::Forbidden { .. }) => {
            let object = Identity { kind: T::KIND, ..Identity::default() };
            Some(Fault { object, sentence: format!("policies may be missing: {error}") })
        }
        answer => return answer,
    };
    let none = T::update(Change::Listed(Vec::new(), Vec::new()));
    Ok((none, fault.into_iter().collect()))
}

async fn all<T: StateKind>(server: &Server) -> Result<(Update, Vec<Fault>), KubeError> {
    let list = |version| {
        changes::<T>(server, Query { version, selector: None, cached: false, seconds: 0 })
    };
    let (mut all, mut faults) = (Vec::new(), Vec::new());
    let (mut version, mut listing) = (0, list(0));
    loop {
        match listing.next().await {
            Some(Ok(Reflected::Listed(object))) => match object.object {
                Ok((object, skipped)) => {
                    faults.extend(skipped.as_ref().and_then(Fault::skipped));
                    all.push(object);
                }
                Err(error) => faults.extend(Fault::unread(&error)),
            },
            // Of another version, after some pages of the one before.
            Some(Ok(Reflected::Begin)) => (all, faults) = Default::default(),
            Some(Err(Failure::List(error))) => {
                version += 1;
                if version == T::VERSIONS.len() || !is_missing(&error) {
                    return Err(KubeError::of(&error, server.url(), "list", T::resource()));
                }
                listing = list(version);
            }
            // Complete, even if it cannot be watched.
            _ => return Ok((T::update(Change::Listed(all, Vec::new())), faults)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use topo_lb_fake_api::{NAMESPACES, NODES, SERVICES};

    use super::super::fake::Fake;
    use super::*;

    const PODS: &str = "/api/v1/pods";

    #[tokio::test]
    async fn what_nobody_reads_is_looked_for_in_metadata() {
        let fake = Fake::new(&[SERVICES, NODES, NAMESPACES, PODS]).await;
        let object = |name: &str, namespace: Option<&str>| {
            let annotations = json!({"topo-lb.io/dnss": "true"});
            json!({"metadata": {"name": name, "namespace": namespace, "annotations": annotations}})
        };
        fake.fill(SERVICES, [object("web", Some("shop"))]);
        fake.fill(NODES, [object("n1", None)]);
        fake.fill(NAMESPACES, [object("shop", None)]);
        let mut listing = Listing::default();
        add_metadata(&fake.server, &mut listing).await.expect("all is served");
        assert_eq!(listing.clients, Some(Clients::default()));
        let found: Vec<_> =
            listing.unread.iter().map(|it| (&*it.kind, &*it.namespace, &*it.name)).collect();
        let wanted = [("Service", "shop", "web"), ("Node", "", "n1"), ("Namespace", "", "shop")];
        assert_eq!(found, wanted);
    }
}
