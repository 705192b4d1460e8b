//! The source of a Service's policy: the first source that is present and keeps the rules. The Service
//! comes first, then TopologyPolicies, its Namespace, and ClusterTopologyPolicies.

use std::sync::Arc;

use crate::cluster::service::PolicySources;
use crate::cluster::{Above, Annotation, Protocol, Service, State};

use super::direct::Direct;
use super::direct_return::Choice;
use super::evacuation::{Evacuating, Evacuation};
use super::evaluation::By;
use super::field::Field;
use super::keys::Keys;
use super::min_endpoints::Least;
use super::origin::Origin;
use super::policy_source::PolicySource;
use super::rules::Rules;
use super::scope::{Bypass, Scope, is_headless};
use super::spill::Spill;
use super::trial::{Seen, Trial};
use super::validation::{ANY, Ignored, Rule, kept, quoted};
use super::weights::Weights;
use super::{direct, ejection, homeward, keys, min_endpoints, openyurt, slow_start, weights};

/// The value of `topo-lb.io/refusal`.
const INTENDED: &str = "intended";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Policy<'a> {
    /// [`PolicySource::None`] may still become [`PolicySource::Hints`].
    pub(super) source: PolicySource,
    /// The object of `source`.
    pub(super) origin: Origin,
    pub(super) rules: Rules<'a>,
    /// Annotation `topo-lb.io/external-topology-keys`: for clients outside in place of `rules` and of
    /// `externalTrafficPolicy`.
    pub(super) external: Option<Rules<'a>>,
    /// Weaker objects that say keys, too.
    pub(super) passed_over: Vec<Origin>,
    /// Annotation `topo-lb.io/weights`: with `rules`, not with `external`.
    pub(super) weights: Option<Weights<'a>>,
    pub(super) ignored: Vec<Ignored>,
    /// The objects on trial that say something, whether they hold here or not.
    pub(super) trials: Vec<Trial>,
    /// Annotation `topo-lb.io/ejection`.
    pub(super) ejection: Option<ejection::Setting>,
    /// Annotation `topo-lb.io/evacuate` of all objects, until they hold on no node any more.
    pub(super) evacuating: Evacuating<'a>,
    /// Annotation `topo-lb.io/return`.
    pub(super) return_after: Option<homeward::Setting>,
    /// Annotation `topo-lb.io/slow-start`.
    pub(super) slow_start: Option<slow_start::Setting>,
    /// Annotation `topo-lb.io/refusal: intended`.
    pub(super) refusal_intended: bool,
    /// Annotation `topo-lb.io/direct`.
    pub(super) direct: Direct,
    /// False with annotation `topo-lb.io/direct-return: "false"`.
    pub(super) direct_return: bool,
    /// Annotation `topo-lb.io/choice`.
    pub(super) choice: Option<Choice>,
    /// False with annotation `topo-lb.io/handle: "false"`.
    pub(super) handled: bool,
}

pub(super) fn of<'a>(state: &'a State, seen: Seen<'_>, service: &'a Service) -> Policy<'a> {
    let has_tcp = service.ports.iter().any(|port| port.protocol == Protocol::Tcp);
    let of = (service.external_local, has_tcp, is_headless(service));
    of_layers(layers(state, service), seen, state.now(), of)
}

/// The rules that an object breaks by itself, whatever the Services that it selects. What refines keys may
/// refine another object's.
#[must_use]
pub fn broken(origin: &Origin, policy: &PolicySources) -> Vec<Ignored> {
    let alone = vec![Layer { origin: origin.clone(), policy }];
    let mut alone = of_layers(alone, Seen::InFull, None, (false, true, false));
    alone.ignored.retain(|one| one.rule != Rule::WithoutKeys);
    // Without keys of its own, each could refine another object's, but not both.
    let spill = policy.spill.as_deref().and_then(|text| Spill::from_annotation(text).ok());
    if matches!((&alone.rules, &policy.weights, spill), (Rules::None, Some(_), Some(spill)) if spill != Spill::NONE)
        && alone.handled
        && !alone.ignored.iter().any(|one| one.what == Field::Of(Annotation::Weights))
    {
        let (origin, what) = (origin.clone(), Field::Of(Annotation::Weights));
        alone.ignored.push(Ignored { origin, what, rule: Rule::WeightsWithSpill });
    }
    alone.ignored
}

/// The object whose keys are in force for a Service, at least on some nodes; `None` without a policy, or if
/// topo-lb leaves it alone.
#[must_use]
pub fn decider(state: &State, service: &Service) -> Option<Origin> {
    let policy = of(state, Seen::From(""), service);
    (policy.handled && policy.source != PolicySource::None).then_some(policy.origin)
}

/// Why topo-lb leaves a Service alone on all nodes; `None` if it does not.
#[must_use]
pub fn bypass(state: &State, scope: Scope, service: &Service) -> Option<Bypass<'static>> {
    of(state, Seen::From(""), service).bypass(scope, service)
}

fn of_layers<'a>(
    mut layers: Vec<Layer<'a>>,
    seen: Seen<'_>,
    now: Option<i64>,
    (external_local, has_tcp, is_headless): (bool, bool, bool),
) -> Policy<'a> {
    let (mut trials, mut ignored) = (Vec::new(), Vec::new());
    // Of the Service, whether it is on trial or not.
    let asks_hints = layers.iter().any(|layer| layer.policy.hints_asked);
    let (node, in_full) = match seen {
        Seen::From(node) => (node, false),
        Seen::InFull => ("", true),
    };
    layers.retain(|Layer { origin, policy }| {
        let trial = Trial::of(origin, policy, node).map_err(|it| ignored.push(it));
        let holds = trial.as_ref().is_ok_and(|it| it.as_ref().is_none_or(Trial::holds));
        trials.extend(trial.ok().flatten());
        holds || in_full
    });
    let layers = &layers[..];
    let (mut policy, at) = source_of(layers, external_local);
    policy.trials = trials;
    policy.passed_over = layers[(at + 1).min(layers.len())..]
        .iter()
        .filter(|layer| layer.policy.has_keys())
        .map(|layer| layer.origin.clone())
        .collect();
    // What is weaker than the keys in force does not refine them.
    let refining = layers.get(..=at).unwrap_or(layers);
    ignored.append(&mut policy.ignored);
    let keys = match &mut policy.rules {
        Rules::Keys(keys) => Some(keys),
        Rules::OpenYurt { .. } | Rules::None => None,
    };
    let least = read(refining, Field::Of(Annotation::MinEndpoints), &mut ignored, |_, text| {
        min_endpoints::from_annotation(text, keys.as_ref().map(|keys| &keys.keys[..]))
    });
    let share = read(refining, Field::Of(Annotation::Spill), &mut ignored, |_, text| {
        let share = Spill::from_annotation(text)?;
        keys.as_ref().map(|_| share).ok_or(Rule::WithoutKeys)
    });
    if let Some(keys) = keys {
        keys.min_endpoints = least.unwrap_or_else(|| vec![Least::Number(1); keys.keys.len()]);
        keys.spill = share.unwrap_or(Spill::NONE);
    }
    policy.weights = read(refining, Field::Of(Annotation::Weights), &mut ignored, |_, text| {
        weights::from_annotation(text, &policy.rules)
    });
    let external = Field::Policy(PolicySource::ExternalTopologyKeys);
    policy.external = read(layers, external, &mut ignored, |_, text| {
        keys::from_annotation(text, false).map(|keys| Rules::Keys(Keys::of(keys)))
    });
    let ejection = read(layers, Field::Of(Annotation::Ejection), &mut ignored, |origin, text| {
        match ejection::from_annotation(text)? {
            setting if has_tcp => Ok(Some(setting)),
            _ if *origin == Origin::Service => Err(Rule::EjectionWithoutTcp),
            // A policy for many Services need not know what ports each has.
            _ => Ok(None),
        }
    });
    policy.ejection = ejection.flatten();
    policy.evacuating = evacuating(layers, node, now, &mut ignored);
    let has_policy = policy.source != PolicySource::None || asks_hints;
    let after = read(layers, Field::Of(Annotation::Return), &mut ignored, |origin, text| {
        match homeward::from_annotation(text)? {
            setting if has_tcp && has_policy => Ok(setting),
            Some(_) if !has_tcp && *origin == Origin::Service => Err(Rule::ReturnWithoutTcp),
            Some(_) if *origin == Origin::Service => Err(Rule::ReturnWithoutPolicy),
            // A policy for many Services need not know what ports and which policy each has.
            _ => Ok(None),
        }
    });
    policy.return_after = after.flatten();
    let spills = matches!(&policy.rules, Rules::Keys(keys) if keys.spill != Spill::NONE);
    let slowly = read(layers, Field::Of(Annotation::SlowStart), &mut ignored, |origin, text| {
        match slow_start::from_annotation(text)? {
            Some(_) if spills && *origin == Origin::Service => Err(Rule::SlowStartWithSpill),
            // A policy for many Services need not know which of them spill.
            Some(_) if spills => Ok(None),
            setting => Ok(setting),
        }
    });
    policy.slow_start = slowly.flatten();
    let intended =
        read(layers, Field::Of(Annotation::Refusal), &mut ignored, |_, text| match text.trim() {
            INTENDED => Ok(()),
            _ => Err(Rule::RefusalUnknown { text: quoted(text) }),
        });
    policy.refusal_intended = intended.is_some();
    let direct = read(layers, Field::Of(Annotation::Direct), &mut ignored, |origin, text| {
        match direct::from_annotation(text, &policy.rules, asks_hints) {
            // Members of a StatefulSet dial each other: see `scope::has_direct`.
            _ if is_headless && *origin != Origin::Service => Ok(Direct::Allow),
            // A policy for many Services need not know which of them have one, and a strict one.
            Err(Rule::DirectWithoutStrict | Rule::DirectWithoutPolicy)
                if *origin != Origin::Service =>
            {
                Ok(Direct::Allow)
            }
            said => said,
        }
    });
    policy.direct = direct.unwrap_or_default();
    let returns = read(layers, Field::Of(Annotation::DirectReturn), &mut ignored, |_, text| {
        text.trim().parse().map_err(|_| Rule::DirectReturnNotABool { text: quoted(text) })
    });
    policy.direct_return = returns.unwrap_or(true);
    policy.choice = read(layers, Field::Of(Annotation::Choice), &mut ignored, |_, text| {
        Choice::from_annotation(text)
    });
    let handled = read(layers, Field::Of(Annotation::Handle), &mut ignored, |_, text| {
        text.trim().parse().map_err(|_| Rule::HandleNotABool { text: quoted(text.trim()) })
    });
    policy.handled = handled.unwrap_or(true);
    // The other annotations may be for another proxy or for later: do not report their errors.
    ignored.retain(|one| {
        policy.handled || matches!(one.what, Field::Of(Annotation::Mode | Annotation::Ramp))
    });
    policy.ignored = ignored;
    policy
}

/// What the strongest layer that has a field says there. What breaks a rule is added to `ignored`.
fn read<'a, T>(
    layers: &[Layer<'a>],
    what: Field,
    ignored: &mut Vec<Ignored>,
    parse: impl FnOnce(&Origin, &'a str) -> Result<T, Rule>,
) -> Option<T> {
    let mut layers = layers.iter();
    let (layer, text) = layers.find_map(|layer| Some((layer, what.said(layer.policy)?)))?;
    let parsed = kept(text).and_then(|text| parse(&layer.origin, text));
    let origin = || layer.origin.clone();
    parsed.map_err(|rule| ignored.push(Ignored { origin: origin(), what, rule })).ok()
}

/// What all layers evacuate. What breaks a rule is added to `ignored`.
fn evacuating<'a>(
    layers: &[Layer<'a>],
    node: &str,
    now: Option<i64>,
    ignored: &mut Vec<Ignored>,
) -> Evacuating<'a> {
    let (what, mut all) = (Field::Of(Annotation::Evacuate), Evacuating::default());
    for layer in layers {
        let Some(text) = what.said(layer.policy) else { continue };
        match kept(text).and_then(Evacuation::read) {
            Ok(evacuation) => all.add(&layer.origin, evacuation, now, node),
            Err(rule) => ignored.push(Ignored { origin: layer.origin.clone(), what, rule }),
        }
    }
    all
}

/// What one object says about a Service.
struct Layer<'a> {
    origin: Origin,
    policy: &'a PolicySources,
}

/// Everything that says something about `service`, the strongest first; the first is the Service.
fn layers<'a>(state: &'a State, service: &'a Service) -> Vec<Layer<'a>> {
    let mut layers = vec![Layer { origin: Origin::Service, policy: &service.policy }];
    layers.extend(state.above(service).into_iter().map(|above| match above {
        Above::Policy(policy) => {
            Layer { origin: Origin::Policy(policy.id.clone()), policy: &policy.policy }
        }
        Above::Namespace(namespace) => Layer {
            origin: Origin::Namespace(Arc::clone(&namespace.name)),
            policy: &namespace.policy,
        },
    }));
    layers
}

/// The policy of the first valid source, and the index of its layer; the number of layers without one.
fn source_of<'a>(layers: &[Layer<'a>], external_local: bool) -> (Policy<'a>, usize) {
    let mut ignored = Vec::new();
    for (at, Layer { origin, policy }) in layers.iter().enumerate() {
        // A Service that says both contradicts itself, as in Kubernetes 1.17. Keys from above hold for
        // clients inside, and `externalTrafficPolicy: Local` for those outside.
        let local = external_local && *origin == Origin::Service;
        let keys_annotation = || {
            let text = policy.topology_keys.as_deref()?;
            let keys = kept(text).and_then(|text| keys::from_annotation(text, local));
            Some(keys.map(|keys| Rules::Keys(Keys::of(keys))))
        };
        let openyurt_annotation = || {
            let value = policy.openyurt.as_deref()?;
            let reach = kept(value).and_then(openyurt::from_annotation);
            Some(reach.map(|reach| Rules::OpenYurt { value, reach }))
        };
        let keys_field = || {
            let keys = &policy.spec_topology_keys;
            (!keys.is_empty())
                .then(|| keys::from_field(keys, local).map(|keys| Rules::Keys(Keys::of(keys))))
        };
        // The first valid source is in force; later ones are not read.
        for (source, rules) in [
            (PolicySource::TopologyKeys, &keys_annotation as &dyn Fn() -> _),
            (PolicySource::OpenYurt, &openyurt_annotation),
            (PolicySource::SpecTopologyKeys, &keys_field),
        ] {
            match rules() {
                Some(Ok(rules)) => {
                    let source = origin.source().unwrap_or(source);
                    return (Policy::new(source, origin.clone(), rules, ignored), at);
                }
                Some(Err(rule)) => {
                    let (origin, what) = (origin.clone(), Field::Policy(source));
                    ignored.push(Ignored { origin, what, rule });
                }
                None => {}
            }
        }
    }
    (Policy::new(PolicySource::None, Origin::Service, Rules::None, ignored), layers.len())
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
    fn new(source: PolicySource, origin: Origin, rules: Rules<'a>, ignored: Vec<Ignored>) -> Self {
        Self {
            source,
            origin,
            rules,
            external: None,
            weights: None,
            passed_over: Vec::new(),
            ignored,
            trials: Vec::new(),
            ejection: None,
            evacuating: Evacuating::default(),
            return_after: None,
            slow_start: None,
            refusal_intended: false,
            direct: Direct::Allow,
            direct_return: true,
            choice: None,
            handled: true,
        }
    }

    /// What holds for clients of this node.
    pub(super) fn inside(&self, only_local: bool) -> By<'_, 'a> {
        let evacuations = &self.evacuating.here[..];
        By { rules: &self.rules, weights: self.weights.as_ref(), evacuations, only_local }
    }

    /// What holds for clients outside.
    pub(super) fn for_outside(&self, service: &Service) -> By<'_, 'a> {
        let inside = self.inside(service.external_local);
        match &self.external {
            Some(rules) => By { rules, weights: None, only_local: false, ..inside },
            None => inside,
        }
    }

    /// Why topo-lb does not translate `service`; `None` if it does. [`Scope::OptIn`] includes
    /// Services with a valid policy or valid weights, and those that ask for hints, ejection or a slow start.
    pub(super) fn bypass(&self, scope: Scope, service: &Service) -> Option<Bypass<'static>> {
        let is_in_scope = match scope {
            Scope::All => true,
            Scope::OptIn => {
                let has_own = self.source != PolicySource::None || self.weights.is_some();
                let evacuates = !self.evacuating.all.is_empty();
                let asks = service.policy.hints_asked
                    || self.ejection.is_some()
                    || self.slow_start.is_some();
                has_own || asks || evacuates
            }
        };
        match (self.handled, is_in_scope) {
            (false, _) => Some(Bypass::Annotation),
            (true, false) => Some(Bypass::OutOfScope),
            (true, true) => None,
        }
    }
}
