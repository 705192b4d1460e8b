//! Findings for what nobody reads in the objects of a cluster.

use std::collections::{BTreeMap, BTreeSet};

use strum::IntoEnumIterator as _;

use super::pod::PODS;
use super::{Finding, Rule, Severity};
use crate::cluster::service::Skipped;
use crate::cluster::unread::{Unread, What};
use crate::cluster::{Annotation, Doubt, On, Service, ServiceId, State};
use crate::explain::{shown, some};
use crate::topology::{has_direct, named};

/// A finding for each annotation and label that has no effect where it is, once for all Pods of a
/// namespace; for each address of a Service that is not served; for Endpoints that have no EndpointSlice in `state`; and for EndpointSlices of no Service.
#[must_use]
pub fn unread(all: &[Unread], state: &State) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut pods: BTreeMap<(&str, &What), BTreeSet<&str>> = BTreeMap::new();
    for Unread { kind, namespace, name, what } in all {
        let (rule, message) = match what {
            What::Endpoints => {
                let id = ServiceId { namespace: (**namespace).into(), name: (**name).into() };
                if state.slices(&id).next().is_some() {
                    continue;
                }
                (Rule::NoSlice, no_slice())
            }
            What::Slice => (Rule::NoSlice, no_service()),
            What::Address(of, text, why) => {
                (Rule::Ignored, format!("{of} {} is not served: {why}", shown(text)))
            }
            _ if kind == "Pod" => {
                pods.entry((namespace, what)).or_default().insert(name);
                continue;
            }
            what => match sentence(what, kind, "") {
                Some(message) => (Rule::Ignored, message),
                None => continue,
            },
        };
        findings.push(rated(Finding::of(namespace, name, rule, message), what));
    }
    for ((namespace, what), names) in pods {
        let whose = format!(" of {} of its Pods ({})", names.len(), some(names, PODS));
        let message = sentence(what, "Pod", &whose).unwrap_or_default();
        findings.push(rated(Finding::of("", namespace, Rule::Ignored, message), what));
    }
    findings
}

fn no_slice() -> String {
    "only EndpointSlices are read, and there is none for these Endpoints: in a cluster Kubernetes makes it, \
     unless they are labelled endpointslice.kubernetes.io/skip-mirror or the Service has a selector; in a \
     file, write it beside them"
        .to_owned()
}

fn no_service() -> String {
    "this EndpointSlice is of no Service: name it in the label kubernetes.io/service-name"
        .to_owned()
}

/// OpenYurt may well read what topo-lb does not, and a Service may have other addresses.
fn rated(finding: Finding, what: &What) -> Finding {
    match (what, what.doubt()) {
        (_, Some(Doubt::OpenYurts)) => Finding { severity: Severity::Info, ..finding },
        (What::Address(..), _) => Finding { severity: Severity::Warning, ..finding },
        _ => finding,
    }
}

/// Why this has no effect on an object of this kind.
fn sentence(what: &What, kind: &str, whose: &str) -> Option<String> {
    let (noun, key, is_template) = match what {
        What::Annotation(key, on) => ("annotation", key, *on == On::Pod && kind != "Pod"),
        What::Label(key) => ("label", key, false),
        What::Endpoints | What::Slice | What::Address(..) => return None,
    };
    let why = match what.doubt()? {
        Doubt::Misplaced(known) => {
            let counts = known.counts_on().iter().map(|on| format!("{on}s"));
            format!("it counts on {}", counts.collect::<Vec<_>>().join(" and "))
        }
        Doubt::Misspelt(near) => format!("topo-lb does not know it; is {near} meant?"),
        Doubt::Label(_) => "it counts as an annotation".to_owned(),
        Doubt::Unknown => "topo-lb does not know it".to_owned(),
        Doubt::OpenYurts => format!("of OpenYurt's, topo-lb reads {} alone", Annotation::OpenYurt),
    };
    let place = if is_template { " of its Pods" } else { whose };
    let place =
        if place.is_empty() { format!(" on this {}", shown(kind)) } else { place.to_owned() };
    Some(format!("{noun} {}{place} has no effect: {why}", shown(key)))
}

/// Why annotations of a Service that is not translated have no effect; `None` if they have.
pub(super) fn without_effect(service: &Service) -> Option<String> {
    let skipped = service.skipped.filter(|why| *why != Skipped::NoClusterIp)?;
    let (has_name, has_direct) = (named::has_name(service), has_direct(service));
    let is_idle = |one: &Annotation| match one {
        // Clients of a name dial pods themselves, and no hook sees which Service they mean.
        Annotation::ExternalTopologyKeys | Annotation::Ejection | Annotation::Return => true,
        // Names do not follow it.
        Annotation::SlowStart => !has_direct,
        // Has findings of its own; and a Service that is left alone is left alone.
        Annotation::Dns | Annotation::Handle => false,
        _ => !has_name && !has_direct,
    };
    let said = Annotation::iter().filter(|one| one.said(&service.policy).is_some());
    let said: Vec<_> = said.filter(is_idle).map(Annotation::name).collect();
    let (one, many) = (["annotation", "has"], ["annotations", "have"]);
    let [noun, verb] = match said.len() {
        0 => return None,
        1 => one,
        _ => many,
    };
    let why: &str = skipped.into();
    let by_name = match skipped {
        Skipped::Headless | Skipped::HeadlessLabel if !has_name => {
            "; with `topo-lb.io/dns: \"true\"` the answers of DNS follow its policy, and with \
             `topo-lb.io/direct` direct dials do"
        }
        _ => "",
    };
    Some(format!("{noun} {} {verb} no effect: {why}{by_name}", said.join(", ")))
}
