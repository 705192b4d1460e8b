//! The steps from what is installed to what is desired.
//!
//! The order makes every prefix of a plan safe: what an entry refers to is written before the
//! entry, and what it no longer refers to is reused only after a grace period.

use std::collections::BTreeSet;

use super::capacity::Lack;
use super::desired::Desired;
use super::draft::Draft;
use super::extent::Extent;
use super::finished::Plan;
use super::indexes::service_of;
use super::installed::Installed;
use super::ration::{self, Ration};
use crate::cluster::ServiceId;
use crate::topology::size::Excess;

/// Plans the changes of the Services in `touched`, which must name every Service whose desired
/// state has changed since the last plan. If they do not all fit, `ration` decides. Those that are too large
/// lack room, and what is installed of them goes.
pub fn plan(
    desired: &Desired,
    installed: &Installed,
    touched: &BTreeSet<ServiceId>,
    ration: &mut Ration,
) -> Plan {
    let mut draft = Draft::new(installed, ration.narrows());
    for (_, wait) in ration.wanting(touched) {
        draft.close(wait.closes());
    }
    let mut plan = match touched.iter().all(|id| draft.settle(desired, id, Extent::Whole).is_ok()) {
        true => draft.finish(),
        false => ration::plan(desired, installed, touched, ration),
    };
    let meanwhile = ration.left_out();
    let too_large = touched.iter().filter_map(|id| Some((id, desired.too_large(id)?)));
    let lack = |excess: Excess| Lack { of: excess.into(), meanwhile };
    plan.unprogrammed.extend(too_large.map(|(id, excess)| (id.clone(), lack(excess))));
    plan
}

/// Services that are installed but not desired: they were deleted while no agent ran.
pub fn orphans(desired: &Desired, installed: &Installed) -> BTreeSet<ServiceId> {
    installed
        .indexes()
        .iter()
        .filter_map(|(_, name)| service_of(name))
        .filter(|id| desired.targets(id).is_empty())
        .collect()
}
