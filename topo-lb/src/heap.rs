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

/// Counts what the unit tests allocate.
#[cfg(test)]
pub mod counted {
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::Cell;

    struct Counted;

    #[global_allocator]
    static COUNTED: Counted = Counted;

    thread_local! {
        /// What this thread did since its start, or since `during` began.
        static DONE: Cell<Done> = const { Cell::new(Done { held: 0, peak: 0, total: 0 }) };
    }

    /// Bytes.
    #[derive(Clone, Copy, Debug)]
    pub struct Done {
        /// Allocated and not freed.
        held: isize,
        /// The most that was held at a time.
        pub peak: isize,
        /// Allocated.
        pub total: isize,
    }

    fn add(bytes: isize) {
        // A thread that ends has no counter any more.
        let _ = DONE.try_with(|done| {
            let Done { held, peak, total } = done.get();
            let held = held + bytes;
            done.set(Done { held, peak: peak.max(held), total: total + bytes.max(0) });
        });
    }

    // SAFETY: `System` does it; `add` allocates nothing. `realloc` is the default one.
    unsafe impl GlobalAlloc for Counted {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            add(layout.size().cast_signed());
            // SAFETY: as the caller promises.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
            add(-layout.size().cast_signed());
            // SAFETY: as the caller promises.
            unsafe { System.dealloc(at, layout) }
        }
    }

    /// What `run` allocates.
    pub fn during<T>(run: impl FnOnce() -> T) -> (T, Done) {
        DONE.set(Done { held: 0, peak: 0, total: 0 });
        let got = run();
        (got, DONE.get())
    }
}
