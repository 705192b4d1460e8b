//! When an endpoint is left out, and until when. Pure: callers pass the time.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use topo_lb_common::totals::Failure;

use super::Probed;
use crate::cluster::{Ejection, ServiceEjections, ServiceId};
use crate::topology::ejection::{LONGEST, Setting};

/// The endpoints that are left out, or were a while ago.
#[derive(Debug, Default)]
pub struct Schedule {
    services: BTreeMap<ServiceId, BTreeMap<SocketAddr, Entry>>,
    /// How many were ejected so far.
    ejected: u64,
}

#[derive(Debug)]
struct Entry {
    /// Rises from one ejection to the next.
    order: u64,
    failures: u8,
    why: Failure,
    most: u8,
    /// For how long it is left out, or was the last time.
    time: Duration,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Left out until then.
    Out(Instant),
    /// Left out; since then the time is over, and it is being probed.
    Probing(Instant),
    /// Back. If it fails before then, it is left out for twice the time.
    Back(Instant),
}

/// An endpoint whose time is over.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Due {
    /// Its Service.
    pub service: ServiceId,
    /// The endpoint.
    pub endpoint: SocketAddr,
}

impl Entry {
    const fn is_out(&self) -> bool {
        !matches!(self.phase, Phase::Back(_))
    }
}

impl Schedule {
    /// Records that connects to an endpoint failed, and returns for how long it is left out; `None`: it
    /// is already. The caller has seen that its tier has room.
    pub fn fail(
        &mut self,
        due: &Due,
        setting: Setting,
        why: Failure,
        now: Instant,
    ) -> Option<Duration> {
        let entries = self.services.entry(due.service.clone()).or_default();
        let time = match entries.get(&due.endpoint).map(|entry| (entry.phase, entry.time)) {
            Some((Phase::Out(_) | Phase::Probing(_), _)) => return None,
            Some((Phase::Back(until), last)) if now < until => twice(last),
            _ => setting.first,
        };
        self.ejected += 1;
        let (Setting { failures, most, .. }, order) = (setting, self.ejected);
        let phase = Phase::Out(now + time);
        entries.insert(due.endpoint, Entry { order, failures, why, most, time, phase });
        Some(time)
    }

    /// At most so many endpoints whose time is over. The caller probes them.
    pub fn due(&mut self, most: usize, now: Instant) -> Vec<Due> {
        let mut all = Vec::new();
        for (service, entries) in &mut self.services {
            entries.retain(|_, entry| !matches!(entry.phase, Phase::Back(until) if until <= now));
            for (&endpoint, entry) in entries {
                if let Phase::Out(until) = entry.phase
                    && until <= now
                    && all.len() < most
                {
                    entry.phase = Phase::Probing(until);
                    all.push(Due { service: service.clone(), endpoint });
                }
            }
        }
        self.services.retain(|_, entries| !entries.is_empty());
        all
    }

    /// Records the result of a probe. Returns whether the endpoint is back; `None`: it was forgotten
    /// meanwhile.
    pub fn answer(&mut self, due: &Due, probed: Probed, now: Instant) -> Option<bool> {
        let entry = self.services.get_mut(&due.service)?.get_mut(&due.endpoint)?;
        let Phase::Probing(_) = entry.phase else { return None };
        let is_back = probed != Probed::Failed;
        entry.phase = if is_back {
            Phase::Back(now + entry.time)
        } else {
            entry.time = twice(entry.time);
            Phase::Out(now + entry.time)
        };
        Some(is_back)
    }

    /// Forgets endpoints of a Service: what is left out by the schedule, but not among `out`, because the
    /// cluster or the policy has changed; and what is not among `ready`. Such an endpoint is judged
    /// afresh. Returns whether there was one that is left out.
    pub fn keep(
        &mut self,
        service: &ServiceId,
        setting: Option<Setting>,
        out: &HashSet<SocketAddr>,
        ready: &HashSet<SocketAddr>,
    ) -> bool {
        let Some(entries) = self.services.get_mut(service) else { return false };
        let mut differs = false;
        entries.retain(|endpoint, entry| {
            let stays = setting.is_some()
                && ready.contains(endpoint)
                && (!entry.is_out() || out.contains(endpoint));
            differs |= !stays && entry.is_out();
            stays
        });
        if let Some(Setting { most, .. }) = setting {
            for entry in entries.values_mut().filter(|entry| entry.most != most) {
                entry.most = most;
                differs |= entry.is_out();
            }
        }
        if entries.is_empty() {
            self.services.remove(service);
        }
        differs
    }

    /// Services with endpoints that are left out, or were a while ago.
    pub fn services(&self) -> impl Iterator<Item = &ServiceId> {
        self.services.keys()
    }

    /// How many endpoints are left out.
    #[must_use]
    pub fn len(&self) -> usize {
        self.services.values().flat_map(BTreeMap::values).filter(|entry| entry.is_out()).count()
    }

    /// Whether no endpoint is left out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is left out, for the decisions.
    #[must_use]
    pub fn ejections(&self) -> BTreeMap<ServiceId, ServiceEjections> {
        let of = |(service, entries): (&ServiceId, &BTreeMap<SocketAddr, Entry>)| {
            let mut out: Vec<_> = entries.iter().filter(|(_, entry)| entry.is_out()).collect();
            out.sort_by_key(|(_, entry)| entry.order);
            let most = out.first()?.1.most;
            let ejection = |(&endpoint, entry): (&SocketAddr, &Entry)| {
                let (Phase::Out(until) | Phase::Probing(until) | Phase::Back(until)) = entry.phase;
                Ejection { endpoint, until, failures: entry.failures, why: entry.why }
            };
            let endpoints = out.into_iter().map(ejection).collect();
            Some((service.clone(), ServiceEjections { most, endpoints }))
        };
        self.services.iter().filter_map(of).collect()
    }
}

fn twice(time: Duration) -> Duration {
    (time * 2).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_secs(30);
    const SETTING: Setting = Setting { failures: 3, first: FIRST, most: 50 };

    fn due(host: u8) -> Due {
        let service = ServiceId { namespace: "default".into(), name: "web".into() };
        Due { service, endpoint: SocketAddr::new([10, 1, 1, host].into(), 80) }
    }

    fn fail(schedule: &mut Schedule, now: Instant) -> Option<u64> {
        let time = schedule.fail(&due(1), SETTING, Failure::Refused, now);
        time.map(|time| time.as_secs())
    }

    #[test]
    fn the_time_doubles_with_each_probe_that_fails_up_to_the_longest() {
        let (mut schedule, mut now) = (Schedule::default(), Instant::now());
        assert_eq!(fail(&mut schedule, now), Some(30));
        for seconds in [30, 60, 120, 240, 480, 600, 600] {
            assert_eq!(fail(&mut schedule, now), None, "it is left out already");
            let almost = now + Duration::from_secs(seconds) - Duration::from_millis(1);
            assert_eq!(schedule.due(9, almost), []);
            now += Duration::from_secs(seconds);
            assert_eq!(schedule.due(9, now), [due(1)]);
            assert_eq!(schedule.due(9, now), [], "one probe at a time");
            assert_eq!(schedule.len(), 1, "it is left out while it is probed");
            assert_eq!(schedule.answer(&due(1), Probed::Failed, now), Some(false));
        }
    }

    #[test]
    fn an_endpoint_that_is_back_and_fails_soon_is_left_out_for_twice_the_time() {
        for probed in [Probed::Answered, Probed::Unknown] {
            let (mut schedule, mut now) = (Schedule::default(), Instant::now());
            for seconds in [30, 60, 120, 240, 480, 600, 600] {
                assert_eq!(fail(&mut schedule, now), Some(seconds));
                now += Duration::from_secs(seconds);
                assert_eq!(schedule.due(9, now), [due(1)]);
                assert_eq!(schedule.answer(&due(1), probed, now), Some(true));
                assert!(schedule.is_empty() && schedule.ejections().is_empty());
                assert_eq!(schedule.answer(&due(1), Probed::Failed, now), None, "answered");
                // Just before it would be forgiven.
                now += Duration::from_secs(seconds) - Duration::from_millis(1);
                assert_eq!(schedule.due(9, now), []);
            }
            now += LONGEST;
            assert_eq!(fail(&mut schedule, now), Some(30), "it has served as long as it was out");
        }
    }

    /// What can happen to an endpoint, 20 s after what happened before. A probe that is due fails, but for
    /// `Answers`.
    #[derive(Clone, Copy)]
    enum Happens {
        Nothing,
        Fails,
        Answers,
        IsUnready,
    }

    /// Every order of nine of them, against a reading of the rules that needs three numbers.
    #[test]
    fn whatever_happens_it_is_out_until_it_answers_and_for_twice_as_long_if_it_fails_soon() {
        use Happens::{Answers, Fails, IsUnready, Nothing};
        const ALL: [Happens; 4] = [Nothing, Fails, Answers, IsUnready];
        const LENGTH: u32 = 9;
        let (service, none, start) = (due(1).service, HashSet::new(), Instant::now());
        for order in 0..ALL.len().pow(LENGTH) {
            let mut schedule = Schedule::default();
            // In seconds: when it is probed, when its last time counts no more, and that time.
            let (mut probed, mut forgiven, mut time) = (None, 0, 0);
            for step in 0..LENGTH {
                let seconds = 20 * u64::from(step);
                let now = start + Duration::from_secs(seconds);
                let is_due = !schedule.due(9, now).is_empty();
                assert_eq!(is_due, probed.is_some_and(|it| it <= seconds), "{order} {step}");
                let happens = ALL[order / ALL.len().pow(step) % ALL.len()];
                match happens {
                    Fails => {
                        let is_new = probed.is_none();
                        if is_new {
                            time = if seconds < forgiven { time * 2 } else { 30 };
                            probed = Some(seconds + time);
                        }
                        assert_eq!(fail(&mut schedule, now), is_new.then_some(time));
                    }
                    IsUnready => {
                        let differs = schedule.keep(&service, Some(SETTING), &none, &none);
                        assert_eq!(differs, probed.take().is_some(), "{order} {step}");
                        forgiven = 0;
                    }
                    Nothing | Answers => {}
                }
                if is_due && probed.is_some() {
                    let answers = matches!(happens, Answers);
                    let result = if answers { Probed::Answered } else { Probed::Failed };
                    assert_eq!(schedule.answer(&due(1), result, now), Some(answers));
                    if answers {
                        (probed, forgiven) = (None, seconds + time);
                    } else {
                        time *= 2;
                        probed = Some(seconds + time);
                    }
                }
                assert_eq!(schedule.len(), usize::from(probed.is_some()), "{order} {step}");
            }
        }
    }

    #[test]
    fn only_so_many_are_probed_at_once_and_the_others_later() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        for host in 1..=5 {
            schedule.fail(&due(host), SETTING, Failure::Timeout, now);
        }
        let later = now + FIRST;
        assert_eq!(schedule.due(2, later), [due(1), due(2)]);
        assert_eq!(schedule.due(9, later), [due(3), due(4), due(5)]);
    }

    #[test]
    fn what_is_not_ready_or_not_left_out_any_more_is_judged_afresh() {
        let at = |hosts: &[u8]| hosts.iter().map(|&host| due(host).endpoint).collect();
        let service = due(1).service;
        for (setting, out, ready, left) in [
            (Some(SETTING), [1, 2, 3], [1, 2, 3], 3),
            (Some(SETTING), [1, 1, 1], [1, 2, 3], 1),
            (Some(SETTING), [1, 2, 3], [2, 3, 3], 2),
            (None, [1, 2, 3], [1, 2, 3], 0),
        ] {
            let (mut schedule, now) = (Schedule::default(), Instant::now());
            for host in 1..=3 {
                schedule.fail(&due(host), SETTING, Failure::Timeout, now);
            }
            let differs = schedule.keep(&service, setting, &at(&out), &at(&ready));
            assert_eq!((differs, schedule.len()), (left != 3, left));
        }
        // What is back, and then is not ready, is not left out for longer.
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        assert_eq!(fail(&mut schedule, now), Some(30));
        schedule.due(9, now + FIRST);
        schedule.answer(&due(1), Probed::Answered, now + FIRST);
        assert!(!schedule.keep(&service, Some(SETTING), &at(&[]), &at(&[])));
        assert_eq!(fail(&mut schedule, now + FIRST), Some(30));
    }

    #[test]
    fn a_changed_share_holds_for_what_is_left_out() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        fail(&mut schedule, now);
        let at = HashSet::from([due(1).endpoint]);
        let changed = Setting { most: 10, ..SETTING };
        assert!(schedule.keep(&due(1).service, Some(changed), &at, &at));
        assert!(!schedule.keep(&due(1).service, Some(changed), &at, &at));
        assert_eq!(schedule.ejections()[&due(1).service].most, 10);
    }

    #[test]
    fn decisions_get_the_ejected_endpoints_in_the_order_of_their_ejection() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        for host in [3, 1, 2] {
            schedule.fail(&due(host), SETTING, Failure::Timeout, now);
        }
        let all = &schedule.ejections()[&due(1).service];
        let hosts = all.endpoints.iter().map(|it| it.endpoint);
        assert!(hosts.eq([3, 1, 2].map(|host| due(host).endpoint)));
        assert_eq!((all.most, all.endpoints[0].until), (50, now + FIRST));
    }
}
