//! What is explained of a Service that lacks room in the maps.

use topo_lb_core::cluster::{ServiceId, State};
use topo_lb_core::explain::report_of_agent;
use topo_lb_core::plan::{Lack, Meanwhile, Shortage};
use topo_lb_core::topology::Scope;
use topo_lb_core::topology::exposed::Exposing;
use topo_lb_kube::source::file::example::{CLUSTER, updates};

fn state(cluster: &str) -> State {
    let mut state = State::default();
    for update in updates(cluster) {
        let _ = state.apply(update, "here");
    }
    state
}

/// Verdict, reason, and whether the endpoint is selected.
fn explained(cluster: &str, meanwhile: Meanwhile) -> (&'static str, String, bool) {
    let id = ServiceId { namespace: "default".into(), name: "a".into() };
    let lack = [(id, Lack { of: Shortage::Endpoints, meanwhile })].into();
    let mut report =
        report_of_agent(&state(cluster), "here", Scope::All, &[], &lack, &Exposing::default(), &[]);
    let port = report.services.remove(0);
    (port.decision.verdict, port.decision.reason, port.endpoints[0].selected)
}

#[test]
fn a_service_without_room_is_explained_by_what_its_connections_do() {
    let served = CLUSTER.replace("nodeName: there", "nodeName: here");
    for (meanwhile, verdict, selected, sentence) in [
        (Meanwhile::KubeProxy, "bypass", false, "the Service is left to kube-proxy, whole"),
        (Meanwhile::Nobody, "bypass", false, "the Service is served by nobody on this node:"),
        (Meanwhile::Refused, "refuse", false, "is refused, as its policy is strict"),
        (Meanwhile::Narrowed, "route", true, "uses at most 6 of its endpoints"),
        (Meanwhile::LastGood, "route", true, "keeps its last endpoints"),
    ] {
        let (got, reason, is_selected) = explained(&served, meanwhile);
        assert_eq!((got, is_selected), (verdict, selected), "{meanwhile:?}: {reason}");
        assert!(reason.contains(sentence), "{reason}");
        assert!(reason.contains("a larger --max-endpoints; with room: route: "), "{reason}");
    }
}

#[test]
fn what_the_policy_refuses_is_refused_by_the_policy() {
    let (verdict, reason, _) = explained(CLUSTER, Meanwhile::Refused);
    assert_eq!(verdict, "refuse");
    assert!(!reason.contains("the maps are full"), "{reason}");
    let (verdict, reason, _) = explained(CLUSTER, Meanwhile::KubeProxy);
    assert_eq!(verdict, "bypass");
    assert!(reason.contains("with room: refuse: "), "{reason}");
}
