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
    use Annotation::{Dns, Exclude, ExternalTopologyKeys, Steer};
    Annotation::iter().filter(|one| !matches!(one, ExternalTopologyKeys | Dns | Exclude | Steer))
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
    #[error("there is no Service {0} to set an annotation of")]
    NoService(String),
    /// The Service has no ClusterIP to translate, so it has no part in a comparison.
    #[error("nothing can be said of Service {service}: {why}")]
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

impl Setting {
    /// A change of an annotation that `plan` knows; `None` removes it.
    pub(super) const fn new(
        service: ServiceId,
        annotation: Annotation,
        value: Option<Arc<str>>,
    ) -> Self {
        Self { service, annotation, value }
    }

    /// The annotation's whole name, and its value; `None`: it is removed.
    #[must_use]
    pub fn annotation(&self) -> (&'static str, Option<&str>) {
        (self.annotation.name(), self.value.as_deref())
    }

    /// The Service.
    #[must_use]
    pub const fn service(&self) -> &ServiceId {
        &self.service
    }
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
