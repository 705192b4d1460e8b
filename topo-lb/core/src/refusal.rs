//! Why connections are refused, as Events and metrics name it.

use crate::topology::cause::Cause;

/// Why connections to a Service port are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Refusal {
    /// The policy leaves this node no endpoint.
    #[strum(serialize = "topology-policy")]
    Policy,
    /// `internalTrafficPolicy: Local`, and no endpoint is on this node.
    #[strum(serialize = "internal-traffic-policy")]
    Local,
    /// No node can use an endpoint of the Service.
    NoEndpoints,
    /// The Service lacks room in the maps, its policy is strict, and `--when-full` says to refuse.
    NoRoom,
    /// `topo-lb.io/direct: refuse`: a client dialled an endpoint that the policy passes over.
    DirectDial,
    /// No longer refused, or now for a reason that has no name here.
    Past,
}

impl Refusal {
    /// All reasons.
    pub const ALL: [Self; 6] =
        [Self::Policy, Self::Local, Self::NoEndpoints, Self::NoRoom, Self::DirectDial, Self::Past];

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
            | Cause::Pool { .. }
            | Cause::NodeForLackOfPool
            | Cause::HintedNode
            | Cause::HintedZone(_)
            | Cause::HintsOff(_) => Self::Policy,
        }
    }
}
