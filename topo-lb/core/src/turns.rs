//! A queue in turns: namespaces take turns, and in each its Services do. So what one namespace has waiting,
//! however much, holds up another one for a turn. Pure.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;

use crate::cluster::ServiceId;

/// What waits, by Service. Each thing waits once.
#[derive(Debug)]
pub struct Turns<T>(Round<Arc<str>, Round<ServiceId, BTreeSet<T>>>);

/// Queues, of which none is empty, in the order of their turns.
#[derive(Debug)]
struct Round<K, Q> {
    order: VecDeque<K>,
    queues: HashMap<K, Q>,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self(Round::default())
    }
}

impl<K, Q> Default for Round<K, Q> {
    fn default() -> Self {
        Self { order: VecDeque::new(), queues: HashMap::new() }
    }
}

impl<K: Clone + Eq + Hash, Q: Default> Round<K, Q> {
    /// The queue of `key`; a new one has its turn last.
    fn queue(&mut self, key: &K) -> &mut Q {
        if !self.queues.contains_key(key) {
            self.order.push_back(key.clone());
        }
        self.queues.entry(key.clone()).or_default()
    }

    /// Takes from the queue that is first among those that `may`, whose next turn is last. `take` also says
    /// whether it has left some.
    fn turn<T>(
        &mut self,
        may: impl Fn(&K) -> bool,
        take: impl FnOnce(&mut Q) -> (Option<T>, bool),
    ) -> Option<T> {
        let place = self.order.iter().position(may)?;
        let key = self.order.remove(place)?;
        let (taken, is_left) = take(self.queues.get_mut(&key)?);
        if is_left {
            self.order.push_back(key);
        } else {
            self.queues.remove(&key);
        }
        taken
    }
}

impl<T: Ord> Turns<T> {
    /// Adds something of a Service.
    pub fn put(&mut self, service: &ServiceId, what: T) {
        self.0.queue(&service.namespace).queue(service).insert(what);
    }

    /// Takes the first thing of the Service whose turn it is, of a namespace that `may` have one now.
    pub fn take(&mut self, may: impl Fn(&str) -> bool) -> Option<(ServiceId, T)> {
        self.0.turn(
            |namespace| may(namespace),
            |services| {
                let mut of = services.order.front().cloned();
                let first = |all: &mut BTreeSet<T>| (all.pop_first(), !all.is_empty());
                let taken = services.turn(|_| true, first);
                (of.take().zip(taken), !services.order.is_empty())
            },
        )
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.order.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(namespace: &str, name: &str) -> ServiceId {
        ServiceId { namespace: namespace.into(), name: name.into() }
    }

    fn taken(turns: &mut Turns<u32>, may: impl Fn(&str) -> bool) -> Vec<String> {
        let next = std::iter::from_fn(|| turns.take(&may));
        next.map(|(id, what)| format!("{id} {what}")).collect()
    }

    #[test]
    fn namespaces_take_turns_and_then_their_services() {
        let mut turns = Turns::default();
        for what in [2, 1, 3, 1] {
            turns.put(&of("a", "x"), what);
        }
        turns.put(&of("a", "y"), 1);
        turns.put(&of("b", "z"), 1);
        assert_eq!(taken(&mut turns, |_| true), ["a/x 1", "b/z 1", "a/y 1", "a/x 2", "a/x 3"]);
        assert!(turns.is_empty() && turns.0.queues.is_empty());
    }

    #[test]
    fn one_that_may_not_keeps_its_turn() {
        let mut turns = Turns::default();
        for namespace in ["a", "b", "b", "c"] {
            turns.put(&of(namespace, "x"), 1);
        }
        assert_eq!(taken(&mut turns, |namespace| namespace != "a"), ["b/x 1", "c/x 1"]);
        turns.put(&of("b", "x"), 2);
        assert_eq!(taken(&mut turns, |_| true), ["a/x 1", "b/x 2"]);
    }
}
