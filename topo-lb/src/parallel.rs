//! One pure function of many inputs, on all CPUs.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::LazyLock;
use std::thread;

/// Below this many inputs, starting a thread takes longer than it saves.
const WORTH_A_THREAD: usize = 512;

/// How many CPUs this process may use. Reading it takes some system calls.
static CPUS: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(1, NonZero::get));

/// Calls `function` for each input, on as many threads as there are CPUs if that pays. The results have the
/// order of the inputs.
pub(crate) fn map<I: Sync, O: Send>(inputs: &[I], function: impl Fn(&I) -> O + Sync) -> Vec<O> {
    if inputs.len() <= WORTH_A_THREAD {
        return inputs.iter().map(function).collect();
    }
    let share = inputs.len().div_ceil(*CPUS).max(WORTH_A_THREAD);
    let (function, mut shares) = (&function, inputs.chunks(share));
    let own = shares.next().unwrap_or_default();
    thread::scope(|scope| {
        let others: Vec<_> = shares
            .map(|share| scope.spawn(move || share.iter().map(function).collect::<Vec<O>>()))
            .collect();
        let mut all: Vec<O> = own.iter().map(function).collect();
        for other in others {
            all.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_the_order_of_the_inputs_however_many_there_are() {
        for count in [0, 1, WORTH_A_THREAD, 2 * WORTH_A_THREAD + 1, 9 * WORTH_A_THREAD + 7] {
            let inputs: Vec<usize> = (0..count).collect();
            let doubled: Vec<usize> = inputs.iter().map(|it| it * 2).collect();
            assert_eq!(map(&inputs, |it| it * 2), doubled, "{count} inputs");
        }
    }
}
