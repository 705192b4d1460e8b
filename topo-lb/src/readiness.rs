//! Whether this agent is ready, and if not, what is missing. Pure.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::source::Freshness;
use crate::stale_write_gate::in_words;

/// Whether the hooks work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Proof {
    /// Not known yet.
    #[default]
    Pending,
    /// A connection was translated.
    Given,
    /// It was not, or the probe failed: why.
    Failed(String),
}

/// The inputs of readiness.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// The self-probe's result.
    pub proof: Proof,
    /// The foreign programs that run before ours, if any.
    pub overridden: Option<String>,
    /// Whether all Services, EndpointSlices and Nodes were listed.
    pub listed: bool,
    /// Whether the maps hold what was listed, and the programs are attached.
    pub programmed: bool,
    /// Why the last plan failed, if it did.
    pub stuck: Option<String>,
    /// How fresh the state is.
    pub freshness: Freshness,
}

/// One condition of readiness.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Condition {
    /// Its name, one word.
    pub name: &'static str,
    /// Whether it is met.
    pub met: bool,
    /// The state of what it checks.
    pub sentence: String,
}

impl Readiness {
    /// Every condition; the agent is ready when all are met.
    #[must_use]
    pub fn conditions(&self, now: SystemTime) -> Vec<Condition> {
        let condition =
            |name, met, sentence: &str| Condition { name, met, sentence: sentence.to_owned() };
        let hooks = match &self.proof {
            Proof::Pending => condition("hooks", false, "the self-probe has not answered yet"),
            Proof::Given => {
                condition("hooks", true, "a self-probe connection was translated, and one refused")
            }
            Proof::Failed(why) => condition("hooks", false, why),
        };
        let precedence = match &self.overridden {
            None => condition("precedence", true, "no program of others runs before topo-lb's"),
            Some(why) => condition("precedence", false, why),
        };
        let synced = if self.listed {
            condition("synced", true, "Services, EndpointSlices and Nodes were listed")
        } else {
            condition("synced", false, "Services, EndpointSlices and Nodes were not all listed yet")
        };
        let programmed = match (&self.stuck, self.programmed) {
            (Some(why), _) => {
                condition("programmed", false, &format!("the last plan was not carried out: {why}"))
            }
            (None, true) => {
                condition("programmed", true, "the programs are attached, and the maps are filled")
            }
            (None, false) => {
                condition("programmed", false, "the programs are not attached yet by this agent")
            }
        };
        let fresh = match self.age(now) {
            None => condition("fresh", true, "changes are heard of as they happen"),
            // An edge node without its API server must serve; the sentence warns people.
            Some(age) => {
                condition("fresh", true, &format!("serving the state of {} ago", in_words(age)))
            }
        };
        vec![hooks, precedence, synced, programmed, fresh]
    }

    /// How old the state is; `None` if it is live.
    #[must_use]
    pub fn age(&self, now: SystemTime) -> Option<Duration> {
        match self.freshness {
            Freshness::Live => None,
            Freshness::AsOf(then) => Some(now.duration_since(then).unwrap_or_default()),
        }
    }
}

/// Whether all conditions are met, and a text: one line, or if verbose one per condition.
#[must_use]
pub fn report(conditions: &[Condition], verbose: bool) -> (bool, String) {
    let ready = conditions.iter().all(|condition| condition.met);
    let verdict = if ready { "ready" } else { "not ready" };
    let mut text = String::new();
    if verbose {
        for Condition { name, met, sentence } in conditions {
            let sign = if *met { "[+]" } else { "[-]" };
            let _ = writeln!(text, "{sign} {name}: {sentence}");
        }
        let _ = writeln!(text, "{verdict}");
        return (ready, text);
    }
    let told: Vec<_> = conditions
        .iter()
        .filter(|condition| if ready { condition.is_stale() } else { !condition.met })
        .map(|condition| condition.sentence.as_str())
        .collect();
    let _ = match told.as_slice() {
        [] => writeln!(text, "{verdict}"),
        told => writeln!(text, "{verdict}: {}", told.join("; ")),
    };
    (ready, text)
}

impl Condition {
    /// Whether it is met but its sentence should still be shown.
    fn is_stale(&self) -> bool {
        self.name == "fresh" && self.sentence.starts_with("serving")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(readiness: &Readiness, verbose: bool) -> (bool, String) {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        report(&readiness.conditions(now), verbose)
    }

    fn ready() -> Readiness {
        Readiness { proof: Proof::Given, listed: true, programmed: true, ..Readiness::default() }
    }

    #[test]
    fn all_must_be_met() {
        assert_eq!(said(&ready(), false), (true, "ready\n".to_owned()));
        let (is_ready, text) = said(&Readiness { listed: false, ..ready() }, false);
        assert!(!is_ready);
        assert_eq!(text, "not ready: Services, EndpointSlices and Nodes were not all listed yet\n");
    }

    #[test]
    fn what_is_not_met_says_why() {
        let failed = Proof::Failed("the hooks do not fire".to_owned());
        let (is_ready, text) = said(&Readiness { proof: failed, ..ready() }, true);
        assert!(!is_ready);
        assert!(text.contains("[-] hooks: the hooks do not fire\n[+] precedence: "), "{text}");
        assert!(text.ends_with("\nnot ready\n"), "{text}");
        let stuck = Readiness { stuck: Some("no memory".to_owned()), ..ready() };
        assert!(said(&stuck, false).1.contains("no memory"));
    }

    #[test]
    fn an_agent_that_others_override_is_not_ready() {
        let overridden = Some("program 42 runs before topo-lb's connect4".to_owned());
        let (is_ready, text) = said(&Readiness { overridden, ..ready() }, false);
        assert!(!is_ready);
        assert_eq!(text, "not ready: program 42 runs before topo-lb's connect4\n");
    }

    #[test]
    fn an_old_state_is_ready_and_says_its_age() {
        let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 - 7_500);
        let old = Readiness { freshness: Freshness::AsOf(then), ..ready() };
        let wanted = (true, "ready: serving the state of 2 h 5 min ago\n".to_owned());
        assert_eq!(said(&old, false), wanted);
    }

    #[test]
    fn a_clock_that_was_set_back_is_no_age() {
        let then = SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000);
        let old = Readiness { freshness: Freshness::AsOf(then), ..ready() };
        assert!(said(&old, false).1.contains("of 0 s ago"));
    }
}
