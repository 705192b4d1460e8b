//! membarrier(2): waits until all running programs have ended.

use std::io;

const QUERY: libc::c_int = 0;
/// `MEMBARRIER_CMD_GLOBAL` is synchronize_rcu(): programs run under RCU, so all that were running
/// at the call have ended when it returns (kernel/sched/membarrier.c).
const GLOBAL: libc::c_int = 1;

fn membarrier(command: libc::c_int) -> io::Result<libc::c_long> {
    // SAFETY: membarrier takes two integers and touches no memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Whether [`grace`] works. A seccomp filter may forbid it; with `nohz_full` there is none.
#[must_use]
pub fn is_there() -> bool {
    membarrier(QUERY).is_ok_and(|commands| commands & libc::c_long::from(GLOBAL) != 0)
}

/// Waits until every program that is running now has ended: some milliseconds.
///
/// # Errors
/// The kernel refuses.
pub fn grace() -> io::Result<()> {
    membarrier(GLOBAL).map(drop)
}
