//! The limit on locked memory, which maps and programs count against before Linux 5.11.

use rustix::process::{Resource, Rlimit, setrlimit};

/// Lifts `RLIMIT_MEMLOCK` of this process. Before Linux 5.11 the kernel counts the memory of all maps
/// and programs of a user together (`bpf_map_charge_init`, kernel/bpf/syscall.c): beside an agent that
/// runs, the usual limit is used up, and the kernel answers EPERM to the next one. From 5.11 on memory
/// counts for the cgroup instead, and the limit means nothing here. A process that may not lift it
/// (`CAP_SYS_RESOURCE`) goes on with the one it has.
pub fn lift_limit() {
    let _ = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
}
