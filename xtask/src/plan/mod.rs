//! Decides what to install, without installing it: a plan is data.
//!
//! [`step`] has the parts of a plan. [`draft`] collects what a machine lacks, and orders it. The
//! other modules handle what needs more than the table of needs.

mod cargo_tools;
mod draft;
mod kernel;
mod object;
mod step;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use draft::Draft;

use crate::machine::Machine;
use crate::needs::{ITEMS, Need};

pub(crate) use object::object_tools;
pub(crate) use step::{Plan, Step};

pub(crate) fn plan(machine: &Machine, needs: &BTreeSet<Need>) -> Plan {
    let mut draft = Draft::new(machine);
    for need in needs {
        match need {
            Need::Object => draft.object(),
            Need::ObjectLints => draft.object_lints(),
            Need::HostLints => draft.host_lints(),
            Need::Deny => draft.deny(),
            Need::Auditable => draft.auditable(),
            Need::Book => draft.book(),
            Need::Kernel => draft.kernel(),
            Need::Root => draft.root(),
            _ => {}
        }
        let lacks = |name| machine.lacks.contains(name);
        for item in ITEMS.iter().filter(|item| item.need == *need && lacks(item.name)) {
            draft.item(item);
        }
    }
    draft.finish()
}
