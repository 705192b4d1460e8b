//! Which Services topo-lb handles, and why it leaves one to others.

use std::net::IpAddr;

use crate::cluster::service::Skipped;
use crate::cluster::{Family, Service, State};

/// Which Services topo-lb handles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Scope {
    /// Every Service with a ClusterIP.
    #[default]
    All,
    /// Only Services that carry a topology policy; the others are left to kube-proxy.
    // An annotation for keys, OpenYurt or ejection, `spec.topologyKeys` or `spec.trafficDistribution`;
    // ignored ones do not count.
    OptIn,
}

/// Why topo-lb does not translate connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bypass<'a> {
    /// The Service has no policy, in [`Scope::OptIn`].
    OutOfScope,
    /// Annotation `topo-lb.io/handle: "false"`.
    Annotation,
    /// A device of this node has the ClusterIP, so the node itself serves it.
    Local {
        /// The ClusterIP.
        address: IpAddr,
        /// The device.
        device: &'a str,
    },
}

/// The last local ClusterIP of a family and its device, if devices of this host have all of them.
pub(super) fn local<'a>(state: &'a State, service: &Service, family: Family) -> Option<Bypass<'a>> {
    let own = service.cluster_ips.iter().filter(|&&address| Family::of(address) == family);
    let mut found = None;
    for &address in own {
        let device = state.local_device(address)?;
        found = Some(Bypass::Local { address, device });
    }
    found
}

/// Whether a Service has a ClusterIP to translate.
pub(super) fn has_frontends(service: &Service) -> bool {
    service.skipped.is_none() && !service.cluster_ips.is_empty()
}

/// Whether it is headless: clients dial its Pods themselves.
pub(super) fn is_headless(service: &Service) -> bool {
    matches!(service.skipped, Some(Skipped::Headless | Skipped::HeadlessLabel))
        && service.cluster_ips.is_empty()
}

/// Whether a headless Service says itself what becomes of clients that dial its endpoints. What a policy or a
/// Namespace says of many does not count: members of a StatefulSet dial each other by their headless Service.
#[must_use]
pub fn has_direct(service: &Service) -> bool {
    is_headless(service) && service.policy.direct.is_some()
}

/// Whether connections may be translated or refused.
pub(super) fn is_served(service: &Service) -> bool {
    has_frontends(service) || has_direct(service)
}
