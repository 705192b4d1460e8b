//! Patterns that match no device: most likely the devices are in another network namespace.

use std::time::{Duration, Instant};

use super::Pattern;
use topo_lb_core::flag::TC_DEVICES;

/// Time until a pattern without a match is reported.
const PATIENCE: Duration = Duration::from_secs(60);

/// Patterns that have matched nothing since the start.
#[derive(Debug)]
pub struct Unmatched {
    patterns: Vec<Pattern>,
    start: Instant,
}

impl Unmatched {
    /// No pattern has matched yet.
    #[must_use]
    pub fn new(patterns: &[Pattern], now: Instant) -> Self {
        Self { patterns: patterns.to_vec(), start: now }
    }

    /// Takes in the names of the existing devices. Returns a warning once.
    pub fn look<'a>(
        &mut self,
        names: impl Iterator<Item = &'a str>,
        now: Instant,
    ) -> Option<String> {
        for name in names {
            self.patterns.retain(|pattern| !pattern.matches(name));
        }
        if self.patterns.is_empty() || now.duration_since(self.start) < PATIENCE {
            return None;
        }
        let names: Vec<String> = self.patterns.drain(..).map(|it| it.to_string()).collect();
        Some(format!(
            "{TC_DEVICES} {} has matched no Ethernet device of the host within {} s. Taps of KubeVirt and \
             Kata are in the Pods' network namespaces, where topo-lb does not look: name the host's \
             ends of the Pods' veth pairs (veth*, cali*, lxc*; `ip -br link` shows them)",
            names.join(","),
            PATIENCE.as_secs()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(all: &[&str]) -> Vec<Pattern> {
        all.iter().map(|text| text.parse().expect("a pattern")).collect()
    }

    #[test]
    fn a_pattern_that_matches_nothing_for_a_minute_is_told_once() {
        let start = Instant::now();
        let mut unmatched = Unmatched::new(&patterns(&["tap*", "veth*", "kata*"]), start);
        let devices = ["eth0", "veth1"];
        let look = |unmatched: &mut Unmatched, seconds| {
            unmatched.look(devices.into_iter(), start + Duration::from_secs(seconds))
        };
        assert_eq!(look(&mut unmatched, 0), None);
        assert_eq!(look(&mut unmatched, 59), None);
        let told = look(&mut unmatched, 60).expect("a sentence");
        assert!(told.starts_with("--tc-devices tap*,kata* has matched no"), "{told}");
        assert_eq!(look(&mut unmatched, 600), None);
    }

    #[test]
    fn a_device_that_was_there_for_a_moment_is_enough() {
        let start = Instant::now();
        let mut unmatched = Unmatched::new(&patterns(&["tap*"]), start);
        assert_eq!(unmatched.look(["tap0"].into_iter(), start), None);
        assert_eq!(unmatched.look([].into_iter(), start + PATIENCE), None);
    }
}
