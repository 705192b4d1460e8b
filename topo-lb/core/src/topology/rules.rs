//! Which endpoints a policy asks for, and what kind of policy it is.

use super::keys::Keys;
use super::openyurt::Reach;

/// What annotations and fields ask for. Hints are on slices, and apply only with `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rules<'a> {
    Keys(Keys<'a>),
    OpenYurt { value: &'a str, reach: Reach },
    None,
}

/// What a policy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum PolicyKind {
    /// The first node label with a match decides.
    Keys,
    /// This node, or this node's pool.
    OpenYurt,
    /// Endpoints hinted for this node, else for this zone, else every usable endpoint.
    Hints,
    /// Every usable endpoint.
    None,
}
