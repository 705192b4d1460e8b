//! membarrier(2): waits until all running programs have ended.

use std::io;

use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};

/// Whether [`grace`] works. A seccomp filter may forbid it; with `nohz_full` there is none.
#[must_use]
pub fn is_there() -> bool {
    membarrier_query().contains(MembarrierQuery::GLOBAL)
}

/// Waits until every program that is running now has ended: some milliseconds.
///
/// # Errors
/// The kernel refuses.
pub fn grace() -> io::Result<()> {
    // synchronize_rcu() (kernel/sched/membarrier.c): programs run under RCU, so all that were running
    // at the call have ended when it returns.
    Ok(membarrier(MembarrierCommand::Global)?)
}
