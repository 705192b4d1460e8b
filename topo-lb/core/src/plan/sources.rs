//! Who may dial load balancer IPs with source ranges: what to write from what is installed to what
//! is desired. Pure.
//!
//! A frontend with source ranges has an entry that denies every source, and one for each range that
//! allows. What is added is written before frontends are published, and what is removed after they
//! are withdrawn: no connection that was never allowed is allowed in between.

use std::collections::BTreeSet;

use ipnet::IpNet;

use crate::cluster::{Clients, Family, Frontend};

/// An entry of `sources4` or `sources6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceEntry {
    /// The frontend, whoever its clients are.
    pub frontend: Frontend,
    /// The sources that may dial it; `None`: all others may not.
    pub range: Option<IpNet>,
}

/// One change of these maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceStep {
    /// Write an entry.
    Set(SourceEntry),
    /// Remove an entry.
    Remove(SourceEntry),
}

/// The changes, and the frontends that lack room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourcePlan {
    /// Before frontends are published.
    pub before: Vec<SourceStep>,
    /// After frontends are withdrawn.
    pub after: Vec<SourceStep>,
    /// Frontends of which not all ranges fit. The sources in the others are denied.
    pub lacking: BTreeSet<Frontend>,
}

/// Plans from `installed` to `desired`: frontends with source ranges, and these. `room`: entries that
/// fit into each of the two maps; more than there are frontends, so that each can be denied.
///
/// A range of all addresses means no restriction: it must not be among them. Ranges of the other
/// family than the frontend's are left out.
pub fn plan<'a>(
    desired: impl Iterator<Item = (Frontend, &'a [IpNet])>,
    installed: &BTreeSet<SourceEntry>,
    room: u32,
) -> SourcePlan {
    let mut plan = SourcePlan::default();
    let wanted = wanted(desired, installed, room as usize, &mut plan.lacking);
    let mut removed: Vec<_> = installed.difference(&wanted).copied().collect();
    let mut added: Vec<_> = wanted.difference(installed).copied().collect();
    // Sources stay allowed while their frontend gets or loses its first ranges.
    added.sort_by_key(|entry| entry.range.is_none());
    removed.sort_by_key(|entry| entry.range.is_some());
    for family in Family::BOTH {
        let of = |entry: &&SourceEntry| entry.frontend.family() == family;
        let all = installed.iter().filter(of).count() + added.iter().filter(of).count();
        // Where old and new entries do not fit together, some old ones must go first: ranges, if
        // they suffice.
        for _ in room as usize..all {
            let last = removed.iter().rposition(|entry| of(&entry));
            plan.before.extend(last.map(|last| SourceStep::Remove(removed.remove(last))));
        }
    }
    plan.before.extend(added.into_iter().map(SourceStep::Set));
    plan.after.extend(removed.into_iter().map(SourceStep::Remove));
    plan
}

/// The desired entries for which there is room: those that deny, then the first range of each frontend,
/// the second of each, and so on, so that a frontend with very many takes no room from others. Ranges
/// that are installed come first, of a frontend and of all with the same place.
fn wanted<'a>(
    desired: impl Iterator<Item = (Frontend, &'a [IpNet])>,
    installed: &BTreeSet<SourceEntry>,
    room: usize,
    lacking: &mut BTreeSet<Frontend>,
) -> BTreeSet<SourceEntry> {
    let mut all = BTreeSet::new();
    for (frontend, ranges) in desired {
        let frontend = frontend.of(Clients::Anywhere);
        let of_family = |range: &&IpNet| Family::of(range.network()) == frontend.family();
        let ranges = ranges.iter().filter(of_family).map(|range| Some(range.trunc()));
        all.extend(ranges.chain([None]).map(|range| SourceEntry { frontend, range }));
    }
    for family in Family::BOTH {
        let of = all.iter().filter(|entry| entry.frontend.family() == family);
        let is_new = |entry: &SourceEntry| !installed.contains(entry);
        let mut of: Vec<_> = of.map(|entry| (is_new(entry), *entry)).collect();
        if of.len() <= room {
            continue;
        }
        of.sort_by_key(|(is_new, entry)| (entry.frontend, entry.range.is_some(), *is_new));
        let mut places = Vec::with_capacity(of.len());
        for of_one in of.chunk_by(|(_, one), (_, next)| one.frontend == next.frontend) {
            places.extend(of_one.iter().enumerate());
        }
        // The entry that denies has place zero.
        places.sort_by_key(|(place, (is_new, _))| (*place, *is_new));
        for (_, (_, entry)) in places.drain(room..) {
            lacking.insert(entry.frontend);
            all.remove(entry);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;
    use crate::cluster::Protocol;

    type Desired = BTreeMap<Frontend, Vec<IpNet>>;

    fn frontend(last: u8) -> Frontend {
        Frontend::new([192, 0, 2, last].into(), 80, Protocol::Tcp)
    }

    fn planned(desired: &Desired, installed: &BTreeSet<SourceEntry>, room: u32) -> SourcePlan {
        plan(desired.iter().map(|(frontend, ranges)| (*frontend, &**ranges)), installed, room)
    }

    fn carry_out(entries: &mut BTreeSet<SourceEntry>, step: SourceStep) {
        match step {
            SourceStep::Set(entry) => assert!(entries.insert(entry), "{entry:?} is there"),
            SourceStep::Remove(entry) => assert!(entries.remove(&entry), "{entry:?} is not there"),
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
    fn clients_outside_and_ranges_of_the_other_family_get_no_entries_of_their_own() {
        let own = frontend(1);
        let ranges: Vec<IpNet> =
            ["10.1.2.3/8", "fd00::/8"].map(|text| text.parse().expect("a range")).into();
        let desired = [(own, &*ranges), (own.of(Clients::Outside), &*ranges)];
        let plan = plan(desired.into_iter(), &BTreeSet::new(), 10);
        let range = Some("10.0.0.0/8".parse().expect("a range"));
        let wanted =
            [range, None].map(|range| SourceStep::Set(SourceEntry { frontend: own, range }));
        assert_eq!(plan.before, wanted);
    }
}
