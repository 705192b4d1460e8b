//! What users should know of a Service on this node, and what of it is news. Pure.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use uuid::Uuid;

use topo_lb_core::cluster::{ServiceId, State};
use topo_lb_core::explain;
use topo_lb_core::plan::Lack;
use topo_lb_core::reconcile::{Recomputed, Served};
use topo_lb_core::refusal::Refusal;
use topo_lb_core::topology::cause::Cause;
use topo_lb_core::topology::decision::Choice;
use topo_lb_core::topology::{self, Origin, Scope, Verdict, decide, port_name};

/// A Service port that refuses connections of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub why: Refusal,
    /// All address families of the Service are refused, so the node as a whole is.
    pub whole: bool,
    /// Annotation `topo-lb.io/refusal: intended`.
    pub intended: bool,
    /// The label, with this node's value, of all nodes refused for this reason; `None` if alone.
    pub shared: Option<String>,
    /// The reason that `explain` gives.
    pub sentence: String,
    /// How the port was served before, while the loss is not reported.
    pub untold: Option<Served>,
}

impl Refused {
    /// False for a Service without any endpoint: every node refuses it, and other tools show it.
    const fn is_worth_telling(&self) -> bool {
        self.whole && !self.intended && !matches!(self.why, Refusal::NoEndpoints)
    }
}

/// Problems of a Service on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Concern {
    /// The rules that its annotations and fields broke.
    pub ignored: Option<String>,
    /// Its ports that refuse connections, by their names `namespace/name:port`.
    pub refused: BTreeMap<Arc<str>, Refused>,
}

impl Concern {
    /// The problems of a Service; most have none.
    #[must_use]
    pub fn of(state: &State, this_node: &str, scope: Scope, id: &ServiceId) -> Self {
        let known = state.node(this_node).is_some();
        let mut concern = Self::default();
        let decisions = decide(state, this_node, scope, id);
        if decisions.is_empty() {
            // A headless one may say what becomes of direct dials.
            concern.ignored = topology::ignored(state, id);
        }
        for decision in decisions {
            // What a policy's object breaks is no fault of each of its Services.
            let own = decision.policy.ignored.iter().filter(|one| one.origin == Origin::Service);
            let rules: Vec<_> = own.map(ToString::to_string).collect();
            if concern.ignored.is_none() && !rules.is_empty() {
                concern.ignored = Some(rules.join("; "));
            }
            let refusing = decision.choices.iter().find(|choice| choice.verdict == Verdict::Refuse);
            if let Some(choice) = refusing {
                let refused = Refused {
                    why: Refusal::of(&choice.cause),
                    whole: decision.verdict() == Verdict::Refuse,
                    intended: decision.policy.refusal_intended,
                    shared: shared(choice),
                    sentence: explain::sentence(&decision, this_node, known),
                    untold: None,
                };
                concern.refused.insert(port_name(decision.service, decision.port), refused);
            }
        }
        concern
    }

    /// Whether there is no problem.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.ignored.is_none() && self.refused.is_empty()
    }
}

/// Of a refused choice: the last key that this node has a value for, which is the widest, or its
/// node pool.
fn shared(choice: &Choice<'_>) -> Option<String> {
    match choice.cause {
        Cause::NoKey => {
            let tiers = choice.tiers.iter().rev();
            let mut values = tiers.filter_map(|tier| Some((tier.key, tier.own?)));
            values.next().map(|(key, value)| format!("{key}={value}"))
        }
        cause => cause.value().map(|pool| format!("node pool {pool}")),
    }
}

/// What an Event is about; as text the Event's `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, strum::Display)]
pub enum Topic {
    /// An annotation or field broke a rule, and is ignored.
    #[strum(serialize = "InvalidTopologyPolicy")]
    InvalidPolicy,
    /// All connections of this node to a Service port are refused; the port was served before.
    NodeRefused,
    /// The kernel refused connections to a Service port.
    ClientsRefused,
    /// An endpoint is ejected, because connects to it failed; before, none of the Service's was.
    EndpointEjected,
    /// The Service lacks room in the maps.
    #[strum(serialize = "NoRoomInMaps")]
    NoRoom,
    /// No server can listen at the Service's `healthCheckNodePort`. kube-proxy's name of it.
    #[strum(serialize = "FailedToStartServiceHealthcheck")]
    HealthCheck,
}

impl Topic {
    /// The Event's `action`: what the agent did.
    #[must_use]
    pub const fn action(self) -> &'static str {
        match self {
            Self::InvalidPolicy => "ReadPolicy",
            Self::NodeRefused => "ChooseEndpoints",
            Self::ClientsRefused => "Refuse",
            Self::EndpointEjected => "Eject",
            Self::NoRoom => "Program",
            Self::HealthCheck => "Listen",
        }
    }
}

/// A message for an Event at a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// The Service.
    pub service: ServiceId,
    /// Its UID, if known.
    pub uid: Option<Uuid>,
    /// What it is about.
    pub topic: Topic,
    /// Distinguishes news of one topic. Nodes with the same subject share one Event.
    pub subject: String,
    /// The Event's text.
    pub note: String,
}

impl News {
    /// News that all nodes share.
    fn of(service: &ServiceId, uid: Option<Uuid>, topic: Topic, note: String) -> Self {
        Self { service: service.clone(), uid, topic, subject: String::new(), note }
    }
}

/// The news of a Service: newly broken rules, and ports that were served and are now refused.
/// Improvements are no news. Marks in `after` the losses that are still to be reported.
#[must_use]
pub fn news(
    id: &ServiceId,
    uid: Option<Uuid>,
    node: &str,
    recomputed: &Recomputed,
    before: &Concern,
    after: &mut Concern,
) -> Vec<News> {
    let news = |topic, subject, note| News { subject, ..News::of(id, uid, topic, note) };
    let mut all = Vec::new();
    if let Some(rules) = &after.ignored
        && before.ignored != after.ignored
    {
        // Every node has the same subject.
        all.push(news(Topic::InvalidPolicy, rules.clone(), rules.clone()));
    }
    let mut lost = Vec::new();
    let mut subject = None;
    for (name, refused) in &mut after.refused {
        let served = recomputed.served.get(name).copied();
        let untold = served.or_else(|| before.refused.get(name).and_then(|before| before.untold));
        if !refused.is_worth_telling() {
            refused.untold = untold.filter(|_| !refused.intended);
            continue;
        }
        let Some(by) = untold else { continue };
        lost.push(format!("connections to port {} are refused: {}", port(name), refused.sentence));
        subject.get_or_insert_with(|| match (by, &refused.shared) {
            // A stricter policy affects all nodes at once, which share one subject.
            (Served::WithoutKey, Some(_)) => String::new(),
            (_, Some(shared)) => shared.clone(),
            (_, None) => node.to_owned(),
        });
    }
    if let Some(subject) = subject {
        let place = match &*subject {
            shared if shared.is_empty() || shared == node => format!("on node {node}"),
            shared => format!("on node {node} ({shared})"),
        };
        all.push(news(Topic::NodeRefused, subject, format!("{place}: {}", lost.join("; "))));
    }
    all
}

/// News of refusals that the kernel counted, by Service port.
#[must_use]
pub fn clients_refused(
    id: &ServiceId,
    uid: Option<Uuid>,
    node: &str,
    concern: &Concern,
    counted: &BTreeMap<Arc<str>, u64>,
) -> Option<News> {
    let ports: Vec<_> = concern
        .refused
        .iter()
        .filter(|(_, refused)| refused.is_worth_telling())
        .filter_map(|(name, refused)| Some((name, refused, counted.get(name)?)))
        .map(|(name, refused, count)| {
            format!("{count} connections to port {} were refused: {}", port(name), refused.sentence)
        })
        .collect();
    let note = format!(
        "on node {node}: {}; if that is meant, annotate the Service with topo-lb.io/refusal: \
         intended",
        ports.join("; ")
    );
    (!ports.is_empty()).then(|| News::of(id, uid, Topic::ClientsRefused, note))
}

/// News of a Service that lacks room in the maps.
#[must_use]
pub fn no_room(id: &ServiceId, uid: Option<Uuid>, node: &str, lack: Lack) -> News {
    News::of(id, uid, Topic::NoRoom, format!("on node {node}: {lack}"))
}

/// News of an endpoint that is ejected. All nodes have the same subject.
#[must_use]
pub fn ejected(
    id: &ServiceId,
    uid: Option<Uuid>,
    node: &str,
    endpoint: SocketAddr,
    sentence: &str,
) -> News {
    let note = format!("on node {node}: {sentence}");
    News { subject: endpoint.to_string(), ..News::of(id, uid, Topic::EndpointEjected, note) }
}

/// News of a health check that this node does not answer.
#[must_use]
pub fn health_check(id: &ServiceId, uid: Option<Uuid>, node: &str, why: &str) -> News {
    News::of(id, uid, Topic::HealthCheck, format!("on node {node}: {why}"))
}

/// The port in `namespace/name:port`.
fn port(name: &str) -> &str {
    name.rsplit_once(':').map_or(name, |(_, port)| port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> ServiceId {
        ServiceId { namespace: "default".into(), name: "web".into() }
    }

    fn refused(why: Refusal, whole: bool) -> Concern {
        let refused = Refused {
            why,
            whole,
            intended: false,
            shared: Some("zone=a".to_owned()),
            sentence: "no key matches".to_owned(),
            untold: None,
        };
        Concern { refused: BTreeMap::from([("default/web:http".into(), refused)]), ignored: None }
    }

    fn intended() -> Concern {
        let mut concern = refused(Refusal::Policy, true);
        concern.refused.values_mut().for_each(|refused| refused.intended = true);
        concern
    }

    fn ignored(text: &str) -> Concern {
        Concern { ignored: Some(text.to_owned()), ..Concern::default() }
    }

    /// The maps served the port until now.
    fn served(by: Served) -> Recomputed {
        let served = BTreeMap::from([("default/web:http".into(), by)]);
        Recomputed { is_concern: true, served, is_installed: true }
    }

    /// The maps did not serve the port.
    fn unserved() -> Recomputed {
        Recomputed { is_concern: true, ..Recomputed::default() }
    }

    /// Subjects and notes of the news of these, in order.
    fn told(services: Vec<(Recomputed, Concern)>) -> Vec<(String, String)> {
        let mut before = Concern::default();
        let mut all = Vec::new();
        for (recomputed, mut after) in services {
            let news = news(&id(), None, "here", &recomputed, &before, &mut after);
            all.extend(news.into_iter().map(|one| (one.subject, one.note)));
            before = after;
        }
        all
    }

    #[test]
    fn a_broken_rule_and_the_loss_of_all_endpoints_are_told_once() {
        let by_key = || served(Served::ByKey);
        let lost = || refused(Refusal::Policy, true);
        let gone = || refused(Refusal::NoEndpoints, true);
        let ended = "connections to port http are refused: no key matches";
        let loss = ("zone=a", &*format!("on node here (zone=a): {ended}"));
        // A stricter policy is one Event for all nodes.
        let stricter = ("", &*format!("on node here: {ended}"));
        for (what, services, wanted) in [
            ("a loss", vec![(by_key(), lost()), (unserved(), lost())], &[loss][..]),
            ("never served", vec![(unserved(), lost())], &[]),
            (
                "meant, and still lost when it is meant no more",
                vec![(by_key(), intended()), (unserved(), intended()), (unserved(), lost())],
                &[],
            ),
            ("a stricter policy", vec![(served(Served::WithoutKey), lost())], &[stricter]),
            (
                "only others get endpoints again",
                [by_key(), unserved()]
                    .map(|it| (it, gone()))
                    .into_iter()
                    .chain([unserved(), unserved()].map(|it| (it, lost())))
                    .collect(),
                &[loss],
            ),
            ("a family alone", vec![(by_key(), refused(Refusal::Policy, false))], &[]),
            (
                "another broken rule",
                ["a", "b", "b"].map(|text| (unserved(), ignored(text))).into(),
                &[("a", "a"), ("b", "b")],
            ),
        ] {
            let told = told(services);
            let told: Vec<_> = told.iter().map(|(subject, note)| (&**subject, &**note)).collect();
            assert_eq!(told, wanted, "{what}");
        }
    }

    #[test]
    fn refusals_that_were_counted_are_told_unless_they_are_meant() {
        let counted = BTreeMap::from([("default/web:http".into(), 7)]);
        let told = |concern| clients_refused(&id(), None, "here", &concern, &counted);
        let note = told(refused(Refusal::Policy, true)).map(|news| news.note).unwrap_or_default();
        let begin =
            "on node here: 7 connections to port http were refused: no key matches; if that";
        assert!(note.starts_with(begin), "{note}");
        assert_eq!(told(intended()), None);
        assert_eq!(told(refused(Refusal::NoEndpoints, true)), None);
        let others = BTreeMap::new();
        let concern = refused(Refusal::Policy, true);
        assert_eq!(clients_refused(&id(), None, "here", &concern, &others), None);
    }
}
