//! All objects there are, once.

use ::kube::Api;
use ::kube::api::ListParams;

use super::resource::{Kept, Version, Watched};
use super::{KubeError, Server};
use crate::cluster::{Node, Service, Slice, Update};

/// Lists all Nodes, EndpointSlices and Services.
///
/// # Errors
/// When the server cannot be asked, or does not say. An object that cannot be read is logged and
/// left out.
pub async fn read(server: &Server) -> Result<Vec<Update>, KubeError> {
    let (nodes, slices, services) =
        futures::try_join!(all::<Node>(server), all::<Slice>(server), all::<Service>(server))?;
    Ok(vec![nodes, slices, services])
}

async fn all<T: Kept>(server: &Server) -> Result<Update, KubeError> {
    let mut versions = T::VERSIONS.iter();
    let mut version = versions.next().expect("every kind has a version");
    loop {
        match pages::<T>(server, version).await {
            Ok(objects) => return Ok(T::all(objects)),
            Err(error) => match versions.next() {
                Some(older) if is_missing(&error) => version = older,
                _ => return Err(KubeError::of(&error, server.url(), "list", T::resource())),
            },
        }
    }
}

async fn pages<T: Kept>(server: &Server, version: &Version) -> ::kube::Result<Vec<T>> {
    let api = Api::<Watched<T>>::all_with(server.client(), version);
    let mut params = ListParams::default().limit(T::PAGE);
    let mut all = Vec::new();
    loop {
        let page = api.list(&params).await?;
        for object in page.items {
            match object.object {
                Ok((object, left_out)) => {
                    if let Some(left_out) = left_out {
                        tracing::warn!("{left_out}");
                    }
                    all.push(object);
                }
                Err(error) => tracing::warn!("{error}; the object is left out"),
            }
        }
        match page.metadata.continue_ {
            Some(token) if !token.is_empty() => params.continue_token = Some(token),
            _ => return Ok(all),
        }
    }
}

/// Whether the server does not know the resource, at least not in this version.
pub(super) fn is_missing(error: &::kube::Error) -> bool {
    matches!(error, ::kube::Error::Api(status) if status.code == 404)
}
