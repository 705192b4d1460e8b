//! Who may dial load balancer IPs with source ranges: what to write from what is installed to what
//! is desired. Pure.
//!
//! A frontend with source ranges has an entry that denies every source, and one for each range that
//! allows. What is added is written before frontends are published, and what is removed after they
//! are withdrawn: no connection that was never allowed is allowed in between.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use ipnet::IpNet;

use super::entry::SourceEntry;
use super::finished::Plan;
use super::step::Step;
use crate::cluster::{Clients, Family, Frontend};

/// The changes, and the frontends that lack room.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SourcePlan {
    /// Before frontends are published.
    pub before: Vec<Step>,
    /// After frontends are withdrawn.
    pub after: Vec<Step>,
    /// Frontends of which not all ranges fit. The sources in the others are denied.
    pub lacking: BTreeSet<Frontend>,
}

impl SourcePlan {
    /// Adds these steps to the plan that publishes and withdraws the frontends.
    pub fn join(self, plan: &mut Plan) {
        plan.steps.splice(0..0, self.before);
        plan.steps.extend(self.after);
    }
}

/// Plans from `installed` to `desired`: frontends with source ranges, and these. `room`: entries that
/// fit into each of the two maps; more than there are frontends, so that each can be denied.
///
/// A range of all addresses means no restriction: it must not be among them. Ranges of the other
/// family than the frontend's are left out.
///
/// A Service can ask for its ports times its ranges, far more than there is memory. Time and memory
/// follow the room, the number of frontends, and the lengths of the lists, each counted once.
pub fn plan<'a>(
    desired: impl Iterator<Item = (Frontend, &'a [IpNet])>,
    installed: &BTreeSet<SourceEntry>,
    room: u32,
) -> SourcePlan {
    let desired: BTreeMap<_, _> =
        desired.map(|(frontend, ranges)| (frontend.of(Clients::Anywhere), ranges)).collect();
    let mut plan = SourcePlan::default();
    for family in Family::BOTH {
        let wanted = wanted(&desired, family, installed, room as usize, &mut plan.lacking);
        let there = || installed.iter().filter(|entry| entry.frontend.family() == family);
        let mut removed: Vec<_> =
            there().filter(|entry| !wanted.contains(entry)).copied().collect();
        let mut added: Vec<_> = wanted.difference(installed).copied().collect();
        // Sources stay allowed while their frontend gets or loses its first ranges.
        added.sort_by_key(|entry| entry.range.is_none());
        removed.sort_by_key(|entry| entry.range.is_some());
        // Where old and new entries do not fit together, some old ones must go first: ranges, if
        // they suffice.
        let excess = (there().count() + added.len()).saturating_sub(room as usize);
        let first = removed.split_off(removed.len().saturating_sub(excess));
        plan.before.extend(first.into_iter().rev().map(Step::RemoveSource));
        plan.before.extend(added.into_iter().map(Step::SetSource));
        plan.after.extend(removed.into_iter().map(Step::RemoveSource));
    }
    plan
}

/// What one frontend asks for: an entry that denies, and one for each range.
struct Asked {
    frontend: Frontend,
    /// Sorted, each once, of its family.
    ranges: Rc<[IpNet]>,
    /// How many of these are installed.
    kept: usize,
}

impl Asked {
    fn entries(&self) -> usize {
        1 + self.ranges.len()
    }

    /// Its entries that are installed, and still asked for: first the one that denies.
    fn kept<'a>(
        &'a self,
        installed: &'a BTreeSet<SourceEntry>,
    ) -> impl Iterator<Item = &'a SourceEntry> {
        let own = installed.range(SourceEntry { frontend: self.frontend, range: None }..);
        let own = own.take_while(|entry| entry.frontend == self.frontend);
        own.filter(|entry| entry.range.is_none_or(|it| self.ranges.binary_search(&it).is_ok()))
    }
}

/// The desired entries of a family for which there is room: those that deny, then the first range of each
/// frontend, the second of each, and so on, so that a frontend with very many takes no room from others.
/// Ranges that are installed come first, of a frontend and of all with the same place.
fn wanted(
    desired: &BTreeMap<Frontend, &[IpNet]>,
    family: Family,
    installed: &BTreeSet<SourceEntry>,
    room: usize,
    lacking: &mut BTreeSet<Frontend>,
) -> BTreeSet<SourceEntry> {
    // The ports of a Service share its list.
    let mut lists: HashMap<*const [IpNet], Rc<[IpNet]>> = HashMap::new();
    let of_family = desired.iter().filter(|(frontend, _)| frontend.family() == family);
    let asked: Vec<_> = of_family
        .map(|(&frontend, &ranges)| {
            let ranges = lists.entry(ranges).or_insert_with(|| {
                let own = ranges.iter().filter(|range| Family::of(range.network()) == family);
                own.map(IpNet::trunc).collect::<BTreeSet<_>>().into_iter().collect()
            });
            let mut asked = Asked { frontend, ranges: Rc::clone(ranges), kept: 0 };
            asked.kept = asked.kept(installed).filter(|entry| entry.range.is_some()).count();
            asked
        })
        .collect();
    let (all_have, mut left) = level(&asked, room);
    let mut granted: Vec<_> = asked.iter().map(|one| one.entries().min(all_have)).collect();
    for is_new in [false, true] {
        for (one, granted) in asked.iter().zip(&mut granted) {
            let denies = SourceEntry { frontend: one.frontend, range: None };
            let next_is_new = match all_have {
                0 => !installed.contains(&denies),
                place => one.kept < place,
            };
            if left > 0 && one.entries() > all_have && next_is_new == is_new {
                (*granted, left) = (all_have + 1, left - 1);
            }
        }
    }
    let mut wanted = BTreeSet::new();
    for (one, granted) in asked.iter().zip(granted) {
        if granted < one.entries() {
            lacking.insert(one.frontend);
        }
        let denies = SourceEntry { frontend: one.frontend, range: None };
        let kept = one.kept(installed).filter(|entry| **entry != denies).copied();
        let all = one.ranges.iter().map(|range| SourceEntry { range: Some(*range), ..denies });
        let new = all.filter(|entry| !installed.contains(entry));
        wanted.extend([denies].into_iter().chain(kept).chain(new).take(granted));
    }
    wanted
}

/// How many entries each frontend may have that asks for so many, and what is left of the room: less than
/// one for each that asks for more.
fn level(asked: &[Asked], room: usize) -> (usize, usize) {
    let mut all: Vec<_> = asked.iter().map(Asked::entries).collect();
    all.sort_unstable();
    let (mut level, mut left) = (0, room);
    for (at, entries) in all.iter().enumerate() {
        let asking = all.len() - at;
        let more = (entries - level).min(left / asking);
        (level, left) = (level + more, left - more * asking);
        if level < *entries {
            break;
        }
    }
    (level, left)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;
    use crate::cluster::Protocol;
    use crate::counted;

    type Desired = BTreeMap<Frontend, Vec<IpNet>>;

    fn frontend(last: u8) -> Frontend {
        Frontend::new([192, 0, 2, last].into(), 80, Protocol::Tcp)
    }

    fn planned(desired: &Desired, installed: &BTreeSet<SourceEntry>, room: u32) -> SourcePlan {
        plan(desired.iter().map(|(frontend, ranges)| (*frontend, &**ranges)), installed, room)
    }

    fn carry_out(entries: &mut BTreeSet<SourceEntry>, step: Step) {
        match step {
            Step::SetSource(entry) => assert!(entries.insert(entry), "{entry:?} is there"),
            Step::RemoveSource(entry) => assert!(entries.remove(&entry), "{entry:?} is not there"),
            other => panic!("{other:?} is of no source"),
        }
    }

    /// As a program decides.
    fn allows(entries: &BTreeSet<SourceEntry>, frontend: Frontend, client: IpAddr) -> bool {
        let ranges = || entries.iter().filter(|entry| entry.frontend == frontend);
        ranges().next().is_none_or(|_| {
            let holds = |entry: &SourceEntry| entry.range.is_some_and(|it| it.contains(&client));
            let is_denied = ranges().any(|entry| entry.range.is_none());
            !is_denied || ranges().any(holds)
        })
    }

    fn desired() -> impl Strategy<Value = Desired> {
        let range = (0..4_u8, prop_oneof![Just(8_u8), Just(16), Just(24)])
            .prop_map(|(at, length)| IpNet::new([10, at, 0, 1].into(), length).expect("a range"));
        let ranges = prop::collection::vec(range, 0..4);
        prop::collection::btree_map((0..4_u8).prop_map(frontend), ranges, 0..4)
    }

    proptest! {
        #[test]
        fn a_source_is_allowed_at_each_moment_only_if_it_was_or_will_be(
            (first, second) in (desired(), desired()),
        ) {
            const ROOM: u32 = 1_000;
            let mut entries = BTreeSet::new();
            let begin = planned(&first, &entries, ROOM);
            begin.before.into_iter().for_each(|step| carry_out(&mut entries, step));
            prop_assert_eq!(begin.after, []);
            let before = entries.clone();
            let plan = planned(&second, &entries, ROOM);
            prop_assert!(plan.lacking.is_empty());
            let mut moments = vec![before.clone()];
            for step in plan.before.into_iter().chain(plan.after) {
                carry_out(&mut entries, step);
                moments.push(entries.clone());
            }
            prop_assert_eq!(planned(&second, &entries, ROOM), SourcePlan::default());
            for frontend in (0..4).map(frontend) {
                for client in (0..5).map(|at| IpAddr::from([10, at, 0, 9])) {
                    let was = allows(&before, frontend, client);
                    let wanted = second.get(&frontend);
                    let will = wanted
                        .is_none_or(|all| all.iter().any(|range| range.contains(&client)));
                    prop_assert_eq!(allows(&entries, frontend, client), will);
                    for moment in &moments {
                        let is = allows(moment, frontend, client);
                        prop_assert!(is == was || is == will);
                    }
                }
            }
        }

        #[test]
        fn a_full_map_denies(
            (first, second) in (desired(), desired()), room in 4_u32..9,
        ) {
            let mut entries = BTreeSet::new();
            for desired in [&first, &second] {
                let plan = planned(desired, &entries, room);
                for step in plan.before.into_iter().chain(plan.after) {
                    carry_out(&mut entries, step);
                    prop_assert!(entries.len() <= room as usize);
                }
                for (frontend, ranges) in desired {
                    let is_denied = SourceEntry { frontend: *frontend, range: None };
                    prop_assert!(entries.contains(&is_denied));
                    let has = |range: &IpNet| {
                        let range = Some(range.trunc());
                        entries.contains(&SourceEntry { frontend: *frontend, range })
                    };
                    prop_assert_eq!(plan.lacking.contains(frontend), !ranges.iter().all(has));
                }
                // Nothing more to do, although not all is there.
                let again = planned(desired, &entries, room);
                prop_assert_eq!((again.before, again.after), (vec![], vec![]));
            }
        }
    }

    #[test]
    fn a_service_with_very_many_ranges_takes_none_from_others() {
        const ROOM: u32 = 100;
        let of = |octet: u8, count: u32| -> Vec<IpNet> {
            let range = |at: u32| IpNet::new([octet, 0, at as u8, 0].into(), 24).expect("a range");
            (0..count).map(range).collect()
        };
        let mut entries = BTreeSet::new();
        // Greedy, then modest: the one that comes later and whose address is the higher one.
        let greedy = Desired::from([(frontend(1), of(10, 200))]);
        let plan = planned(&greedy, &entries, ROOM);
        assert!(plan.lacking.contains(&frontend(1)));
        plan.before.into_iter().for_each(|step| carry_out(&mut entries, step));
        let both = Desired::from([(frontend(1), of(10, 200)), (frontend(2), of(11, 3))]);
        let plan = planned(&both, &entries, ROOM);
        assert_eq!(plan.lacking, BTreeSet::from([frontend(1)]));
        for step in plan.before.into_iter().chain(plan.after) {
            carry_out(&mut entries, step);
            assert!(entries.len() <= ROOM as usize);
        }
        assert!(allows(&entries, frontend(2), [11, 0, 2, 9].into()));
    }

    #[test]
    fn ports_times_ranges_take_no_memory_beyond_the_room() {
        const ROOM: u32 = 2_100;
        let of =
            |address: u8, port| Frontend::new([192, 0, 2, address].into(), port, Protocol::Tcp);
        let range = |at: u16| {
            let [high, low] = at.to_be_bytes();
            IpNet::new([10, high, low, 0].into(), 24).expect("a range")
        };
        // A million entries; the neighbour comes later and has the higher address.
        let many: Vec<_> = (0..1_000).map(range).collect();
        let few: Vec<_> = (2_000..2_002).map(range).collect();
        let desired = || {
            let greedy = (1..=1_000).map(|port| (of(1, port), &*many));
            greedy.chain([(of(2, 1), &*few)])
        };
        let mut installed = BTreeSet::new();
        let (plan, done) = counted::during(|| plan(desired(), &installed, ROOM));
        let room = ROOM.cast_signed() as isize * size_of::<SourceEntry>().cast_signed();
        assert!(done.peak < 16 * room, "{} bytes for {room} of entries", done.peak);
        assert_eq!(plan.before.len(), ROOM as usize, "what fits is there");
        plan.before.into_iter().for_each(|step| carry_out(&mut installed, step));
        let has = |range: &IpNet| {
            installed.contains(&SourceEntry { frontend: of(2, 1), range: Some(*range) })
        };
        assert!(few.iter().any(has), "each frontend has a range before one has two");
        assert_eq!(plan.lacking.len(), 1_001);
        let (again, done) = counted::during(|| super::plan(desired(), &installed, ROOM));
        assert!(done.peak < 16 * room, "{} bytes for {room} of entries", done.peak);
        assert_eq!((again.before, again.after), (vec![], vec![]));
    }

    #[test]
    fn clients_outside_and_ranges_of_the_other_family_get_no_entries_of_their_own() {
        let own = frontend(1);
        let ranges: Vec<IpNet> =
            ["10.1.2.3/8", "fd00::/8"].map(|text| text.parse().expect("a range")).into();
        let desired = [(own, &*ranges), (own.of(Clients::Outside), &*ranges)];
        let plan = plan(desired.into_iter(), &BTreeSet::new(), 10);
        let range = Some("10.0.0.0/8".parse().expect("a range"));
        let wanted =
            [range, None].map(|range| Step::SetSource(SourceEntry { frontend: own, range }));
        assert_eq!(plan.before, wanted);
    }
}
