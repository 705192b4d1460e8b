//! What people should know of a Service on this node, and what of it is news. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cluster::{ServiceId, State};
use crate::explain;
use crate::topology::cause::Cause;
use crate::topology::{Scope, Verdict, decide, port_name};

/// Why connections to a Service port are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// The Service's policy leaves this node no endpoint.
    Policy,
    /// `internalTrafficPolicy: Local`, and no endpoint is on this node.
    Local,
    /// No endpoint can be used by anybody.
    NoEndpoints,
    /// It is not refused any more, or by now for a reason that cannot be told.
    Past,
}

impl Refusal {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::Policy, Self::Local, Self::NoEndpoints, Self::Past];

    /// As a metric's label has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Policy => "topology-policy",
            Self::Local => "internal-traffic-policy",
            Self::NoEndpoints => "no-endpoints",
            Self::Past => "past",
        }
    }

    const fn of(cause: &Cause<'_>) -> Self {
        match cause {
            Cause::NoEndpoint(_) | Cause::NoneUsable => Self::NoEndpoints,
            Cause::NoneHere => Self::Local,
            _ => Self::Policy,
        }
    }
}

/// A Service port that refuses connections of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub why: Refusal,
    /// In both address families, if it has both: the node as a whole is refused.
    pub whole: bool,
    /// The reason that `explain` gives.
    pub sentence: String,
}

/// What people should know of a Service on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Concern {
    /// The rules that its annotations and fields broke.
    pub ignored: Option<String>,
    /// Its ports that refuse connections, by their names `namespace/name:port`.
    pub refused: BTreeMap<Arc<str>, Refused>,
}

impl Concern {
    /// What there is to know; nothing of most Services.
    #[must_use]
    pub fn of(state: &State, this_node: &str, scope: Scope, id: &ServiceId) -> Self {
        let known = state.node(this_node).is_some();
        let mut concern = Self::default();
        for decision in decide(state, this_node, scope, id) {
            if concern.ignored.is_none() && !decision.policy.ignored.is_empty() {
                let rules = decision.policy.ignored.iter().map(ToString::to_string);
                concern.ignored = Some(rules.collect::<Vec<_>>().join("; "));
            }
            let refusing = decision.choices.iter().find(|choice| choice.verdict == Verdict::Refuse);
            if let Some(choice) = refusing {
                let refused = Refused {
                    why: Refusal::of(&choice.cause),
                    whole: decision.verdict() == Verdict::Refuse,
                    sentence: explain::sentence(&decision, this_node, known),
                };
                concern.refused.insert(port_name(decision.service, decision.port), refused);
            }
        }
        concern
    }

    /// Whether there is nothing to know.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.ignored.is_none() && self.refused.is_empty()
    }
}

/// What an Event is about. Its name is the Event's reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topic {
    /// An annotation or field broke a rule, and is ignored.
    InvalidPolicy,
    /// Every connection of this node to a Service port is refused.
    NodeRefused,
    /// The Service has no room in the maps, and is left to kube-proxy.
    NoRoom,
}

impl Topic {
    /// The Event's `reason`.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::InvalidPolicy => "InvalidTopologyPolicy",
            Self::NodeRefused => "NodeRefused",
            Self::NoRoom => "NoRoomInMaps",
        }
    }

    /// The Event's `action`: what the agent was doing.
    #[must_use]
    pub const fn action(self) -> &'static str {
        match self {
            Self::InvalidPolicy => "ReadPolicy",
            Self::NodeRefused => "ChooseEndpoints",
            Self::NoRoom => "Program",
        }
    }
}

/// Something to tell people, at a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// Which.
    pub service: ServiceId,
    /// What it is about.
    pub topic: Topic,
    /// For people.
    pub note: String,
}

/// What is news of a Service. Nothing is when things get better, and nothing where a Service has no
/// endpoint at all: that is so on every node, and others say so.
#[must_use]
pub fn news(id: &ServiceId, before: &Concern, after: &Concern) -> Vec<News> {
    let news = |topic, note| News { service: id.clone(), topic, note };
    let mut all = Vec::new();
    if let Some(rules) = &after.ignored
        && before.ignored != after.ignored
    {
        all.push(news(Topic::InvalidPolicy, rules.clone()));
    }
    let is_told = |refused: &Refused| refused.whole && refused.why != Refusal::NoEndpoints;
    for (name, refused) in after.refused.iter().filter(|(_, refused)| is_told(refused)) {
        if !before.refused.get(name).is_some_and(is_told) {
            let port = name.rsplit_once(':').map_or(&**name, |(_, port)| port);
            let note = format!("connections to port {port} are refused: {}", refused.sentence);
            all.push(news(Topic::NodeRefused, note));
        }
    }
    all
}

/// What is to be told of a Service that has no room any more.
#[must_use]
pub fn no_room(id: &ServiceId) -> News {
    let note = "this node's maps are full, the Service is left to kube-proxy: start the agent with \
                a larger --max-services or --max-endpoints";
    News { service: id.clone(), topic: Topic::NoRoom, note: note.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> ServiceId {
        ServiceId { namespace: "default".into(), name: "web".into() }
    }

    fn refused(why: Refusal, whole: bool) -> Concern {
        let refused = Refused { why, whole, sentence: "no key matches".to_owned() };
        Concern { refused: BTreeMap::from([("default/web:http".into(), refused)]), ignored: None }
    }

    fn ignored(text: &str) -> Concern {
        Concern { ignored: Some(text.to_owned()), ..Concern::default() }
    }

    #[test]
    fn a_refusal_is_news_once() {
        let nothing = Concern::default();
        let now = refused(Refusal::Policy, true);
        let told = news(&id(), &nothing, &now);
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].topic, Topic::NodeRefused);
        assert_eq!(told[0].note, "connections to port http are refused: no key matches");
        assert_eq!(news(&id(), &now, &now), []);
        assert_eq!(news(&id(), &now, &nothing), []);
    }

    #[test]
    fn a_service_without_any_endpoint_is_no_news() {
        assert_eq!(news(&id(), &Concern::default(), &refused(Refusal::NoEndpoints, true)), []);
        let after = refused(Refusal::Policy, true);
        assert_eq!(news(&id(), &refused(Refusal::NoEndpoints, true), &after).len(), 1);
    }

    #[test]
    fn a_family_alone_is_no_news() {
        assert_eq!(news(&id(), &Concern::default(), &refused(Refusal::Policy, false)), []);
    }

    #[test]
    fn another_broken_rule_is_news() {
        let told = news(&id(), &ignored("a"), &ignored("b"));
        assert_eq!(told.len(), 1);
        assert_eq!((told[0].topic, &*told[0].note), (Topic::InvalidPolicy, "b"));
        assert_eq!(news(&id(), &ignored("b"), &ignored("b")), []);
    }
}
