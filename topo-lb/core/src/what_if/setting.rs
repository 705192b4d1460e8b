//! A change of one annotation of a Service, as `--set` writes it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use strum::IntoEnumIterator as _;

use crate::cluster::{Annotation, Change, Service, ServiceId, State, Update};
use crate::explain::{shown, shown_id};
use crate::topology;

/// `NAMESPACE/NAME=ANNOTATION:VALUE`; `NAMESPACE/NAME=ANNOTATION-` removes the annotation, as `kubectl
/// annotate` does. Annotations of topo-lb need no prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    service: ServiceId,
    annotation: Annotation,
    /// `None`: it is removed.
    value: Option<Arc<str>>,
}

/// The annotations that change what clients of a node get, or what is said about it.
fn known() -> impl Iterator<Item = Annotation> {
    use Annotation::{Dns, Exclude, ExternalTopologyKeys};
    Annotation::iter().filter(|one| !matches!(one, ExternalTopologyKeys | Dns | Exclude))
}

fn names() -> String {
    known().map(Annotation::name).collect::<Vec<_>>().join(", ")
}

/// Why a setting cannot be read or applied. `Display` is one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// Not of the form that a setting has.
    #[error(
        "write it as NAMESPACE/NAME=ANNOTATION:VALUE, for example \
         default/web=topology-keys:topology.kubernetes.io/zone,*; or as NAMESPACE/NAME=ANNOTATION- \
         to remove the annotation"
    )]
    Form,
    /// Not an annotation that `plan` looks at.
    #[error("plan does not know the annotation {0}; it knows {known}", known = names())]
    Annotation(String),
    /// There is no such Service.
    #[error("there is no Service {0} to set an annotation of; create it in a file for --to")]
    NoService(String),
    /// The Service has no ClusterIP to translate, so its annotations have no effect.
    #[error("an annotation of Service {service} has no effect: {why}")]
    Skipped {
        /// Which.
        service: String,
        /// Why it is not translated.
        why: &'static str,
    },
    /// The annotations break a rule.
    #[error("Service {service}: {rules}")]
    Ignored {
        /// Which.
        service: String,
        /// What would be ignored, and why.
        rules: String,
    },
}

impl FromStr for Setting {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let (service, change) = text.split_once('=').ok_or(SettingError::Form)?;
        let (namespace, name) = service.split_once('/').ok_or(SettingError::Form)?;
        if namespace.is_empty() || name.is_empty() || name.contains('/') {
            return Err(SettingError::Form);
        }
        let (annotation, value) = match change.split_once(':') {
            Some((annotation, value)) => (annotation, Some(value.into())),
            None => (change.strip_suffix('-').ok_or(SettingError::Form)?, None),
        };
        let annotation = Annotation::named(annotation)
            .filter(|named| known().any(|one| one == *named))
            .ok_or_else(|| SettingError::Annotation(shown(annotation)))?;
        let service = ServiceId { namespace: namespace.into(), name: name.into() };
        Ok(Self { service, annotation, value })
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let annotation = self.annotation;
        match &self.value {
            Some(value) => write!(f, "{}={annotation}:{value}", self.service),
            None => write!(f, "{}={annotation}-", self.service),
        }
    }
}

/// Changes these annotations in `state`, each in turn.
///
/// # Errors
/// A Service is not there or is not translated; or all settings of a Service together break a rule that
/// the Service did not break before.
pub fn apply(state: &mut State, settings: &[Setting]) -> Result<(), SettingError> {
    let mut changed: BTreeMap<&ServiceId, Service> = BTreeMap::new();
    for Setting { service: id, annotation, value } in settings {
        let Some(known) = state.service(id) else {
            return Err(SettingError::NoService(shown_id(id)));
        };
        if let Some(skipped) = known.skipped {
            return Err(SettingError::Skipped { service: shown_id(id), why: skipped.into() });
        }
        let service = changed.entry(id).or_insert_with(|| known.clone());
        annotation.say(Arc::make_mut(&mut service.policy), value.clone());
    }
    for (id, service) in changed {
        let before = topology::ignored(state, id);
        let _ = state.apply(Update::Service(Change::Applied(service)), "");
        if let Some(rules) = topology::ignored(state, id).filter(|now| Some(now) != before.as_ref())
        {
            return Err(SettingError::Ignored { service: shown_id(id), rules });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::service::PolicySources;
    use crate::source::file::example;

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
            "there is no Service default/b to set an annotation of; create it in a file for --to"
        );
    }

    #[test]
    fn a_setting_of_a_service_without_an_address_is_an_error() {
        let mut state = cluster();
        let mut service = state.service(state.services().next().unwrap()).unwrap().clone();
        service.skipped = Some(crate::cluster::service::Skipped::Headless);
        let _ = state.apply(Update::Service(Change::Applied(service)), "");
        let error = apply(&mut state, &["default/a=handle:false".parse().unwrap()]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "an annotation of Service default/a has no effect: headless (`clusterIP: None`): \
             clients dial its pods themselves"
        );
    }
}
