//! Annotations that `plan --set` tries.

use std::sync::Arc;

use topo_lb_core::cluster::service::PolicySources;
use topo_lb_core::cluster::{Change, ServiceId, State, Update};
use topo_lb_core::what_if::{Setting, SettingError, apply};
use topo_lb_kube::source::file::example;

fn cluster() -> State {
    let mut state = State::default();
    for update in example::updates(example::CLUSTER) {
        let _ = state.apply(update, "");
    }
    state
}

fn set(texts: &[&str]) -> Result<State, SettingError> {
    let mut state = cluster();
    let settings: Vec<Setting> = texts.iter().map(|text| text.parse().unwrap()).collect();
    apply(&mut state, &settings)?;
    Ok(state)
}

fn policy(state: &State) -> PolicySources {
    let id = ServiceId { namespace: "default".into(), name: "a".into() };
    (*state.service(&id).unwrap().policy).clone()
}

#[test]
fn a_setting_replaces_one_annotation() {
    let set = set(&["default/a=topology-keys:example.com/site, *"]).unwrap();
    let keys = Some("example.com/site, *".into());
    assert_eq!(policy(&set), PolicySources { topology_keys: keys, ..policy(&cluster()) });
}

#[test]
fn a_minus_removes_an_annotation() {
    let set = set(&["default/a=topo-lb.io/topology-keys-"]).unwrap();
    assert_eq!(policy(&set), PolicySources::default());
}

#[test]
fn settings_of_one_service_count_together() {
    let refined = ["default/a=min-endpoints:2,3", "default/a=topology-keys:rack,site"];
    assert_eq!(policy(&set(&refined).unwrap()).min_endpoints.as_deref(), Some("2,3"));
    let alone = set(&refined[..1]).unwrap_err().to_string();
    assert_eq!(
        alone,
        "Service default/a: annotation topo-lb.io/min-endpoints is ignored: it has 2 numbers \
         for 1 label keys; write one for all of them, or one for each"
    );
}

#[test]
fn what_was_ignored_before_is_not_the_settings_fault() {
    let mut state = cluster();
    let mut service = state.service(state.services().next().unwrap()).unwrap().clone();
    Arc::make_mut(&mut service.policy).spill = Some("many".into());
    let _ = state.apply(Update::Service(Change::Applied(service)), "");
    let keys = "default/a=topology-keys:rack,*".parse().unwrap();
    assert_eq!(apply(&mut state, &[keys]), Ok(()));
}

#[test]
fn a_setting_of_a_wrong_form_says_the_right_one() {
    for text in [
        "",
        "web",
        "default/web",
        "default/web=",
        "default/web=topology-keys",
        "web=topology-keys:a",
        "/web=topology-keys:a",
        "a/b/c=topology-keys:a",
    ] {
        assert_eq!(text.parse::<Setting>(), Err(SettingError::Form), "{text:?}");
    }
    let unknown = "default/web=external-topology-keys:a".parse::<Setting>().unwrap_err();
    assert!(unknown.to_string().starts_with(
        "plan does not know the annotation external-topology-keys; it knows \
         topo-lb.io/topology-keys, openyurt.io/topologyKeys, "
    ));
}

#[test]
fn a_setting_prints_as_it_is_read() {
    for text in ["a/b=topo-lb.io/spill:5%", "a/b=openyurt.io/topologyKeys-"] {
        assert_eq!(text.parse::<Setting>().unwrap().to_string(), text);
    }
}

#[test]
fn a_setting_of_no_service_is_an_error() {
    assert_eq!(
        set(&["default/b=handle:false"]).unwrap_err().to_string(),
        "there is no Service default/b to set an annotation of"
    );
}

#[test]
fn a_setting_of_a_service_without_an_address_is_an_error() {
    let mut state = cluster();
    let mut service = state.service(state.services().next().unwrap()).unwrap().clone();
    service.skipped = Some(topo_lb_core::cluster::service::Skipped::Headless);
    let _ = state.apply(Update::Service(Change::Applied(service)), "");
    let error = apply(&mut state, &["default/a=handle:false".parse().unwrap()]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "nothing can be said of Service default/a: headless (`clusterIP: None`): \
         clients dial its pods themselves"
    );
}
