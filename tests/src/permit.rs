//! Permission to make what outlives the process: none after a signal, while everything is removed.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// Held for reading while something is made, and for writing from a signal on. The lock protects no
/// data, so poison does not matter.
static MAKING: RwLock<()> = RwLock::new(());

/// Permits making namespaces, cgroups and processes until dropped. Blocks for good after a signal.
pub fn permit() -> RwLockReadGuard<'static, ()> {
    MAKING.read().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until nothing is being made; from then on nothing can be.
pub(crate) fn forbid() {
    std::mem::forget(MAKING.write().unwrap_or_else(PoisonError::into_inner));
}
