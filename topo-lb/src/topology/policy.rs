//! The source of a Service's policy: the first source that is present and keeps the rules.

use crate::cluster::Service;

use super::keys::Keys;
use super::openyurt::Reach;
use super::validation::{ANY, Field, Ignored, Rule, quoted};
use super::{Bypass, PolicySource, Scope, ejection, keys, min_endpoints, openyurt, spill};

/// The value of `topo-lb.io/refusal`.
const INTENDED: &str = "intended";

/// What annotations and fields ask for. Hints are on slices, and apply only with `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rules<'a> {
    Keys(Keys<'a>),
    OpenYurt { value: &'a str, reach: Reach },
    None,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Policy<'a> {
    /// [`PolicySource::None`] may still become [`PolicySource::Hints`].
    pub(super) source: PolicySource,
    pub(super) rules: Rules<'a>,
    /// Annotation `topo-lb.io/external-topology-keys`: for clients outside in place of `rules` and of
    /// `externalTrafficPolicy`.
    pub(super) external: Option<Rules<'a>>,
    pub(super) ignored: Vec<Ignored>,
    /// Annotation `topo-lb.io/ejection`.
    pub(super) ejection: Option<ejection::Setting>,
    /// Annotation `topo-lb.io/refusal: intended`.
    pub(super) refusal_intended: bool,
    /// False with annotation `topo-lb.io/handle: "false"`.
    pub(super) handled: bool,
}

pub(super) fn of(service: &Service) -> Policy<'_> {
    let mut policy = source_of(service);
    refine(&mut policy, service);
    if let Some(text) = &service.policy.external_topology_keys {
        match keys::from_annotation(text, false) {
            Ok(keys) => policy.external = Some(Rules::Keys(Keys::of(keys))),
            Err(rule) => {
                let what = Field::Policy(PolicySource::ExternalTopologyKeys);
                policy.ignored.push(Ignored { what, rule });
            }
        }
    }
    match handle(service) {
        Ok(true) => {}
        // The other annotations may be for another proxy or for later: do not report their errors.
        Ok(false) => (policy.handled, policy.ignored) = (false, Vec::new()),
        Err(rule) => policy.ignored.push(Ignored { what: Field::Handle, rule }),
    }
    policy
}

/// Annotation `topo-lb.io/handle`; true if absent.
fn handle(service: &Service) -> Result<bool, Rule> {
    match service.policy.handle.as_deref().map(str::trim) {
        None | Some("true") => Ok(true),
        Some("false") => Ok(false),
        Some(text) => Err(Rule::HandleNotABool { text: quoted(text) }),
    }
}

/// Adds `min-endpoints`, `ejection`, `refusal` and `spill`.
fn refine(policy: &mut Policy<'_>, service: &Service) {
    let mut keys = match &mut policy.rules {
        Rules::Keys(keys) => Some(keys),
        Rules::OpenYurt { .. } | Rules::None => None,
    };
    if let Some(text) = &service.policy.min_endpoints {
        let least = keys.as_ref().map_or(Err(Rule::WithoutKeys), |keys| {
            min_endpoints::from_annotation(text, &keys.keys)
        });
        match (least, &mut keys) {
            (Ok(least), Some(keys)) => keys.min_endpoints = least,
            (Ok(_), None) => {}
            (Err(rule), _) => policy.ignored.push(Ignored { what: Field::MinEndpoints, rule }),
        }
    }
    match ejection::of(service) {
        Ok(setting) => policy.ejection = setting,
        Err(rule) => policy.ignored.push(Ignored { what: Field::Ejection, rule }),
    }
    if let Some(text) = &service.policy.refusal {
        match text.trim() {
            INTENDED => policy.refusal_intended = true,
            _ => {
                let rule = Rule::RefusalUnknown { text: quoted(text) };
                policy.ignored.push(Ignored { what: Field::Refusal, rule });
            }
        }
    }
    if let Some(text) = &service.policy.spill {
        match (spill::from_annotation(text), keys) {
            (Ok(share), Some(keys)) => keys.spill = share,
            (Ok(_), None) => {
                policy.ignored.push(Ignored { what: Field::Spill, rule: Rule::WithoutKeys });
            }
            (Err(rule), _) => policy.ignored.push(Ignored { what: Field::Spill, rule }),
        }
    }
}

fn source_of(service: &Service) -> Policy<'_> {
    let sources = &service.policy;
    let local = service.external_local;
    let keys_annotation = || {
        let text = sources.topology_keys.as_deref()?;
        Some(keys::from_annotation(text, local).map(|keys| Rules::Keys(Keys::of(keys))))
    };
    let openyurt_annotation = || {
        let value = sources.openyurt.as_deref()?;
        Some(openyurt::from_annotation(value).map(|reach| Rules::OpenYurt { value, reach }))
    };
    let keys_field = || {
        let keys = &sources.spec_topology_keys;
        (!keys.is_empty())
            .then(|| keys::from_field(keys, local).map(|keys| Rules::Keys(Keys::of(keys))))
    };

    let mut ignored = Vec::new();
    // The first valid source is in force; later ones are not read.
    for (source, rules) in [
        (PolicySource::TopologyKeys, &keys_annotation as &dyn Fn() -> _),
        (PolicySource::OpenYurt, &openyurt_annotation),
        (PolicySource::SpecTopologyKeys, &keys_field),
    ] {
        match rules() {
            Some(Ok(rules)) => {
                return Policy::new(source, rules, ignored);
            }
            Some(Err(rule)) => ignored.push(Ignored { what: Field::Policy(source), rule }),
            None => {}
        }
    }
    Policy::new(PolicySource::None, Rules::None, ignored)
}

impl Rules<'_> {
    /// Whether a node may get no endpoint of a Service that has some.
    pub(super) fn are_strict(&self) -> bool {
        match self {
            Rules::Keys(keys) => keys.keys.last().is_some_and(|last| *last != ANY),
            Rules::OpenYurt { .. } => true,
            Rules::None => false,
        }
    }
}

impl<'a> Policy<'a> {
    const fn new(source: PolicySource, rules: Rules<'a>, ignored: Vec<Ignored>) -> Self {
        Self {
            source,
            rules,
            external: None,
            ignored,
            ejection: None,
            refusal_intended: false,
            handled: true,
        }
    }

    /// What holds for clients outside, and whether only endpoints on this node count for them.
    pub(super) const fn for_outside(&self, service: &Service) -> (&Rules<'a>, bool) {
        match &self.external {
            Some(external) => (external, false),
            None => (&self.rules, service.external_local),
        }
    }

    /// Why topo-lb does not translate `service`; `None` if it does. [`Scope::OptIn`] includes
    /// Services with a valid policy and those that ask for hints or ejection.
    pub(super) fn bypass(&self, scope: Scope, service: &Service) -> Option<Bypass<'static>> {
        let is_in_scope = match scope {
            Scope::All => true,
            Scope::OptIn => {
                let is_asked = service.policy.hints_asked || self.ejection.is_some();
                self.source != PolicySource::None || is_asked
            }
        };
        match (self.handled, is_in_scope) {
            (false, _) => Some(Bypass::Annotation),
            (true, false) => Some(Bypass::OutOfScope),
            (true, true) => None,
        }
    }
}
