//! When an endpoint is ejected, and until when. Pure: callers pass the time.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use topo_lb_common::totals::Failure;

use super::Probed;
use crate::cluster::{Ejection, ServiceEjections, ServiceId};
use crate::topology::ejection::{LONGEST, Setting};
use crate::turns::Turns;

/// The endpoints that are ejected, or were a while ago.
#[derive(Debug, Default)]
pub struct Schedule {
    services: BTreeMap<ServiceId, BTreeMap<SocketAddr, Entry>>,
    /// When the phase of an endpoint is over, unless it waits or is being probed.
    times: BTreeSet<(Instant, Due)>,
    /// Endpoints that wait for a probe since then. They may have been forgotten meanwhile.
    waiting: Turns<(Instant, SocketAddr)>,
    /// Probes without an answer yet, by namespace; only namespaces with any.
    probing: HashMap<Arc<str>, usize>,
    /// How many were ejected so far.
    ejected: u64,
    /// How many are ejected.
    out: usize,
}

#[derive(Debug)]
struct Entry {
    /// Rises from one ejection to the next.
    order: u64,
    failures: u8,
    why: Failure,
    most: u8,
    /// For how long it is ejected, or was the last time.
    time: Duration,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Ejected until then.
    Out(Instant),
    /// Ejected; since then the time is over, and it is being probed.
    Probing(Instant),
    /// Back. If it fails before then, it is ejected for twice the time.
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
    /// Records that connects to an endpoint failed, and returns for how long it is ejected; `None`: it
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
        let before = entries.get(&due.endpoint).map(|entry| entry.phase);
        if let Some(Phase::Back(until)) = before {
            self.times.remove(&(until, due.clone()));
        }
        self.ejected += 1;
        self.out += 1;
        let (Setting { failures, most, .. }, order) = (setting, self.ejected);
        let phase = Phase::Out(now + time);
        entries.insert(due.endpoint, Entry { order, failures, why, most, time, phase });
        self.times.insert((now + time, due.clone()));
        Some(time)
    }

    /// Endpoints whose time is over, in turns of namespaces and Services. The caller probes them, and has so
    /// many places for probes. A namespace gets one more only while it has fewer than are free: so half of them
    /// at most, and there is one for the next namespace even while no probe is answered.
    pub fn due(&mut self, places: usize, now: Instant) -> Vec<Due> {
        self.pass(now);
        let mut free = places.saturating_sub(self.probing.values().sum());
        let mut all = Vec::new();
        loop {
            let probing = &self.probing;
            let may = |namespace: &str| probing.get(namespace).copied().unwrap_or(0) < free;
            let Some((service, (_, endpoint))) = self.waiting.take(may) else { return all };
            let entry = self.services.get_mut(&service).and_then(|all| all.get_mut(&endpoint));
            let Some(entry) = entry else { continue };
            if let Phase::Out(until) = entry.phase
                && until <= now
            {
                entry.phase = Phase::Probing(until);
                *self.probing.entry(Arc::clone(&service.namespace)).or_default() += 1;
                free -= 1;
                all.push(Due { service, endpoint });
            }
        }
    }

    /// Ends the phases that are over.
    fn pass(&mut self, now: Instant) {
        while self.times.first().is_some_and(|(until, _)| *until <= now)
            && let Some((until, Due { service, endpoint })) = self.times.pop_first()
        {
            let Some(entries) = self.services.get_mut(&service) else { continue };
            match entries.get(&endpoint).map(|entry| entry.phase) {
                Some(Phase::Out(_)) => self.waiting.put(&service, (until, endpoint)),
                Some(Phase::Back(_)) => {
                    entries.remove(&endpoint);
                    if entries.is_empty() {
                        self.services.remove(&service);
                    }
                }
                Some(Phase::Probing(_)) | None => {}
            }
        }
    }

    /// Records the result of a probe. Returns whether the endpoint is back; `None`: it was forgotten
    /// meanwhile.
    pub fn answer(&mut self, due: &Due, probed: Probed, now: Instant) -> Option<bool> {
        let namespace = &due.service.namespace;
        match self.probing.get_mut(namespace) {
            Some(probing @ 2..) => *probing -= 1,
            _ => drop(self.probing.remove(namespace)),
        }
        let entry = self.services.get_mut(&due.service)?.get_mut(&due.endpoint)?;
        let Phase::Probing(_) = entry.phase else { return None };
        let is_back = probed != Probed::Failed;
        if !is_back {
            entry.time = twice(entry.time);
        }
        let until = now + entry.time;
        entry.phase = if is_back { Phase::Back(until) } else { Phase::Out(until) };
        self.out -= usize::from(is_back);
        self.times.insert((until, due.clone()));
        Some(is_back)
    }

    /// Forgets endpoints of a Service: what is ejected by the schedule, but not among `out`, because the
    /// cluster or the policy has changed; and what is not among `ready`. Such an endpoint is judged
    /// afresh. Returns whether there was one that is ejected.
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
            if !stays {
                differs |= entry.is_out();
                self.out -= usize::from(entry.is_out());
                let (Phase::Out(until) | Phase::Probing(until) | Phase::Back(until)) = entry.phase;
                self.times.remove(&(until, Due { service: service.clone(), endpoint: *endpoint }));
            }
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

    /// Whether a Service has endpoints that are ejected, or were a while ago.
    #[must_use]
    pub fn knows(&self, service: &ServiceId) -> bool {
        self.services.contains_key(service)
    }

    /// How many endpoints are ejected.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.out
    }

    /// Whether no endpoint is ejected.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.out == 0
    }

    /// What is ejected of a Service, for the decisions.
    #[must_use]
    pub fn ejections(&self, service: &ServiceId) -> ServiceEjections {
        let all = self.services.get(service).into_iter().flatten();
        let mut out: Vec<_> = all.filter(|(_, entry)| entry.is_out()).collect();
        out.sort_by_key(|(_, entry)| entry.order);
        let most = out.first().map(|(_, entry)| entry.most).unwrap_or_default();
        let ejection = |(&endpoint, entry): (&SocketAddr, &Entry)| {
            let (Phase::Out(until) | Phase::Probing(until) | Phase::Back(until)) = entry.phase;
            Ejection { endpoint, until, failures: entry.failures, why: entry.why }
        };
        ServiceEjections { most, endpoints: out.into_iter().map(ejection).collect() }
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
            assert_eq!(fail(&mut schedule, now), None, "it is ejected already");
            let almost = now + Duration::from_secs(seconds) - Duration::from_millis(1);
            assert_eq!(schedule.due(9, almost), []);
            now += Duration::from_secs(seconds);
            assert_eq!(schedule.due(9, now), [due(1)]);
            assert_eq!(schedule.due(9, now), [], "one probe at a time");
            assert_eq!(schedule.len(), 1, "it is ejected while it is probed");
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
                assert!(schedule.is_empty());
                assert!(schedule.ejections(&due(1).service).endpoints.is_empty());
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
        assert_eq!(schedule.due(4, later), [due(1), due(2)]);
        assert_eq!(schedule.due(4, later), []);
        assert_eq!(schedule.due(9, later), [due(3), due(4), due(5)]);
    }

    /// One namespace has endpoints of 2,000 Services whose time is over, before one of another is.
    #[test]
    fn a_namespace_with_many_endpoints_does_not_hold_up_the_probe_of_another() {
        const PLACES: usize = 64;
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        let of = |namespace: &str, name: String| {
            let service = ServiceId { namespace: namespace.into(), name: name.into() };
            Due { service, ..due(1) }
        };
        for number in 0..2_000 {
            schedule.fail(&of("evil", format!("s{number}")), SETTING, Failure::Refused, now);
        }
        let victim = of("victim", "web".to_owned());
        schedule.fail(&victim, SETTING, Failure::Refused, now + FIRST);
        let first = schedule.due(PLACES, now + FIRST);
        assert!(!first.contains(&victim) && first.len() == PLACES / 2, "{}", first.len());
        // None of these is answered yet.
        assert_eq!(schedule.due(PLACES, now + 2 * FIRST), std::slice::from_ref(&victim));
        for due in &first {
            assert_eq!(schedule.answer(due, Probed::Failed, now + 2 * FIRST), Some(false));
        }
        assert_eq!(schedule.due(PLACES, now + 2 * FIRST).len(), PLACES / 2);
    }

    #[test]
    fn what_was_forgotten_while_it_waited_is_not_probed() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        for host in 1..=3 {
            schedule.fail(&due(host), SETTING, Failure::Timeout, now);
        }
        assert_eq!(schedule.due(2, now + FIRST), [due(1)]);
        let none = HashSet::new();
        assert!(schedule.keep(&due(1).service, None, &none, &none));
        assert_eq!(schedule.due(9, now + FIRST), []);
        schedule.fail(&due(2), SETTING, Failure::Timeout, now + FIRST);
        assert_eq!(schedule.due(9, now + FIRST), [], "its time is not over");
        assert_eq!(schedule.answer(&due(1), Probed::Failed, now + FIRST), None);
        assert_eq!(schedule.due(2, now + 2 * FIRST), [due(2)]);
        assert!(schedule.probing.len() == 1 && schedule.times.is_empty());
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
        // What is back, and then is not ready, is not ejected for longer.
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
        assert_eq!(schedule.ejections(&due(1).service).most, 10);
    }

    #[test]
    fn decisions_get_the_ejected_endpoints_in_the_order_of_their_ejection() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        for host in [3, 1, 2] {
            schedule.fail(&due(host), SETTING, Failure::Timeout, now);
        }
        let all = schedule.ejections(&due(1).service);
        let hosts = all.endpoints.iter().map(|it| it.endpoint);
        assert!(hosts.eq([3, 1, 2].map(|host| due(host).endpoint)));
        assert_eq!((all.most, all.endpoints[0].until), (50, now + FIRST));
    }
}
