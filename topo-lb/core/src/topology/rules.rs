//! Which endpoints a policy asks for.

use super::keys::Keys;
use super::openyurt::Reach;

/// What annotations and fields ask for. Hints are on slices, and apply only with `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rules<'a> {
    Keys(Keys<'a>),
    OpenYurt { value: &'a str, reach: Reach },
    None,
}
