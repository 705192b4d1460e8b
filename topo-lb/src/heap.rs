//! What the allocator keeps for itself. Reading a whole cluster takes several times the memory that
//! knowing it takes, and what glibc holds back afterwards would count for as long as the agent runs.

/// Has all threads share one heap: a second one, of a thread that reads manifests now and then, would
/// mostly hold garbage. Call it before there are threads.
pub fn share() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes two integers; one arena is always possible.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Gives free memory back to the system. Takes some milliseconds on a heap of a large cluster.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes an integer, and touches only what is free.
    unsafe {
        libc::malloc_trim(0);
    }
}
