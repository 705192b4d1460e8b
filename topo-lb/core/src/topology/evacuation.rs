//! `topo-lb.io/evacuate`: endpoints at certain values of a label leave every choice, before tiers are formed:
//!
//! `topology.kubernetes.io/zone=b; until=2026-12-01T06:00:00Z; ramp=5m; allow-strict=topology.kubernetes.io/region`
//!
//! * **Everything that says one counts**, not only the strongest object: of a Service, two evacuations evacuate both.
//! * **Never all.** Where no Ready endpoint of a Service port would be left, all stay, unless `force=true`.
//! * **It ends** at `until`: at once, or with `ramp` on more and more nodes. A node's place among all is that of
//!   `topo-lb.io/ramp`, so every node has one moment at which the evacuation ends there.
//! * **Strict policies refuse**, or take the key of `allow-strict`, if they would have an endpoint without the evacuation.
//! * **What counts endpoints of this node alone is left out**: `internalTrafficPolicy: Local` has clients that leave
//!   with their node, and for `externalTrafficPolicy: Local` the health check leads load balancers away.
//!
//! Open connections stay where they are.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use topo_lb_common::selection::SPILL_ONE;

use super::candidate::{self, Candidate, Stock};
use super::ejection::span;
use super::label::{HOSTNAME, Here, Site};
use super::label_name::{is_label_value, label_name};
use super::origin::Origin;
use super::spill::Share;
use super::trial::place;
use super::validation::{ANY, MAX_KEYS, Rule, quoted};
use crate::cluster::State;

/// The longest `ramp`.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// What is evacuated, until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evacuation<'a> {
    /// Labels and their values: an endpoint or a node with any of them leaves. 1 to [`MAX_KEYS`].
    pub labels: Vec<(&'a str, &'a str)>,
    /// Seconds since 1970, UTC; `None`: for as long as its object says so.
    pub until: Option<i64>,
    /// How long it takes after `until` until the last node chooses as before.
    pub ramp: Duration,
    /// The key that a strict policy takes instead of refusing because of the evacuation; [`ANY`] is one, too.
    pub allow_strict: Option<&'a str>,
    /// It also leaves a Service without any endpoint.
    pub force: bool,
}

impl<'a> Evacuation<'a> {
    /// What the annotation says.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn read(text: &'a str) -> Result<Self, Rule> {
        let mut parts = text.split(';').map(str::trim);
        let labels = parts.next().unwrap_or_default();
        // Counts before it splits, like the keys.
        let count = labels.bytes().filter(|&byte| byte == b',').count() + 1;
        if count > MAX_KEYS {
            return Err(Rule::TooManyKeys { count });
        }
        let labels = (1..).zip(labels.split(',')).map(|(position, one)| label(position, one));
        let mut evacuation = Self {
            labels: labels.collect::<Result<_, _>>()?,
            until: None,
            ramp: Duration::ZERO,
            allow_strict: None,
            force: false,
        };
        for option in parts.filter(|option| !option.is_empty()) {
            let unknown = || Rule::EvacuateOption { text: quoted(option) };
            let (name, value) = option.split_once('=').ok_or_else(unknown)?;
            let value = value.trim();
            match name.trim() {
                "until" => {
                    let until = value.parse::<Timestamp>();
                    let until = until.map_err(|_| Rule::EvacuateUntil { text: quoted(value) })?;
                    evacuation.until = Some(until.as_second());
                }
                "ramp" => evacuation.ramp = time(value)?,
                "allow-strict" => {
                    if value != ANY {
                        label_name(value).map_err(|fault| not_a_label(1, value, fault))?;
                    }
                    evacuation.allow_strict = Some(value);
                }
                "force" => evacuation.force = value.parse().map_err(|_| unknown())?,
                _ => return Err(unknown()),
            }
        }
        Ok(evacuation)
    }

    /// The share of nodes on which it holds at a time, in seconds since 1970. Without a clock, on all.
    #[must_use]
    pub fn share(&self, now: Option<i64>) -> Share {
        let (Some(until), Some(now)) = (self.until, now) else { return Share::of(1, 1) };
        match u64::try_from(now.saturating_sub(until)) {
            Err(_) => Share::of(1, 1),
            Ok(since) => {
                let ramp = self.ramp.as_secs();
                Share::of(ramp.saturating_sub(since), ramp)
            }
        }
    }

    /// Whether it holds on a node at a place among all nodes.
    pub(super) fn holds(&self, now: Option<i64>, place: Share) -> bool {
        place.parts() < self.share(now).parts()
    }

    /// The label, with its value, by which an endpoint leaves.
    fn label_of(&self, site: Site<'_>) -> Option<(&'a str, &'a str)> {
        self.labels.iter().copied().find(|&(key, value)| site.label(key) == Ok(value))
    }

    /// Whether a node is at one of the values.
    pub(super) fn is_of(&self, here: Here<'_>) -> bool {
        let own = |key: &str| here.label(key).or((key == HOSTNAME).then_some(here.name));
        self.labels.iter().any(|&(key, value)| own(key) == Some(value))
    }
}

/// A time of whole seconds, minutes or hours, up to a day.
///
/// # Errors
/// It is none.
pub fn time(text: &str) -> Result<Duration, Rule> {
    let time = span(text, Duration::ZERO, LONGEST);
    time.ok_or_else(|| Rule::EvacuateRamp { text: quoted(text) })
}

/// `KEY=VALUE`.
fn label(position: usize, text: &str) -> Result<(&str, &str), Rule> {
    let form = || Rule::EvacuateForm { text: quoted(text.trim()) };
    let (key, value) = text.split_once('=').ok_or_else(form)?;
    let (key, value) = (key.trim(), value.trim());
    label_name(key).map_err(|fault| not_a_label(position, key, fault))?;
    if is_label_value(value) { Ok((key, value)) } else { Err(form()) }
}

fn not_a_label(position: usize, key: &str, fault: super::label_name::LabelFault) -> Rule {
    Rule::NotALabel { position, key: quoted(key), fault }
}

/// Evacuations of a Service, from everything that says one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evacuating<'a> {
    /// Those that hold on any node, with the objects that say them, and the share of nodes on which each holds.
    pub all: Vec<(Origin, Evacuation<'a>, Share)>,
    /// Those that hold on this node.
    pub(super) here: Vec<Evacuation<'a>>,
    /// The place of this node among all.
    place: Share,
}

impl<'a> Evacuating<'a> {
    pub(super) fn add(
        &mut self,
        origin: &Origin,
        evacuation: Evacuation<'a>,
        now: Option<i64>,
        node: &str,
    ) {
        let share = evacuation.share(now);
        if share.is_none() {
            return;
        }
        self.place = place(node);
        if evacuation.holds(now, self.place) {
            self.here.push(evacuation.clone());
        }
        self.all.push((origin.clone(), evacuation, share));
    }

    /// Those that hold on this node, with the objects that say them.
    pub(super) fn holding(&self) -> impl Iterator<Item = (&Origin, &Evacuation<'a>)> {
        let holds = |share: &Share| self.place.parts() < share.parts();
        self.all.iter().filter(move |(.., share)| holds(share)).map(|(origin, it, _)| (origin, it))
    }
}

/// What leaves of the endpoints of a Service port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Leaving {
    /// One for each candidate; empty if none leaves.
    leaves: Vec<bool>,
    /// Some would leave, but no Ready endpoint would be left.
    pub(super) left_alone: bool,
}

impl Leaving {
    /// What leaves of all candidates of a Service port and family. `alive`: all but those that do not answer.
    pub(super) fn of(
        evacuations: &[Evacuation<'_>],
        candidates: &[Candidate<'_>],
        alive: &[usize],
    ) -> Self {
        let by = |forced_only: bool| -> Vec<bool> {
            let counts = evacuations.iter().filter(|it| it.force || !forced_only);
            let counts: Vec<_> = counts.collect();
            let leaves =
                |one: &Candidate<'_>| counts.iter().any(|it| it.label_of(one.site).is_some());
            candidates.iter().map(leaves).collect()
        };
        let leaves = by(false);
        let staying: Vec<usize> = alive.iter().copied().filter(|&one| !leaves[one]).collect();
        let (stock, usable) = candidate::usable(candidates, alive);
        let (left_stock, left) = candidate::usable(candidates, &staying);
        let is_touched = usable.iter().any(|&one| leaves[one]);
        // Endpoints that drain are about to go themselves.
        let is_empty = left.is_empty() || stock == Stock::Ready && left_stock == Stock::Draining;
        if is_touched && is_empty {
            let forced = by(true);
            let left_alone = forced != leaves;
            return Self { leaves: forced, left_alone };
        }
        Self { leaves, left_alone: false }
    }

    /// Whether a candidate leaves, by its index.
    pub(super) fn has(&self, index: usize) -> bool {
        self.leaves.get(index).copied().unwrap_or(false)
    }

    /// Whether any candidate leaves.
    pub(super) fn is_any(&self) -> bool {
        self.leaves.contains(&true)
    }
}

/// The label, with its value, by which an endpoint leaves; the first evacuation that has one.
pub(super) fn label_of<'a>(
    evacuations: &[Evacuation<'a>],
    site: Site<'_>,
) -> Option<(&'a str, &'a str)> {
    evacuations.iter().find_map(|it| it.label_of(site))
}

/// The name of the ClusterTopologyPolicy by which a value of a label is evacuated: the same for the same, a DNS name.
#[must_use]
pub fn object_name(key: &str, value: &str) -> String {
    let plain =
        |one: char| if one.is_ascii_alphanumeric() { one.to_ascii_lowercase() } else { '-' };
    let last = key.rsplit('/').next().unwrap_or(key);
    let shown: String = format!("{last}-{value}").chars().map(plain).take(80).collect();
    // Two labels may look alike.
    let digest = crc32fast::hash(format!("{key}={value}").as_bytes());
    format!("evacuate-{}-{digest:08x}", shown.trim_matches('-'))
}

/// Whether what a text says ends on a node between two times, or holds again as the clock was set back.
#[must_use]
pub fn turns(text: &str, node: &str, before: Option<i64>, now: i64) -> bool {
    end(text, node).is_some_and(|end| before.is_some_and(|it| end <= it) != (end <= now))
}

/// Whether anything that is evacuated ends on some node between a time and that of a state, or holds again.
#[must_use]
pub fn turned(state: &State, before: Option<i64>) -> bool {
    let Some(now) = state.now() else { return false };
    let texts: BTreeSet<&str> = state.evacuations().collect();
    let on_any = |text: &str| state.nodes().any(|(node, _)| turns(text, node, before, now));
    texts.into_iter().any(on_any)
}

/// When what a text says ends on a node, in seconds since 1970; `None`: never, or it breaks a rule.
fn end(text: &str, node: &str) -> Option<i64> {
    let evacuation = Evacuation::read(text).ok()?;
    let place = u64::from(place(node).parts());
    // The first second in which the share is no more than the place.
    let ramp = evacuation.ramp.as_secs();
    let (one, shares) = (u64::from(SPILL_ONE), |since| Share::of(ramp - since, ramp).parts());
    let mut since = ramp.saturating_sub(ramp * (place + 1) / one).min(ramp);
    while since < ramp && u64::from(shares(since)) > place {
        since += 1;
    }
    Some(evacuation.until?.saturating_add_unsigned(since))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZONE_B: &str = "topology.kubernetes.io/zone=b";

    #[test]
    fn a_label_may_be_followed_by_options_in_any_order() {
        let none = Evacuation::read(ZONE_B).unwrap();
        assert_eq!(none.labels, [("topology.kubernetes.io/zone", "b")]);
        assert_eq!(
            (none.until, none.ramp, none.allow_strict, none.force),
            (None, Duration::ZERO, None, false)
        );
        for text in [
            "rack=r1,kubernetes.io/hostname=n1;until=1970-01-01T00:01:40Z;ramp=5m;allow-strict=*;force=true",
            " rack = r1 , kubernetes.io/hostname = n1 ; force = true ; ramp = 300s ; allow-strict = * ; until = 1970-01-01T02:01:40+02:00 ;",
        ] {
            let read = Evacuation::read(text).unwrap();
            assert_eq!(read.labels, [("rack", "r1"), (HOSTNAME, "n1")], "{text}");
            assert_eq!((read.until, read.ramp.as_secs()), (Some(100), 300), "{text}");
            assert_eq!((read.allow_strict, read.force), (Some(ANY), true), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let long = ",".repeat(1 << 20);
        for (text, said) in [
            ("", "no label with a value"),
            ("b", "no label with a value"),
            ("*=b", "is no label name"),
            ("rack=", "no label with a value"),
            ("rack=*", "no label with a value"),
            ("rack=a=b", "no label with a value"),
            ("rack=a,", "no label with a value"),
            (&long, "at most 16"),
            ("rack=a; for=2h", "no option"),
            ("rack=a; force", "no option"),
            ("rack=a; force=yes", "no option"),
            ("rack=a; until=tomorrow", "no time"),
            ("rack=a; until=2026-13-01T00:00:00Z", "no time"),
            ("rack=a; ramp=2d", "no time from 0s to 24h"),
            ("rack=a; ramp=25h", "no time from 0s to 24h"),
            ("rack=a; allow-strict=a b", "is no label name"),
        ] {
            let error = Evacuation::read(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text:.80}: {error}");
        }
    }

    #[test]
    fn a_node_has_one_moment_at_which_it_ends() {
        for (ramp, node) in
            [(0, "n1"), (1, "n1"), (7, "a"), (300, "n1"), (86_400, "n1"), (86_400, "")]
        {
            let text = format!("{ZONE_B}; until=1970-01-01T00:16:40Z; ramp={ramp}s");
            let evacuation = Evacuation::read(&text).unwrap();
            let (place, end) = (place(node), end(&text, node).unwrap());
            assert!((1_000..=1_000 + ramp).contains(&end), "{ramp} {node}: {end}");
            for now in (0..1_000 + ramp + 10).step_by(1 + usize::try_from(ramp / 500).unwrap()) {
                assert_eq!(evacuation.holds(Some(now), place), now < end, "{ramp} {node} {now}");
            }
            for now in [end - 1, end] {
                assert_eq!(evacuation.holds(Some(now), place), now < end, "{ramp} {node} {now}");
            }
            assert!(evacuation.holds(None, place), "no clock, no end");
        }
        assert_eq!(end(ZONE_B, "n1"), None);
        for extreme in ["-009999-01-02T01:59:59Z", "9999-12-30T22:00:00.999999999Z"] {
            let text = format!("{ZONE_B}; until={extreme}; ramp=24h");
            let evacuation = Evacuation::read(&text).unwrap();
            for now in [i64::MIN, 0, i64::MAX] {
                let _ = evacuation.share(Some(now));
            }
        }
    }
}
