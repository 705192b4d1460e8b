//! Services that lack room, and when it is worth planning them again. Pure.

use super::share::{NO_POOLS, Pool, Pools, Room};

/// What a Service without room waits for. Plans leave it as it is until then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The free entries of the maps that it lacked, when it was tried; `u64::MAX` for all others.
    tried: Room,
    /// With fewer free entries, another try cannot give it more.
    needs: Room,
    /// The maps in which Services of later ranks get no more room while it waits.
    closes: Pools,
    /// Others may give up room for it as soon as nobody of an earlier rank waits for that.
    queues: bool,
    /// It gave up what it had in this map, for others.
    gave: Option<Pool>,
}

impl Wait {
    /// It waits for nothing yet.
    pub(super) const fn new() -> Self {
        let tried = Room([u64::MAX; Pool::ALL.len()]);
        Self { tried, needs: Room::NONE, closes: NO_POOLS, queues: false, gave: None }
    }

    /// It found no room in `pool`, which had so many `free` entries. `needs`: the free entries with which it
    /// can fit.
    pub(super) const fn lacks(&mut self, pool: Pool, free: u64, needs: Room) {
        self.tried.0[pool.place()] = free;
        self.needs = needs;
    }

    /// It gives up what it has in `pool`.
    pub(super) const fn gives(&mut self, pool: Pool) {
        self.lacks(pool, 0, Room::NONE);
        self.gave = Some(pool);
    }

    /// Whether it has given that up before, and got nothing since.
    pub(super) fn has_given(&self, pool: Pool) -> bool {
        self.gave == Some(pool)
    }

    /// Others give up room for it, and get none in these maps.
    pub(super) const fn close(&mut self, closes: Pools) {
        self.closes = closes;
    }

    /// Its turn comes when nobody of an earlier rank is wanting.
    pub(super) const fn queue(&mut self) {
        self.queues = true;
    }

    /// Whether its turn has come, or the maps that it lacked are open to it. `closed`: those that Services of
    /// earlier ranks have closed.
    pub(super) fn is_open<'a>(&self, mut closed: impl Iterator<Item = &'a Pools>) -> bool {
        if self.queues {
            return closed.next().is_none();
        }
        !closed
            .any(|closed| Pool::ALL.iter().any(|pool| closed[pool.place()] && self.lacked(*pool)))
    }

    /// The maps that are closed to later ranks.
    pub(super) const fn closes(&self) -> Pools {
        self.closes
    }

    /// Whether others give up room for it.
    pub(super) fn is_wanting(&self) -> bool {
        self.closes != NO_POOLS
    }

    /// Whether it lacked room in this map.
    pub(super) const fn lacked(&self, pool: Pool) -> bool {
        self.tried.0[pool.place()] < u64::MAX
    }

    /// Whether another try can give it more: room was freed, or it is its turn.
    pub(super) fn is_due(&self, free: &Room) -> bool {
        let lacked = || Pool::ALL.into_iter().filter(|pool| self.lacked(*pool)).map(Pool::place);
        let is_more = lacked().any(|at| free.0[at] > self.tried.0[at]);
        // Those that are wanting may get more from others.
        let is_enough = || lacked().all(|at| free.0[at] >= self.needs.0[at]);
        self.queues || is_more && (self.is_wanting() || is_enough())
    }

    /// Takes from `free` what it needs, at least an entry of each map that it lacked.
    pub(super) fn take(&self, free: &mut Room) {
        for pool in Pool::ALL {
            let (free, needs) = (&mut free.0[pool.place()], self.needs.0[pool.place()]);
            *free = free.saturating_sub(needs.max(self.lacked(pool).into()));
        }
    }
}
