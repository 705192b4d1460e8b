//! The sizes of a Service by generation, and which generations a connection may have used.

use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use topo_lb_tests::address::{CYCLE, Endpoint, MOST};

/// The size of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceSize {
    /// The Service does not exist.
    Gone,
    /// The Service exists and has so many endpoints, below [`MOST`].
    Of(u16),
}

/// The result of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was translated to this endpoint.
    Landed(Endpoint),
    /// It was refused.
    Refused,
    /// It reached the ClusterIP itself.
    Untouched,
    /// Any other result: the kernel's error number, or zero for an address without a meaning.
    Failed(i32),
}

/// The past of one Service. Has one writer and many readers.
#[derive(Debug)]
pub(crate) struct History {
    /// By generation, modulo [`CYCLE`].
    sizes: Vec<AtomicU16>,
    /// The newest generation that the kernel may have.
    requested: AtomicU32,
    /// The newest generation that the kernel has for certain.
    confirmed: AtomicU32,
}

/// The generations that a connection may have used, both inclusive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    first: u32,
    last: u32,
}

const GONE: u16 = u16::MAX;

impl History {
    /// The history of a Service that does not exist, in generation zero.
    pub(crate) fn new() -> Self {
        Self {
            sizes: (0..CYCLE).map(|_| AtomicU16::new(GONE)).collect(),
            requested: AtomicU32::new(0),
            confirmed: AtomicU32::new(0),
        }
    }

    /// Starts the next generation; from now on a connection may use it.
    pub(crate) fn request(&self, size: ServiceSize) -> u32 {
        let generation = self.requested.load(Ordering::SeqCst) + 1;
        let code = match size {
            ServiceSize::Gone => GONE,
            ServiceSize::Of(count) => {
                assert!(count < MOST, "{count} endpoints have no addresses");
                count
            }
        };
        self.sizes[(generation % CYCLE) as usize].store(code, Ordering::SeqCst);
        self.requested.store(generation, Ordering::SeqCst);
        generation
    }

    /// The kernel has the requested generation: from now on no connection uses an earlier one.
    pub(crate) fn confirm(&self) {
        self.confirmed.store(self.requested.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// Call this before making a connection.
    pub(crate) fn before(&self) -> u32 {
        self.confirmed.load(Ordering::SeqCst)
    }

    /// Call this after making the connection.
    pub(crate) fn after(&self, before: u32) -> Window {
        Window { first: before, last: self.requested.load(Ordering::SeqCst) }
    }

    /// Whether `outcome` is right for `service`, this history's owner, in one of these generations.
    pub(crate) fn allows(&self, service: u8, window: Window, outcome: Outcome) -> bool {
        let size =
            |generation: u32| self.sizes[(generation % CYCLE) as usize].load(Ordering::SeqCst);
        (window.first..=window.last).any(|generation| match outcome {
            Outcome::Landed(endpoint) => {
                endpoint.service == service
                    && endpoint.generation == generation % CYCLE
                    && size(generation) != GONE
                    && endpoint.place < size(generation)
            }
            Outcome::Refused => size(generation) == 0,
            Outcome::Untouched => size(generation) == GONE,
            Outcome::Failed(_) => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn landed(service: u8, generation: u32, place: u16) -> Outcome {
        Outcome::Landed(Endpoint { service, generation, place })
    }

    #[test]
    fn a_connection_may_meet_what_was_before_only_until_the_new_is_confirmed() {
        let history = History::new();
        history.request(ServiceSize::Of(3));
        let before = history.before();
        let window = history.after(before);
        assert!(history.allows(2, window, Outcome::Untouched));
        assert!(history.allows(2, window, landed(2, 1, 2)));
        history.confirm();
        let window = history.after(history.before());
        assert!(!history.allows(2, window, Outcome::Untouched));
        assert!(history.allows(2, window, landed(2, 1, 2)));
    }

    #[test]
    fn no_other_services_endpoint_none_that_was_not_there_and_no_error_is_right() {
        let history = History::new();
        history.request(ServiceSize::Of(3));
        history.confirm();
        history.request(ServiceSize::Of(0));
        let window = history.after(history.before());
        assert!(history.allows(2, window, Outcome::Refused));
        for wrong in [landed(1, 1, 0), landed(2, 1, 3), landed(2, 2, 0), landed(2, 0, 0)] {
            assert!(!history.allows(2, window, wrong), "{wrong:?}");
        }
        for wrong in [Outcome::Untouched, Outcome::Failed(99)] {
            assert!(!history.allows(2, window, wrong), "{wrong:?}");
        }
    }
}
