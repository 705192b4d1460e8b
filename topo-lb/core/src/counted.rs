//! Counts what the unit tests of a crate allocate; the agent's include this file, too.

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
pub(crate) struct Done {
    /// Allocated and not freed.
    held: isize,
    /// The most that was held at a time.
    pub(crate) peak: isize,
    /// Allocated.
    pub(crate) total: isize,
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
pub(crate) fn during<T>(run: impl FnOnce() -> T) -> (T, Done) {
    DONE.set(Done { held: 0, peak: 0, total: 0 });
    let got = run();
    (got, DONE.get())
}
