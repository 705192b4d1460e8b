//! The limit on locked memory, which before Linux 5.11 limits maps and programs.

use rustix::process::{Resource, Rlimit, setrlimit};

/// Lifts `RLIMIT_MEMLOCK` of this process. Before Linux 5.11 the kernel counts the memory of all
/// maps and programs of a user together (`bpf_map_charge_init`, kernel/bpf/syscall.c): a running
/// agent uses up the usual limit, and the next process gets EPERM. From 5.11 on, memory counts for
/// the cgroup, and the limit has no effect here. A process that may not lift it
/// (`CAP_SYS_RESOURCE`) continues with the limit it has.
pub fn lift_limit() {
    let _ = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
}
