//! Bounds the series of Service ports: at most so many have series of their own, and all others share
//! one. No series goes back while a Service port exists.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytemuck::Pod;
use topo_lb_common::backend::Locality;
use topo_lb_common::counters::{Counters, sum};
use topo_lb_common::totals::Totals;

use super::refusals::Refusals;
use topo_lb_core::metrics::Tier;
use topo_lb_core::refusal::Refusal;
use topo_lb_kernel::datapath::maps::totals::Group;
use topo_lb_kernel::observe::ByServicePort;

/// A Service port, as `namespace/name:port`.
type Name = Arc<str>;

/// What is counted of Service ports.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Connections of the Service ports that had any.
    pub connections: BTreeMap<Name, Counters>,
    /// While the programs only observe: what happened to connections.
    pub observed: ByServicePort,
    /// What TCP connections moved.
    pub tcp: BTreeMap<Group, Totals>,
}

/// What metrics show of Service ports: of each with series of its own since it exists, and of all
/// others (`None`) since the agent started.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    /// Connections.
    pub connections: BTreeMap<Option<Name>, Counters>,
    /// While the programs only observe: what happened to connections.
    pub observed: BTreeMap<(Option<Name>, Locality), u64>,
    /// Refused connections.
    pub refused: BTreeMap<(Option<Name>, Refusal), u64>,
    /// What TCP connections moved.
    pub tcp: BTreeMap<Group, Totals>,
    /// What all TCP connections moved, by locality, since the agent started.
    pub by_locality: BTreeMap<Locality, Totals>,
}

/// Which Service ports have series of their own, and what the others counted.
#[derive(Debug, Default)]
pub struct Bounded {
    /// Most Service ports with series of their own.
    most: usize,
    own: BTreeSet<Name>,
    /// Those that share the series of all others.
    shared: BTreeSet<Name>,
    connections: Series<Name, (), Counters>,
    observed: Series<(Name, Locality), Locality, u64>,
    refused: Series<(Name, Refusal), Refusal, u64>,
    /// Refusals from before the agent started, whose reasons the first look tells.
    refused_before: BTreeMap<Name, u64>,
    tcp: Series<Group, (Locality, Tier), Totals>,
    by_locality: BTreeMap<Locality, Totals>,
}

impl Bounded {
    /// At most `most` Service ports get series of their own. Begins with what was counted before the
    /// agent started.
    #[must_use]
    pub fn since(before: Counts, most: usize) -> Self {
        let refused = before.connections.iter().map(|(name, counters)| (name, counters.refused));
        Self {
            most,
            refused_before: refused.map(|(name, refused)| (Arc::clone(name), refused)).collect(),
            connections: Series::since(before.connections),
            tcp: Series::since(before.tcp),
            ..Self::default()
        }
    }

    /// Takes the current counts. New Service ports get series of their own while there is room, those
    /// with most connections and bytes first. One that gets none stays among the others.
    pub fn look(&mut self, counts: Counts, refusals: &Refusals) -> Shown {
        self.choose(&counts);
        let own = |name: &Name| self.own.contains(name);
        let own_group = |group: &Group| group.service.as_ref().is_some_and(own);
        let connections = self.connections.look(counts.connections, own, |_| (), |_, _| {});
        let observed =
            self.observed.look(counts.observed, |(name, _)| own(name), |key| key.1, |_, _| {});
        let mut refused = BTreeMap::new();
        for (name, reason, times) in refusals.iter() {
            let key = (Arc::clone(name), reason);
            if let Some(before) = self.refused_before.remove(name) {
                self.refused.last.insert(key.clone(), before);
            }
            refused.insert(key, times);
        }
        let refused = self.refused.look(refused, |(name, _)| own(name), |key| key.1, |_, _| {});
        let by_locality = &mut self.by_locality;
        let tcp = self.tcp.look(counts.tcp, own_group, without_key, |group, grown| {
            add(by_locality, group.locality, grown);
        });
        let of_others = |&(locality, tier): &_| Group { service: None, locality, tier };
        Shown {
            connections: self.connections.with_others(connections, Some, |()| None),
            observed: self.observed.with_others(
                observed,
                |(name, locality)| (Some(name), locality),
                |locality| (None, *locality),
            ),
            refused: self.refused.with_others(
                refused,
                |(name, reason)| (Some(name), reason),
                |reason| (None, *reason),
            ),
            tcp: self.tcp.with_others(tcp, |group| group, of_others),
            by_locality: self.by_locality.clone(),
        }
    }

    fn choose(&mut self, counts: &Counts) {
        // Connections and bytes of each Service port.
        let mut amounts = BTreeMap::<&Name, [u64; 2]>::new();
        for (name, counters) in &counts.connections {
            amounts.entry(name).or_default()[0] = words(counters).iter().sum();
        }
        for ((name, _), times) in &counts.observed {
            amounts.entry(name).or_default()[0] += times;
        }
        for (group, totals) in &counts.tcp {
            if let Some(name) = &group.service {
                let bytes = &mut amounts.entry(name).or_default()[1];
                *bytes = bytes.saturating_add(totals.sent).saturating_add(totals.received);
            }
        }
        self.own.retain(|name| amounts.contains_key(name));
        self.shared.retain(|name| amounts.contains_key(name));
        let all = [0, 1].map(|place| amounts.values().map(|one| one[place] as f64).sum::<f64>());
        let share = |one: [u64; 2]| -> f64 {
            one.iter().zip(all).map(|(one, all)| *one as f64 / all.max(1.0)).sum()
        };
        let is_new = |name: &Name| !self.own.contains(name) && !self.shared.contains(name);
        let mut new: Vec<_> = amounts.into_iter().filter(|(name, _)| is_new(name)).collect();
        new.sort_by(|(_, one), (_, other)| share(*other).total_cmp(&share(*one)));
        let mut new = new.into_iter().map(|(name, _)| Arc::clone(name));
        self.own.extend(new.by_ref().take(self.most.saturating_sub(self.own.len())));
        self.shared.extend(new);
    }
}

/// What the others keep of a group: which topology key was in force says nothing without the Service.
const fn without_key(group: &Group) -> (Locality, Tier) {
    match group.tier {
        Tier::Key(_) => (group.locality, Tier::None),
        tier => (group.locality, tier),
    }
}

/// Values that grow, and the sums of those without series of their own, by the label that they keep.
#[derive(Debug)]
struct Series<K, L, V> {
    last: BTreeMap<K, V>,
    others: BTreeMap<L, V>,
}

impl<K, L, V> Default for Series<K, L, V> {
    fn default() -> Self {
        Self { last: BTreeMap::new(), others: BTreeMap::new() }
    }
}

impl<K: Ord + Clone, L: Ord, V: Pod> Series<K, L, V> {
    fn since(last: BTreeMap<K, V>) -> Self {
        Self { last, ..Self::default() }
    }

    /// Returns the values that have series of their own, and adds the growth of all others to the sums.
    /// Calls `each` with the growth of every value.
    fn look(
        &mut self,
        all: BTreeMap<K, V>,
        is_own: impl Fn(&K) -> bool,
        label: impl Fn(&K) -> L,
        mut each: impl FnMut(&K, &V),
    ) -> BTreeMap<K, V> {
        let mut own = BTreeMap::new();
        for (key, now) in &all {
            let grown = grown(now, self.last.get(key));
            each(key, &grown);
            if is_own(key) {
                own.insert(key.clone(), *now);
            } else {
                add(&mut self.others, label(key), &grown);
            }
        }
        self.last = all;
        own
    }

    /// The values with series of their own, and the sums of the others.
    fn with_others<S: Ord>(
        &self,
        own: BTreeMap<K, V>,
        shown: impl Fn(K) -> S,
        other: impl Fn(&L) -> S,
    ) -> BTreeMap<S, V> {
        let own = own.into_iter().map(|(key, value)| (shown(key), value));
        own.chain(self.others.iter().map(|(label, sum)| (other(label), *sum))).collect()
    }
}

/// The numbers of a value.
fn words<V: Pod>(value: &V) -> &[u64] {
    bytemuck::cast_slice(std::slice::from_ref(value))
}

/// By how much a value has grown. If a number of it went back, it began anew.
pub(super) fn grown<V: Pod>(now: &V, last: Option<&V>) -> V {
    let Some(last) = last else { return *now };
    if words(now).iter().zip(words(last)).any(|(now, last)| now < last) {
        return *now;
    }
    let mut grown = *now;
    let to = bytemuck::cast_slice_mut::<V, u64>(std::slice::from_mut(&mut grown));
    to.iter_mut().zip(words(last)).for_each(|(now, last)| *now -= last);
    grown
}

fn add<L: Ord, V: Pod>(sums: &mut BTreeMap<L, V>, label: L, more: &V) {
    let to = sums.entry(label).or_insert_with(V::zeroed);
    *to = sum([&*to, more]);
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 3;

    fn named(name: &str) -> Name {
        format!("default/{name}:80").into()
    }

    fn of(name: &str, sent: u64) -> (Group, Totals) {
        let group =
            Group { service: Some(named(name)), locality: Locality::Zone, tier: Tier::Key(0) };
        (group, Totals { sent, ..Totals::default() })
    }

    fn tcp(all: impl IntoIterator<Item = (Group, Totals)>) -> Counts {
        Counts { tcp: all.into_iter().collect(), ..Counts::default() }
    }

    fn look(bounded: &mut Bounded, counts: &Counts) -> Shown {
        bounded.look(counts.clone(), &Refusals::default())
    }

    fn others(shown: &Shown) -> Option<u64> {
        let group = Group { service: None, locality: Locality::Zone, tier: Tier::None };
        shown.tcp.get(&group).map(|totals| totals.sent)
    }

    /// More Service ports than have series of their own; each moved as many bytes as its number.
    fn many() -> Counts {
        tcp((1..=MOST as u64 + 2).map(|it| of(&it.to_string(), it)))
    }

    fn bounded() -> Bounded {
        Bounded::since(Counts::default(), MOST)
    }

    #[test]
    fn the_service_ports_that_moved_least_share_a_series() {
        let shown = look(&mut bounded(), &many());
        assert_eq!((shown.tcp.len(), others(&shown)), (MOST + 1, Some(1 + 2)));
        assert_eq!(look(&mut bounded(), &tcp([of("web", 7)])).tcp.len(), 1);
        let none = look(&mut Bounded::since(Counts::default(), 0), &many());
        assert_eq!((none.tcp.len(), others(&none)), (1, Some(1 + 2 + 3 + 4 + 5)));
    }

    #[test]
    fn many_connections_without_bytes_weigh_as_much_as_many_bytes() {
        let mut counts = many();
        let connections = |same_zone| Counters { same_zone, ..Counters::default() };
        counts.connections.insert(named("dns"), connections(1_000));
        counts.connections.insert(named("5"), connections(1));
        let shown = look(&mut bounded(), &counts);
        assert!(shown.connections.contains_key(&Some(named("dns"))), "{shown:?}");
        assert_eq!(others(&shown), Some(1 + 2 + 3));
    }

    #[test]
    fn no_series_goes_back_when_others_come_grow_and_go() {
        let mut bounded = bounded();
        let mut all = many();
        look(&mut bounded, &all);
        // One of the others grows beyond those with series of their own, which makes no difference.
        all.tcp.extend([of("1", 1_000)]);
        let shown = look(&mut bounded, &all);
        assert_eq!((shown.tcp.len(), others(&shown)), (MOST + 1, Some(1_000 + 2)));
        all.tcp.remove(&of("2", 0).0);
        assert_eq!(others(&look(&mut bounded, &all)), Some(1_000 + 2));
        // It gets no series of its own when another one's Service port is gone: a new one does.
        all.tcp.remove(&of("4", 0).0);
        all.tcp.extend([of("new", 5)]);
        let shown = look(&mut bounded, &all);
        assert!(shown.tcp.contains_key(&of("new", 0).0));
        assert_eq!(others(&shown), Some(1_000 + 2));
        assert_eq!(shown.by_locality[&Locality::Zone].sent, (1 + 2 + 3 + 4 + 5) + 999 + 5);
    }

    #[test]
    fn what_others_moved_before_the_start_or_under_another_service_does_not_count() {
        let mut bounded = Bounded::since(tcp([of("web", 70)]), MOST);
        let shown = look(&mut bounded, &tcp([of("web", 72)]));
        assert_eq!(shown.tcp.values().next().unwrap().sent, 72);
        assert_eq!(shown.by_locality[&Locality::Zone].sent, 2);
        // Made again: its totals begin at zero.
        let shown = look(&mut bounded, &tcp([of("web", 3)]));
        assert_eq!(shown.by_locality[&Locality::Zone].sent, 5);
    }

    #[test]
    fn connections_and_refusals_of_the_others_begin_at_the_start_too() {
        let counts = |same_zone, refused| Counts {
            connections: BTreeMap::from([(
                named("web"),
                Counters { same_zone, refused, ..Counters::default() },
            )]),
            ..Counts::default()
        };
        let because = BTreeMap::from([(named("web"), Refusal::Policy)]);
        for (most, name, wanted) in [(0, None, (2, 3)), (1, Some(named("web")), (72, 33))] {
            let mut bounded = Bounded::since(counts(70, 30), most);
            let mut refusals = Refusals::default();
            for _ in 0..2 {
                refusals.look(&BTreeMap::from([(named("web"), 33)]), &because);
                let shown = bounded.look(counts(72, 33), &refusals);
                let connections = shown.connections[&name].same_zone;
                let refused = shown.refused[&(name.clone(), Refusal::Policy)];
                assert_eq!((connections, refused), wanted, "{most}");
            }
        }
    }

    #[test]
    fn among_the_others_what_was_not_translated_stays_apart() {
        let mut bounded = Bounded::since(Counts::default(), 0);
        let tiers = [Tier::Key(3), Tier::None, Tier::Left, Tier::Direct];
        let counts = tcp(tiers.into_iter().zip(1..).map(|(tier, sent)| {
            let (group, totals) = of("web", sent);
            (Group { tier, ..group }, totals)
        }));
        let shown = look(&mut bounded, &counts);
        let sent: Vec<_> = shown.tcp.iter().map(|(of, it)| (of.tier, it.sent)).collect();
        assert_eq!(sent, [(Tier::None, 3), (Tier::Left, 3), (Tier::Direct, 4)]);
    }
}
