//! At which pace connections end that return to a nearer tier, so that it is not flooded. Pure: the caller
//! passes the time.
//!
//! A search begins a **round**. In a round each Service port has a tenth of its connections end, at least one;
//! they are spread over the time of a round by chance, and no two of a node are closer than [`GAP`].

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The shortest time between two: at most 20 a second.
pub const GAP: Duration = Duration::from_millis(50);
/// The shortest time between two rounds.
pub const ROUND: Duration = Duration::from_secs(10);
/// Most of a round: so each has some time to spare, by which chance moves it.
const MOST: usize = 150;
/// One in so many connections of a Service port.
const SHARE: usize = 10;

/// The connections of a Service port.
#[derive(Clone, Debug)]
pub struct Batch<T> {
    /// How many there were when they began to return.
    pub of: usize,
    /// Those that can end now.
    pub ready: Vec<T>,
}

/// What ends next, and when.
#[derive(Debug)]
pub struct Pace<T> {
    queue: VecDeque<(Instant, T)>,
    last: Option<Instant>,
    random: u64,
}

impl<T> Pace<T> {
    /// Nothing ends. `seed`: of chance; each node needs another one.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { queue: VecDeque::new(), last: None, random: seed }
    }

    /// Begins a round with these, in place of what is left of the last one. Returns how many are to end in it.
    pub fn begin(&mut self, batches: Vec<Batch<T>>, now: Instant) -> usize {
        let mut rest: Vec<_> = batches
            .into_iter()
            .map(|it| {
                let quota = (it.of.max(it.ready.len()) / SHARE).max(1);
                it.ready.into_iter().take(quota)
            })
            .collect();
        // The ports take turns, from a random one on.
        let mut all = Vec::new();
        if !rest.is_empty() {
            let first = self.below(rest.len() as u64) as usize;
            rest.rotate_left(first);
        }
        while all.len() < MOST && !rest.is_empty() {
            rest.retain_mut(|of| match of.next() {
                Some(one) if all.len() < MOST => {
                    all.push(one);
                    true
                }
                _ => false,
            });
        }
        let count = all.len();
        let slot = ROUND / u32::try_from(count.max(1)).unwrap_or(u32::MAX);
        let spare = slot.saturating_sub(GAP);
        self.queue = (0..)
            .zip(all)
            .map(|(place, one)| {
                let late = Duration::from_nanos(self.below(spare.as_nanos() as u64));
                (now + slot * place + late, one)
            })
            .collect();
        count
    }

    /// The next one, if its time has come.
    pub fn take(&mut self, now: Instant) -> Option<T> {
        self.next().filter(|at| *at <= now)?;
        self.last = Some(now);
        self.queue.pop_front().map(|(_, one)| one)
    }

    /// When the next one ends; `None`: the round is over.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        let (at, _) = self.queue.front()?;
        Some(self.last.map_or(*at, |last| (last + GAP).max(*at)))
    }

    /// Keeps only some of those to end.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.queue.retain(|(_, one)| keep(one));
    }

    /// A random number below `bound`, or zero: SplitMix64.
    const fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let mixed = (mixed ^ (mixed >> 31)) as u128;
        ((mixed * bound as u128) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn few_connections_end_one_a_round_at_a_random_time() {
        let start = Instant::now();
        let mut times = Vec::new();
        for seed in 0..64 {
            let mut pace = Pace::new(seed);
            assert_eq!(pace.begin(vec![Batch { of: 4, ready: vec![1, 2, 3, 4] }], start), 1);
            times.push(pace.next().unwrap() - start);
        }
        times.sort();
        assert!(times[0] < ROUND / 4 && times[63] > ROUND / 2 && times[63] < ROUND, "{times:?}");
    }

    #[test]
    fn no_service_crowds_out_others_and_who_is_dropped_stays() {
        let start = Instant::now();
        let batch = |of: usize, name| Batch { of, ready: vec![name; of] };
        let mut pace = Pace::new(1);
        assert_eq!(pace.begin(vec![batch(100_000, 'a'), batch(20, 'b')], start), MOST);
        pace.retain(|name| *name == 'b');
        let later = start + ROUND;
        assert_eq!((pace.take(later), pace.take(later)), (Some('b'), None), "not both at once");
        assert_eq!(pace.take(later + GAP), Some('b'));
        assert_eq!(pace.next(), None);
        assert_eq!(pace.begin(Vec::new(), later), 0);
    }

    proptest! {
        /// Never more than the rate and the share, however late the caller comes; and if nothing changes, all
        /// get home, in about ten rounds or as fast as the rate allows.
        #[test]
        fn all_get_home_and_never_many_at_once(
            seed in any::<u64>(),
            sizes in prop::collection::vec(0_usize..400, 1..6),
            steps in prop::collection::vec(1_u64..900, 1..20),
        ) {
            let start = Instant::now();
            let mut pace = Pace::new(seed);
            let mut left: Vec<Vec<usize>> =
                sizes.iter().enumerate().map(|(name, &size)| vec![name; size]).collect();
            let (mut now, mut ended, mut rounds) = (start, Vec::new(), 0);
            let mut began = start;
            let mut steps = steps.iter().cycle();
            while left.iter().any(|of| !of.is_empty()) {
                rounds += 1;
                prop_assert!(rounds < 30 + sizes.iter().sum::<usize>() / 40, "{:?}", left);
                let batch = |(of, ready): (&usize, &Vec<_>)| Batch { of: *of, ready: ready.clone() };
                let batches = sizes.iter().zip(&left).map(batch).collect();
                pace.begin(batches, now);
                let mut counts = vec![0; sizes.len()];
                while pace.next().is_some() || now < began + ROUND {
                    now += Duration::from_millis(*steps.next().unwrap());
                    // It was late; then it comes whenever one may end, until it has caught up.
                    while let Some(at) = pace.next().filter(|at| *at <= now + GAP) {
                        now = now.max(at);
                        let name = pace.take(now).unwrap();
                        left[name].pop();
                        counts[name] += 1;
                        ended.push(now);
                    }
                }
                began = now;
                for (count, size) in counts.iter().zip(&sizes) {
                    prop_assert!(*count <= (size / SHARE).max(1));
                }
            }
            for (at, first) in ended.iter().enumerate() {
                let second = ended[at..].iter().take_while(|it| **it < *first + Duration::from_secs(1));
                prop_assert!(second.count() <= 20);
            }
        }
    }
}
