//! How much of what the pods moved over TCP stayed in its zone: as the agents have counted it, and as the
//! programs in the pods have. Each node of the demo is in a zone of its own.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use topo_lb_core::magnitude;
use topo_lb_tests::agent::Agent;
use topo_lb_tests::wait::patient;

/// How long connections may take to end, also on the other side: the kernel counts them then.
const ENDS: Duration = Duration::from_secs(1);
/// What clients sent and received, in the agents' metrics.
const SERIES: [&str; 2] = ["topo_lb_tcp_sent_bytes_total{", "topo_lb_tcp_received_bytes_total{"];

/// Bytes of TCP connections to Services, in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Bytes {
    /// Between pods of one zone.
    pub(crate) kept: u64,
    /// Between zones.
    pub(crate) crossed: u64,
}

/// The same bytes by both counts. Its JSON is a part of the report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Account {
    /// What the agents' metrics say.
    pub(crate) counted: Bytes,
    /// What the programs in the pods wrote and read.
    pub(crate) moved: Bytes,
    /// The last value of each series, of each agent.
    #[serde(skip)]
    pub(crate) last: BTreeMap<(String, String), u64>,
}

impl Account {
    /// Waits until the agents have counted what the pods have moved. A Service port that gets another name
    /// begins at zero, so this comes before such a change.
    pub(crate) fn catch_up(&mut self, agents: &[Agent<'_>]) -> Result<()> {
        let begun = Instant::now();
        loop {
            let is_last = begun.elapsed() > patient(ENDS);
            for agent in agents {
                self.look(agent.node(), &agent.get("/metrics")?.body)?;
            }
            if self.is_exact() || is_last {
                return Ok(());
            }
        }
    }

    /// Whether both counts are the same.
    pub(crate) fn is_exact(&self) -> bool {
        self.counted == self.moved
    }

    /// `kept in zone: 93 %, 1.2 MB of 17 MB crossed`, as the agents have counted it.
    pub(crate) fn sentence(&self) -> String {
        let Bytes { kept, crossed } = self.counted;
        let all = (kept + crossed) as f64;
        let share = if all > 0.0 { kept as f64 / all * 100.0 } else { 100.0 };
        let crossed = magnitude::bytes(crossed as f64);
        format!("kept in zone: {share:.0} %, {crossed} of {} crossed", magnitude::bytes(all))
    }

    /// Adds what has been counted since the last look at an agent's metrics. As for Prometheus, a series
    /// that went back has begun again at zero.
    fn look(&mut self, node: &str, metrics: &str) -> Result<()> {
        for line in metrics.lines().filter(|line| SERIES.iter().any(|name| line.starts_with(name)))
        {
            let (series, value) = line.rsplit_once(' ').context("a sample has a value")?;
            let value: u64 =
                value.parse().with_context(|| format!("no number of bytes: {line}"))?;
            let is_one_of = |all: [&str; 2]| all.iter().any(|it| series.contains(&locality(it)));
            let side = match (is_one_of(["node", "zone"]), is_one_of(["region", "elsewhere"])) {
                (true, false) => &mut self.counted.kept,
                (false, true) => &mut self.counted.crossed,
                _ => bail!("no locality: {line}"),
            };
            let last = self.last.insert((node.into(), series.into()), value).unwrap_or_default();
            *side += if value < last { value } else { value - last };
        }
        Ok(())
    }
}

fn locality(name: &str) -> String {
    format!("locality=\"{name}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, locality: &str, value: u32) -> String {
        format!("topo_lb_{name}{{service=\"web\",locality=\"{locality}\",tier=\"0\"}} {value}\n")
    }

    #[test]
    fn both_directions_count_and_other_series_do_not() -> Result<()> {
        let text = [
            line("tcp_sent_bytes_total", "node", 1),
            line("tcp_received_bytes_total", "zone", 2),
            line("tcp_sent_bytes_total", "region", 4),
            line("tcp_received_bytes_total", "elsewhere", 8),
            line("connections_total", "elsewhere", 16),
        ];
        let mut account = Account::default();
        account.look("a", &text.concat())?;
        assert_eq!(account.counted, Bytes { kept: 3, crossed: 12 });
        assert!(account.look("a", &line("tcp_sent_bytes_total", "moon", 1)).is_err());
        Ok(())
    }

    #[test]
    fn each_agent_s_series_counts_by_its_growth_and_may_begin_again() -> Result<()> {
        let mut account = Account::default();
        for (node, value) in [("a", 5), ("b", 7), ("a", 9), ("a", 2)] {
            account.look(node, &line("tcp_sent_bytes_total", "node", value))?;
        }
        assert_eq!(account.counted.kept, 5 + 7 + 4 + 2);
        Ok(())
    }

    #[test]
    fn the_sentence_has_the_share_and_both_sums() {
        let counted = Bytes { kept: 15_800_000, crossed: 1_200_000 };
        let account = Account { counted, ..Account::default() };
        assert_eq!(account.sentence(), "kept in zone: 93 %, 1.2 MB of 17 MB crossed");
        assert_eq!(Account::default().sentence(), "kept in zone: 100 %, 0 B of 0 B crossed");
    }
}
