//! The annotations that topo-lb reads, and on which objects each counts.

use std::fmt;
use std::sync::Arc;

use strum::IntoEnumIterator as _;

use super::service::PolicySources;

/// An annotation that topo-lb reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::EnumIter)]
#[expect(missing_docs, reason = "`name` says them, and docs/topology.md what they do")]
pub enum Annotation {
    TopologyKeys,
    OpenYurt,
    ExternalTopologyKeys,
    MinEndpoints,
    Spill,
    Weights,
    Ejection,
    Evacuate,
    Return,
    SlowStart,
    Refusal,
    Direct,
    DirectReturn,
    Choice,
    Handle,
    Dns,
    Mode,
    Ramp,
    Exclude,
    Steer,
}

/// A kind of object on which annotations may count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display)]
pub enum On {
    /// A Service.
    Service,
    /// A Namespace: for its Services.
    Namespace,
    /// A Pod.
    Pod,
    /// Any other object, on which none counts.
    #[strum(serialize = "object")]
    Other,
}

/// Why an annotation or a label has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// It counts on other kinds of objects.
    Misplaced(Annotation),
    /// This one may be meant.
    Misspelt(Annotation),
    /// It counts as an annotation, and is a label.
    Label(Annotation),
    /// Nothing like it is known.
    Unknown,
    /// OpenYurt's, for something else than topology.
    OpenYurts,
}

/// The prefix of topo-lb's own.
const OWN: &str = "topo-lb.io/";
/// The prefix of OpenYurt's.
const OPENYURT: &str = "openyurt.io/";

impl Annotation {
    /// Its key.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TopologyKeys => "topo-lb.io/topology-keys",
            Self::OpenYurt => "openyurt.io/topologyKeys",
            Self::ExternalTopologyKeys => "topo-lb.io/external-topology-keys",
            Self::MinEndpoints => "topo-lb.io/min-endpoints",
            Self::Spill => "topo-lb.io/spill",
            Self::Weights => "topo-lb.io/weights",
            Self::Ejection => "topo-lb.io/ejection",
            Self::Evacuate => "topo-lb.io/evacuate",
            Self::Return => "topo-lb.io/return",
            Self::SlowStart => "topo-lb.io/slow-start",
            Self::Refusal => "topo-lb.io/refusal",
            Self::Direct => "topo-lb.io/direct",
            Self::DirectReturn => "topo-lb.io/direct-return",
            Self::Choice => "topo-lb.io/choice",
            Self::Handle => "topo-lb.io/handle",
            Self::Dns => "topo-lb.io/dns",
            Self::Mode => "topo-lb.io/mode",
            Self::Ramp => "topo-lb.io/ramp",
            Self::Exclude => "topo-lb.io/exclude",
            Self::Steer => "topo-lb.io/steer",
        }
    }

    /// The annotation of this name; topo-lb's own also without their prefix.
    #[must_use]
    pub fn named(text: &str) -> Option<Self> {
        Self::iter().find(|one| one.name() == text || one.name().strip_prefix(OWN) == Some(text))
    }

    /// Where it counts.
    #[must_use]
    pub const fn counts_on(self) -> &'static [On] {
        match self {
            Self::OpenYurt | Self::Dns => &[On::Service],
            Self::Exclude | Self::Steer => &[On::Pod],
            _ => &[On::Service, On::Namespace],
        }
    }

    /// What a Service or a Namespace says there.
    #[must_use]
    pub fn said(self, policy: &PolicySources) -> Option<&str> {
        let text = match self {
            Self::TopologyKeys => &policy.topology_keys,
            Self::OpenYurt => &policy.openyurt,
            Self::ExternalTopologyKeys => &policy.external_topology_keys,
            Self::MinEndpoints => &policy.min_endpoints,
            Self::Spill => &policy.spill,
            Self::Weights => &policy.weights,
            Self::Ejection => &policy.ejection,
            Self::Evacuate => &policy.evacuate,
            Self::Return => &policy.return_after,
            Self::SlowStart => &policy.slow_start,
            Self::Refusal => &policy.refusal,
            Self::Direct => &policy.direct,
            Self::DirectReturn => &policy.direct_return,
            Self::Choice => &policy.choice,
            Self::Handle => &policy.handle,
            Self::Dns => &policy.dns,
            Self::Mode => &policy.mode,
            Self::Ramp => &policy.ramp,
            Self::Exclude | Self::Steer => &None,
        };
        text.as_deref()
    }

    /// Has a Service say this there.
    pub fn say(self, policy: &mut PolicySources, value: Option<Arc<str>>) {
        let text = match self {
            Self::TopologyKeys => &mut policy.topology_keys,
            Self::OpenYurt => &mut policy.openyurt,
            Self::ExternalTopologyKeys => &mut policy.external_topology_keys,
            Self::MinEndpoints => &mut policy.min_endpoints,
            Self::Spill => &mut policy.spill,
            Self::Weights => &mut policy.weights,
            Self::Ejection => &mut policy.ejection,
            Self::Evacuate => &mut policy.evacuate,
            Self::Return => &mut policy.return_after,
            Self::SlowStart => &mut policy.slow_start,
            Self::Refusal => &mut policy.refusal,
            Self::Direct => &mut policy.direct,
            Self::DirectReturn => &mut policy.direct_return,
            Self::Choice => &mut policy.choice,
            Self::Handle => &mut policy.handle,
            Self::Dns => &mut policy.dns,
            Self::Mode => &mut policy.mode,
            Self::Ramp => &mut policy.ramp,
            Self::Exclude | Self::Steer => return,
        };
        *text = value;
    }

    /// Why an annotation of this key has no effect on such an object; `None` if it has, or is none of ours.
    #[must_use]
    pub fn doubt(key: &str, on: On) -> Option<Doubt> {
        if let Some(known) = Self::iter().find(|one| one.name() == key) {
            return (!known.counts_on().contains(&on)).then_some(Doubt::Misplaced(known));
        }
        // Elsewhere two edits are a slip of the pen, and more another name.
        let most = if key.starts_with(OWN) { key.len().saturating_sub(OWN.len()) / 2 } else { 2 };
        match Self::nearest(key, most) {
            Some(near) => Some(Doubt::Misspelt(near)),
            None if key.starts_with(OWN) => Some(Doubt::Unknown),
            // Nodes and Pods have many that OpenYurt reads.
            None if key.starts_with(OPENYURT) && matches!(on, On::Service | On::Namespace) => {
                Some(Doubt::OpenYurts)
            }
            None => None,
        }
    }

    /// Why a label of this key has no effect; `None` if it is none of ours. Other labels are for selectors.
    #[must_use]
    pub fn doubt_of_label(key: &str) -> Option<Doubt> {
        Self::nearest(key, 0).map(Doubt::Label)
    }

    /// The annotation with the fewest edits to a key, at most so many. Case, dots, dashes and underscores
    /// do not count.
    fn nearest(key: &str, most: usize) -> Option<Self> {
        let plain = |text: &str| text.to_lowercase().replace(['-', '_', '.'], "");
        let key = plain(key);
        let edits = |one: Self| {
            let name = plain(one.name());
            // A length costs less than the edits, of which it takes at least its difference.
            let is_near = name.len().abs_diff(key.len()) <= most;
            is_near.then(|| strsim::damerau_levenshtein(&name, &key))
        };
        let nearest = Self::iter().filter_map(|one| Some((edits(one)?, one))).min()?;
        (nearest.0 <= most).then_some(nearest.1)
    }
}

impl fmt::Display for Annotation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether this value of a Pod's annotation says that it holds; `None` if it is neither `true` nor `false`.
#[must_use]
pub fn is_true(value: &str) -> Option<bool> {
    match value.trim() {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_misspelt_has_the_nearest_name() {
        let misspelt = |key: &str| match Annotation::doubt(key, On::Service) {
            Some(Doubt::Misspelt(near)) => Some(near),
            _ => None,
        };
        for (key, near) in [
            ("topo-lb.io/topologyKeys", Annotation::TopologyKeys),
            ("topolb.io/topology-keys", Annotation::TopologyKeys),
            ("topo-lb/topology-keys", Annotation::TopologyKeys),
            ("topo-lb.io/topology_key", Annotation::TopologyKeys),
            ("topo-lb.io/weight", Annotation::Weights),
            ("topo-lb.io/excluded", Annotation::Exclude),
            ("openyurt.io/topologykeys", Annotation::OpenYurt),
            ("openyurt.io/topology-key", Annotation::OpenYurt),
        ] {
            assert_eq!(misspelt(key), Some(near), "{key}");
        }
        assert_eq!(Annotation::doubt("topo-lb.io/zzz", On::Service), Some(Doubt::Unknown));
        assert_eq!(Annotation::doubt("openyurt.io/x", On::Service), Some(Doubt::OpenYurts));
        assert_eq!(Annotation::doubt("openyurt.io/x", On::Pod), None);
        let label = Annotation::doubt_of_label("topo-lb.io/topology-keys");
        assert_eq!(label, Some(Doubt::Label(Annotation::TopologyKeys)));
        for other in [
            "service.kubernetes.io/topology-mode",
            "topology.kubernetes.io/zone",
            "apps.openyurt.io/nodepool",
            "example.com/topology-keys",
        ] {
            assert_eq!(Annotation::doubt(other, On::Service), None, "{other}");
            assert_eq!(Annotation::doubt_of_label(other), None, "{other}");
        }
        assert_eq!(Annotation::doubt_of_label("topo-lb.io/strict"), None);
    }
}
