//! What agents evacuate, as rows and in words. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use super::cells::printable;
use super::moment::Moment;

/// Most evacuations in a sentence.
const NAMED: usize = 3;
/// An end that is nearer, in seconds, is told to the second.
const SOON: i64 = 120;

/// What agents evacuate. Its JSON is a fixed interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Evacuation {
    /// A label.
    pub key: Arc<str>,
    /// Its value.
    pub value: Arc<str>,
    /// Its end, such as `2026-12-01T14:05:00Z`; `None`: it has none.
    pub until: Option<Arc<str>>,
    /// How many Services have endpoints there.
    pub services: usize,
    /// On how many of the nodes that answer it is in force.
    pub nodes: usize,
}

/// What is in force on some node, by its label.
pub(super) fn all(moment: &Moment) -> Vec<Evacuation> {
    let mut all: BTreeMap<_, (usize, usize)> = BTreeMap::new();
    for (of, services) in moment.evacuations.values().flatten() {
        let (most, nodes) = all.entry(of).or_default();
        // All agents see the same Services, not all at once.
        *most = (*most).max(*services);
        *nodes += 1;
    }
    let row = |([key, value, until], (services, nodes)): (&[Arc<str>; 3], _)| Evacuation {
        key: Arc::clone(key),
        value: Arc::clone(value),
        until: (!until.is_empty()).then(|| Arc::clone(until)),
        services,
        nodes,
    };
    all.into_iter().map(row).collect()
}

/// The same as a sentence, at a time in seconds since 1970; `None` if nothing is.
pub(super) fn sentence(all: &[Evacuation], answering: usize, now: i64) -> Option<String> {
    let one = |it: &Evacuation| {
        let s = if it.services == 1 { "" } else { "s" };
        let end = it.until.as_deref().map(|until| end(until, now)).unwrap_or_default();
        let part = match it.nodes < answering {
            true => format!(", on {} of {answering} nodes", it.nodes),
            false => String::new(),
        };
        let (key, value) = (printable(&it.key), printable(&it.value));
        format!("{key}={value}, {} Service{s}{end}{part}", it.services)
    };
    let mut told: Vec<String> = all.iter().take(NAMED).map(one).collect();
    let more = all.len() - told.len();
    told.extend((more > 0).then(|| format!("and {more} more")));
    (!told.is_empty()).then(|| format!("evacuated: {}", told.join("; ")))
}

/// When it ends, or since when it has been coming back on one node after the other.
fn end(until: &str, now: i64) -> String {
    let Ok(end) = until.parse::<Timestamp>() else {
        return format!(", until {}", printable(until));
    };
    let day = |seconds: i64| seconds.div_euclid(86_400);
    let is_today = day(end.as_second()) == day(now);
    let left = end.as_second() - now;
    let time = end.strftime(match is_today {
        // A time without seconds would seem to be over, or to be a minute away.
        _ if (1..SOON).contains(&left) => "%H:%M:%S UTC",
        true => "%H:%M UTC",
        false => "%Y-%m-%d %H:%M UTC",
    });
    if left > 0 { format!(", until {time}") } else { format!(", comes back since {time}") }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::moment::ByAgent;
    use super::*;

    const ZONE: &str = "topology.kubernetes.io/zone";
    const NOON: &str = "1970-01-02T12:00:00Z";

    /// Key, value, end, Services.
    type Told = (&'static str, &'static str, &'static str, usize);

    fn said(agents: &[&[Told]], now: i64) -> Option<String> {
        let of = |told: &[Told]| -> ByAgent {
            let one =
                |&(key, value, end, services): &Told| ([key, value, end].map(Into::into), services);
            told.iter().map(one).collect()
        };
        let name = |at: usize| Arc::<str>::from(format!("n{at}"));
        let evacuations =
            agents.iter().enumerate().map(|(at, told)| (name(at), of(told))).collect();
        let moment = Moment { evacuations, ..Moment::at(Instant::now()) };
        sentence(&all(&moment), agents.len(), now)
    }

    #[test]
    fn what_is_evacuated_is_a_sentence_with_its_end_and_nothing_is_none() {
        let hour = |hour: i64| 86_400 + hour * 3_600;
        assert_eq!(said(&[&[], &[]], hour(0)), None);
        let both: [&[_]; 2] = [&[(ZONE, "b", NOON, 2)], &[(ZONE, "b", NOON, 3)]];
        let wanted = |rest: &str| Some(format!("evacuated: {ZONE}=b, 3 Services{rest}"));
        assert_eq!(said(&both, hour(9)), wanted(", until 12:00 UTC"));
        assert_eq!(said(&both, hour(-1)), wanted(", until 1970-01-02 12:00 UTC"));
        assert_eq!(said(&both, hour(12) - 120), wanted(", until 12:00 UTC"));
        assert_eq!(said(&both, hour(12) - 119), wanted(", until 12:00:00 UTC"));
        let midnight: [&[_]; 1] = [&[(ZONE, "b", "1970-01-02T00:00:30Z", 3)]];
        assert_eq!(said(&midnight, hour(0) - 1), wanted(", until 00:00:30 UTC"));
        let one: [&[_]; 2] = [&[], &[(ZONE, "b", NOON, 3)]];
        assert_eq!(said(&one, hour(12)), wanted(", comes back since 12:00 UTC, on 1 of 2 nodes"));
        let two: [&[_]; 1] = [&[("rack", "r1", "", 1), (ZONE, "b", "", 0)]];
        let wanted = format!("evacuated: rack=r1, 1 Service; {ZONE}=b, 0 Services");
        assert_eq!(said(&two, 0), Some(wanted));
        let many: [&[_]; 1] =
            [&[("a", "1", "", 1), ("b", "1", "", 1), ("c", "1", "", 1), ("d", "1", "", 1)]];
        let said = said(&many, 0).unwrap_or_default();
        assert!(said.ends_with("; and 1 more"), "{said}");
    }
}
