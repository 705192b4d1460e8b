//! Returns memory that the allocator keeps. Reading a whole cluster needs several times the memory
//! of its state, and glibc would otherwise keep the rest for as long as the agent runs.

/// Makes all threads share one heap: a second one, of a thread that only reads manifests now and
/// then, would mostly hold garbage. Call it before other threads start.
pub fn share() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes two integers; one arena is always possible.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Returns free memory to the system. Takes some milliseconds on a heap of a large cluster.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes an integer, and touches only what is free.
    unsafe {
        libc::malloc_trim(0);
    }
}
