//! Several things at once, and one who hears of all.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

/// Does `work` with each of `items`, with so many at once, each on a thread; what it says comes to
/// `hear`, on this one. The results are in the order of the items.
pub(super) fn at_once<T: Sync, R: Send>(
    items: &[T],
    width: usize,
    work: impl Fn(&T, &mut dyn FnMut(String)) -> R + Sync,
    mut hear: impl FnMut(String),
) -> Vec<R> {
    let waiting = Mutex::new(items.iter().enumerate().collect::<VecDeque<_>>());
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let (tell, told) = mpsc::channel();
    let mut results: Vec<(usize, R)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..width.clamp(1, items.len().max(1)))
            .map(|_| {
                let tell = tell.clone();
                let (next, work) = (&next, &work);
                scope.spawn(move || {
                    let mut done = Vec::new();
                    while let Some((place, item)) = next() {
                        // Nobody hears any more only if this all has come to grief.
                        let mut say = |text| drop(tell.send(text));
                        done.push((place, work(item, &mut say)));
                    }
                    done
                })
            })
            .collect();
        drop(tell);
        told.into_iter().for_each(&mut hear);
        let ends = workers.into_iter().map(thread::ScopedJoinHandle::join);
        ends.flat_map(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    results.sort_by_key(|(place, _)| *place);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn two_are_under_way_at_once_and_results_keep_their_order() {
        // Each waits for another one: one after the other they would wait for ever.
        let both = Barrier::new(2);
        let mut heard = Vec::new();
        let work = |item: &u32, say: &mut dyn FnMut(String)| {
            both.wait();
            say(format!("{item} is done"));
            item * 2
        };
        let results = at_once(&[1, 2, 3, 4], 2, work, |text| heard.push(text));
        assert_eq!(results, [2, 4, 6, 8]);
        heard.sort();
        assert_eq!(heard, ["1 is done", "2 is done", "3 is done", "4 is done"]);
    }
}
