//! Which specs run at the same time.
//!
//! Specs mostly wait for kubelets, so several processes of e2e.test share them, as Kubernetes' own
//! runs do. Those that take ports of the nodes for themselves are in one process.

use regex::Regex;

/// Processes of e2e.test.
const LANES: usize = 4;
/// Most specs that are shared: one argument of a command is not longer than 128 KiB.
const MOST: usize = 1_000;

/// The focus of each process: an expression that matches its specs. `names` are those of all specs.
pub(super) fn expressions<'n>(focus: &Regex, names: impl Iterator<Item = &'n str>) -> Vec<String> {
    let names: Vec<_> = names.collect();
    let is_alone = |name: &&str| name.contains("[Serial]") || name.contains("[Disruptive]");
    if names.len() > MOST || names.iter().any(is_alone) {
        return vec![focus.to_string()];
    }
    let mut lanes: Vec<Vec<String>> = vec![Vec::new(); LANES];
    for (number, name) in names.iter().enumerate() {
        let lane = if name.contains("hostNetwork") { 0 } else { number % LANES };
        // Names have a blank too many where they are put together. ginkgo matches them with the names
        // of the suite and of its outermost container in front.
        let name = regex::escape(name).replace(' ', " +");
        lanes[lane].push(format!(r"^Kubernetes e2e suite +(\[Top Level\] +)?{name}$"));
    }
    lanes.retain(|lane| !lane.is_empty());
    lanes.into_iter().map(|lane| lane.join("|")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(names: &[&str]) -> Vec<Regex> {
        let all = expressions(&Regex::new(".").unwrap(), names.iter().copied());
        all.iter().map(|lane| Regex::new(lane).unwrap()).collect()
    }

    #[test]
    fn every_spec_runs_once() {
        let names =
            ["a: udp", "a: udp [Slow]", "b (c) 1.2", "d", "e hostNetwork", "f", "hostNetwork"];
        let lanes = shared(&names);
        assert_eq!(lanes.len(), LANES);
        for name in names {
            let as_ginkgo_knows_it =
                format!("Kubernetes e2e suite [Top Level] {}", name.replace(' ', "  "));
            let runs = lanes.iter().filter(|lane| lane.is_match(&as_ginkgo_knows_it));
            assert_eq!(runs.count(), 1, "{name}");
        }
        assert!(lanes[0].is_match("Kubernetes e2e suite e hostNetwork"));
        assert!(lanes[0].is_match("Kubernetes e2e suite hostNetwork"));
        assert_eq!(shared(&["a"]).len(), 1);
    }

    #[test]
    fn what_disturbs_others_shares_with_nobody() {
        assert_eq!(shared(&["a", "b [Serial]"])[0].as_str(), ".");
    }
}
