//! Reports refusals that the kernel counted, also of a Service that a node never served.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::debug;

use crate::state_query::StateQueryHandle;
use topo_lb_core::refusal::Refusal;
use topo_lb_kernel::datapath::maps::counters;

/// How often the counters are read while a Service port refuses.
const INTERVAL: Duration = Duration::from_secs(60);
/// An agent reports a Service port once in this time.
const SILENCE: Duration = Duration::from_secs(6 * 3600);

/// The counts of the last look, and when each port was reported.
#[derive(Debug, Default)]
struct Counts {
    last: BTreeMap<Arc<str>, u64>,
    told: BTreeMap<Arc<str>, Instant>,
}

impl Counts {
    /// New refusals by Service port since the last look, without ports reported within [`SILENCE`].
    /// The first look at a port only sets the base.
    fn look(&mut self, counted: BTreeMap<Arc<str>, u64>, now: Instant) -> BTreeMap<Arc<str>, u64> {
        self.told.retain(|_, when| now < *when + SILENCE);
        let mut grown = BTreeMap::new();
        for (name, &count) in &counted {
            let Some(&last) = self.last.get(name) else { continue };
            if count > last && !self.told.contains_key(name) {
                grown.insert(Arc::clone(name), count - last);
                self.told.insert(Arc::clone(name), now);
            }
        }
        self.last = counted;
        grown
    }
}

/// Runs until the agent stops. Sends new refusals to the agent task.
pub async fn follow(state_query: StateQueryHandle, pin_dir: PathBuf) {
    let mut counts = Counts::default();
    loop {
        tokio::time::sleep(INTERVAL).await;
        // If the owner is busy, retries after [`INTERVAL`].
        let Ok(reasons) = state_query.reasons().await else { continue };
        let refusing: BTreeMap<_, _> = reasons
            .into_iter()
            .filter(|(_, why)| matches!(why, Refusal::Policy | Refusal::Local))
            .collect();
        if refusing.is_empty() {
            counts.last.clear();
            continue;
        }
        let pins = pin_dir.clone();
        let read = tokio::task::spawn_blocking(move || {
            counters::refused(&pins, |name| refusing.contains_key(name))
        });
        match read.await {
            Ok(Ok(counted)) => {
                let grown = counts.look(counted, Instant::now());
                if !grown.is_empty() {
                    state_query.refused(grown);
                }
            }
            Ok(Err(error)) => debug!("refused connections cannot be counted: {error}"),
            Err(error) => debug!("refused connections cannot be counted: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(count: u64) -> BTreeMap<Arc<str>, u64> {
        BTreeMap::from([("shop/web:http".into(), count)])
    }

    #[test]
    fn what_was_refused_before_the_first_look_is_old() {
        let now = Instant::now();
        let mut counts = Counts::default();
        assert_eq!(counts.look(counted(5), now), BTreeMap::new());
        assert_eq!(counts.look(counted(5), now), BTreeMap::new());
        assert_eq!(counts.look(counted(8), now), counted(3));
    }

    #[test]
    fn a_service_port_is_told_of_once_in_a_long_time() {
        let start = Instant::now();
        let mut counts = Counts::default();
        let mut told = 0;
        // A refusal every minute of a day.
        for minute in 0..24 * 60 {
            let now = start + INTERVAL * minute;
            told += counts.look(counted(minute.into()), now).len();
        }
        assert_eq!(told, 4);
    }
}
