//! Why connections are refused, as Events and metrics name it.

use crate::topology::cause::Cause;

/// Why connections to a Service port are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// The policy leaves this node no endpoint.
    Policy,
    /// `internalTrafficPolicy: Local`, and no endpoint is on this node.
    Local,
    /// No node can use an endpoint of the Service.
    NoEndpoints,
    /// The Service lacks room in the maps, its policy is strict, and `--when-full` says to refuse.
    NoRoom,
    /// No longer refused, or now for a reason that has no name here.
    Past,
}

impl Refusal {
    /// All reasons.
    pub const ALL: [Self; 5] =
        [Self::Policy, Self::Local, Self::NoEndpoints, Self::NoRoom, Self::Past];

    /// The value of the metric's label.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Policy => "topology-policy",
            Self::Local => "internal-traffic-policy",
            Self::NoEndpoints => "no-endpoints",
            Self::NoRoom => "no-room",
            Self::Past => "past",
        }
    }

    /// The reason that a decision gives.
    #[must_use]
    pub const fn of(cause: &Cause<'_>) -> Self {
        match cause {
            Cause::NoEndpoint(_) | Cause::NoneUsable => Self::NoEndpoints,
            Cause::NoneHere => Self::Local,
            Cause::Unconstrained
            | Cause::Key { .. }
            | Cause::Any { .. }
            | Cause::NoKey
            | Cause::Node
            | Cause::Pool(_)
            | Cause::NodeForLackOfPool
            | Cause::HintedNode
            | Cause::HintedZone(_)
            | Cause::HintsOff(_) => Self::Policy,
        }
    }
}
