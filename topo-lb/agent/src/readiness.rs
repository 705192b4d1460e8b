//! Whether this agent is ready, and if not, what is missing. Pure.

use std::fmt::{self, Write as _};
use std::time::{Duration, SystemTime};

use serde::Serialize;

use topo_lb_core::cluster::Freshness;
use topo_lb_core::flag::OBSERVE;
use topo_lb_core::stale_write_gate::in_words;

/// Whether the hooks work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SelfProbe {
    /// Not known yet.
    #[default]
    Pending,
    /// A connection was translated.
    Passed,
    /// It was not, or the probe failed: why.
    Failed(String),
}

/// The inputs of readiness.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// The self-probe's result.
    pub self_probe: SelfProbe,
    /// The foreign programs that run before ours, if any.
    pub overridden: Option<String>,
    /// Why connections of clients outside fail although topo-lb is to serve them, if they do.
    pub outside: Option<String>,
    /// Why new connections of guests and clients outside are dropped, if their table is full.
    pub full: Option<String>,
    /// Whose new connections are dropped, as it has its share of the table, if anyone's are.
    pub used_up: Option<String>,
    /// Which clients outside are not served although all else is, if any.
    pub unserved: Option<String>,
    /// Whether all Services, EndpointSlices and Nodes were listed.
    pub listed: bool,
    /// Whether the maps hold what was listed, and the programs are attached.
    pub programmed: bool,
    /// Why the last plan failed, if it did.
    pub stuck: Option<String>,
    /// How fresh the state is.
    pub freshness: Freshness,
    /// What does not answer this node; `None`: it is no island.
    pub island: Option<OnIsland>,
    /// That this node was an island and what it found, until it is one again.
    pub was_island: Option<String>,
    /// The programs translate nothing, as they are asked to.
    pub observes: bool,
}

/// What does not answer a node that is an island.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnIsland {
    /// Endpoints that get no new connections for that.
    pub dead: usize,
    /// Services with a port of which no endpoint answers, so that its connections go on as before.
    pub silent: usize,
}

impl fmt::Display for OnIsland {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dead, silent } = self;
        f.write_str("an island, on which ")?;
        match dead {
            0 if *silent == 0 => return f.write_str("all endpoints answer that are probed"),
            0 => {}
            1 => f.write_str("1 endpoint does not answer, and gets no new connections")?,
            _ => write!(f, "{dead} endpoints do not answer, and get no new connections")?,
        }
        let and = if *dead == 0 { "" } else { "; " };
        match silent {
            0 => Ok(()),
            1 => write!(
                f,
                "{and}1 Service has a port of which no endpoint answers, and its connections go on as before"
            ),
            _ => write!(
                f,
                "{and}{silent} Services have a port of which no endpoint answers, and their connections go on as before"
            ),
        }
    }
}

/// What the condition `connections` says while no new connections are dropped.
const ROOM: &str = "there is room for new connections";

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
        let hooks = match &self.self_probe {
            SelfProbe::Pending => Err("the self-probe has not answered yet"),
            SelfProbe::Passed => Ok("a self-probe connection was translated, and one refused"),
            SelfProbe::Failed(why) => Err(why.as_str()),
        };
        let precedence = match &self.overridden {
            None => Ok("no program of others runs before topo-lb's"),
            Some(why) => Err(why.as_str()),
        };
        let outside = match &self.outside {
            None => Ok(
                "nothing that topo-lb knows of stops clients outside, if it serves them; what firewalls accept is not known",
            ),
            Some(why) => Err(why.as_str()),
        };
        // What is open goes on, and no other node would help: the sentence warns people.
        let crowded = self.full.as_deref().or(self.used_up.as_deref());
        let connections = Ok(crowded.unwrap_or(ROOM));
        let synced = match self.listed {
            true => Ok("Services, EndpointSlices and Nodes were listed"),
            false => Err("Services, EndpointSlices and Nodes were not all listed yet"),
        };
        let stuck = |why| format!("the last plan was not carried out: {why}");
        let stuck = self.stuck.as_ref().map(stuck);
        let programmed = match (&stuck, self.programmed) {
            (Some(why), _) => Err(why.as_str()),
            (None, true) => Ok("the programs are attached, and the maps are filled"),
            (None, false) => Err("the programs are not attached yet by this agent"),
        };
        // An edge node without its API server must serve; the sentence warns people.
        let old = self.age(now).map(|age| format!("serving the state of {} ago", in_words(age)));
        let fresh = Ok(old.as_deref().unwrap_or("changes are heard of as they happen"));
        let island = self.island.map(|found| found.to_string());
        // It serves, and better than a node that others would send clients to.
        let island = island.as_deref().map(|sentence| ("island", Ok(sentence)));
        let observes = format!("topo-lb only observes, and translates nothing ({OBSERVE})");
        let mode = self.observes.then_some(("mode", Ok(&*observes)));
        // A VPN of the node's administrators must not hold up a rollout; the sentence warns people.
        let devices = self.unserved.as_deref().map(|which| ("devices", Ok(which)));
        [
            ("hooks", hooks),
            ("precedence", precedence),
            ("outside", outside),
            ("connections", connections),
            ("synced", synced),
            ("programmed", programmed),
            ("fresh", fresh),
        ]
        .into_iter()
        .chain(island)
        .chain(devices)
        .chain(mode)
        .map(|(name, result)| {
            let (Ok(sentence) | Err(sentence)) = result;
            Condition { name, met: result.is_ok(), sentence: sentence.to_owned() }
        })
        .collect()
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
        .filter(|condition| if ready { condition.is_told() } else { !condition.met })
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
    fn is_told(&self) -> bool {
        match self.name {
            "devices" | "island" | "mode" => true,
            "fresh" => self.sentence.starts_with("serving"),
            "connections" => self.sentence != ROOM,
            _ => false,
        }
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
        Readiness {
            self_probe: SelfProbe::Passed,
            listed: true,
            programmed: true,
            ..Readiness::default()
        }
    }

    #[test]
    fn all_must_be_met_and_what_is_not_says_why() {
        let failed = SelfProbe::Failed("the hooks do not fire".to_owned());
        let overridden = Some("program 42 runs before topo-lb's connect4".to_owned());
        let stuck = Some("no memory".to_owned());
        let now = 1_000_000;
        let island = |dead, silent| Some(OnIsland { dead, silent });
        let as_of =
            |seconds| Freshness::AsOf(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        for (readiness, is_ready, text) in [
            (ready(), true, "ready\n"),
            (
                Readiness { listed: false, ..ready() },
                false,
                "not ready: Services, EndpointSlices and Nodes were not all listed yet\n",
            ),
            (
                Readiness { overridden, ..ready() },
                false,
                "not ready: program 42 runs before topo-lb's connect4\n",
            ),
            (
                Readiness { outside: Some("no room".to_owned()), ..ready() },
                false,
                "not ready: no room\n",
            ),
            (
                Readiness { stuck, ..ready() },
                false,
                "not ready: the last plan was not carried out: no memory\n",
            ),
            (
                Readiness { observes: true, ..ready() },
                true,
                "ready: topo-lb only observes, and translates nothing (--observe)\n",
            ),
            (
                Readiness { full: Some("the table is full".to_owned()), ..ready() },
                true,
                "ready: the table is full\n",
            ),
            (
                Readiness { used_up: Some("a client has its quarter".to_owned()), ..ready() },
                true,
                "ready: a client has its quarter\n",
            ),
            (
                Readiness { unserved: Some("clients by wg0 are not".to_owned()), ..ready() },
                true,
                "ready: clients by wg0 are not\n",
            ),
            // An old state is ready.
            (
                Readiness { freshness: as_of(now - 7_500), ..ready() },
                true,
                "ready: serving the state of 2 h 5 min ago\n",
            ),
            (
                Readiness { freshness: as_of(now - 120), island: island(1, 0), ..ready() },
                true,
                "ready: serving the state of 2 min 0 s ago; an island, on which 1 endpoint does not \
                 answer, and gets no new connections\n",
            ),
            (
                Readiness { island: island(0, 0), ..ready() },
                true,
                "ready: an island, on which all endpoints answer that are probed\n",
            ),
            (
                Readiness { island: island(2, 1), ..ready() },
                true,
                "ready: an island, on which 2 endpoints do not answer, and get no new connections; 1 Service has a port of \
                 which no endpoint answers, and its connections go on as before\n",
            ),
            (
                Readiness { island: island(0, 2), ..ready() },
                true,
                "ready: an island, on which 2 Services have a port of which no endpoint answers, and their connections go on as \
                 before\n",
            ),
            // It is over.
            (Readiness { was_island: Some("was".to_owned()), ..ready() }, true, "ready\n"),
            // The clock was set back.
            (
                Readiness { freshness: as_of(2 * now), ..ready() },
                true,
                "ready: serving the state of 0 s ago\n",
            ),
        ] {
            assert_eq!(said(&readiness, false), (is_ready, text.to_owned()));
        }
        let (is_ready, text) = said(&Readiness { self_probe: failed, ..ready() }, true);
        assert!(!is_ready);
        assert!(text.contains("[-] hooks: the hooks do not fire\n[+] precedence: "), "{text}");
        assert!(text.ends_with("\nnot ready\n"), "{text}");
    }
}
