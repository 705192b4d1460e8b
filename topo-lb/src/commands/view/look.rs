//! Asks the nodes again and again, and keeps what the page shows of their answers.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::{oneshot, watch};
use tokio::time::{MissedTickBehavior, interval};

use super::cluster::Cluster;
use super::gaps::Gaps;
use super::histories::Histories;
use super::newest::Newest;
use super::regions::Regions;
use crate::{
    commands::top::From, commands::top::Moment, commands::top::Source, commands::top::rates,
    commands::top::zone_rates,
};
use topo_lb_core::cluster::State;

/// The looks, for readers.
#[derive(Clone, Debug)]
pub(super) struct Looks {
    pub(super) newest: watch::Receiver<Arc<Newest>>,
    pub(super) interval: Duration,
    pub(super) histories: Arc<Mutex<Histories>>,
}

/// Looks without end. Tells `ready` first whether the source can be used.
pub(super) async fn follow(
    from: Option<From>,
    pause: Duration,
    cluster: watch::Receiver<Arc<Cluster>>,
    ready: oneshot::Sender<anyhow::Result<Looks>>,
) {
    let (sender, receiver) = watch::channel(Arc::default());
    let histories = Arc::default();
    let looks = Looks { newest: receiver, interval: pause, histories: Arc::clone(&histories) };
    let mut source = match from {
        None => None,
        Some(from) => match Source::open(&from).await {
            Ok(source) => Some(source),
            Err(error) => return drop(ready.send(Err(error))),
        },
    };
    // Nobody reads after an error elsewhere.
    let _ = ready.send(Ok(looks));
    let Some(source) = &mut source else { return sender.closed().await };
    let mut ticks = interval(pause);
    // A look that takes long is followed by a pause, not by a crowd of looks.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut last, mut gaps) = (None, Gaps::default());
    for look in 1.. {
        ticks.tick().await;
        let newest = match source.moment().await {
            Ok(moment) => {
                let cluster = Arc::clone(&cluster.borrow());
                let newest = newest(last.as_ref(), &moment, &cluster.state);
                if let Some(last) = &last {
                    let nodes = cluster.state.nodes().len();
                    let is_there = |node: &str| nodes == 0 || cluster.state.node(node).is_some();
                    let is_complete = gaps.look(&newest, moment.at, is_there);
                    remember(&histories, last, &moment, &newest, is_complete);
                }
                last = Some(moment);
                newest
            }
            Err(error) => {
                let failure = format!("There are no counts: {error:#}.");
                Newest { sentence: Some(failure), ..Newest::default() }
            }
        };
        sender.send_replace(Arc::new(Newest { look, at: seconds_since_1970(), ..newest }));
    }
}

fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn remember(
    histories: &Mutex<Histories>,
    last: &Moment,
    now: &Moment,
    newest: &Newest,
    is_complete: bool,
) {
    let seconds = now.at.saturating_duration_since(last.at).as_secs_f64().max(1e-3);
    let mut histories = histories.lock().unwrap_or_else(PoisonError::into_inner);
    histories.add(seconds_since_1970(), seconds, is_complete.then_some(&*newest.rows));
}

fn newest(last: Option<&Moment>, now: &Moment, state: &State) -> Newest {
    let agents = now.nodes.keys().cloned().collect();
    let (troubles, sentence) = (now.doubts.clone(), now.caveat());
    let (observing, counting_all, scope) = (now.observing, now.counting_all(), now.scope);
    let newest = Newest { agents, troubles, sentence, observing, ..Newest::default() };
    let mut newest = Newest { counting_all, scope, ..newest };
    for (node, answer) in &now.nodes {
        match answer {
            Err(trouble) => drop(newest.troubles.insert(Arc::clone(node), trouble.clone())),
            Ok(_) if last.is_some_and(|last| matches!(last.nodes.get(node), Some(Ok(_)))) => {
                newest.answered.insert(Arc::clone(node));
            }
            Ok(_) => {}
        }
    }
    if let Some(last) = last {
        let (mut rows, impossible) = rates(last, now);
        newest.troubles.extend(impossible);
        let (zones, impossible) = zone_rates(last, now);
        newest.troubles.extend(impossible);
        Regions::of(state).correct(&mut rows, &zones, state);
        (newest.rows, newest.zones) = (rows, zones);
    }
    newest
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use topo_lb_common::backend::Locality;

    use super::*;
    use crate::{commands::top::Counter, commands::top::Series, commands::top::Traffic};

    fn moment(at: Instant, nodes: &[(&str, Result<f64, &str>)]) -> Moment {
        let traffic = |bytes: f64| {
            let near = Series::new(Counter::Sent(Locality::Node), "");
            let far = Series::new(Counter::Received(Locality::Elsewhere), "");
            Traffic::from([("a/b".into(), [(near, bytes), (far, 1.0)].into())])
        };
        let nodes = nodes
            .iter()
            .map(|(name, answer)| ((*name).into(), answer.map(traffic).map_err(str::to_owned)));
        Moment { nodes: nodes.collect(), ..Moment::at(at) }
    }

    #[test]
    fn what_no_node_can_have_done_is_left_out_and_said() {
        let begin = Instant::now();
        let before = moment(begin, &[("good", Ok(0.0)), ("bad", Ok(0.0)), ("below", Ok(0.0))]);
        let after =
            [("good", Ok(100.0)), ("bad", Ok(1e300)), ("below", Ok(-5.0)), ("new", Ok(9.0))];
        let after = moment(begin + Duration::from_secs(1), &after);
        let newest = newest(Some(&before), &after, &State::default());
        assert_eq!(newest.rows[0].rate.bytes, [100.0, 0.0, 0.0, 0.0]);
        let liars: Vec<_> = newest.troubles.keys().map(|it| &**it).collect();
        assert_eq!(liars, ["bad", "below"]);
        assert_eq!(newest.answered.len(), 3, "new has answered once");
    }

    #[test]
    fn a_node_that_is_away_has_its_sentence() {
        let begin = Instant::now();
        let moment = moment(begin, &[("away", Err("no answer")), ("here", Ok(1.0))]);
        let newest = newest(None, &moment, &State::default());
        assert_eq!(newest.troubles[&*Arc::<str>::from("away")], "no answer");
        assert!(newest.rows.is_empty() && newest.answered.is_empty());
        assert_eq!(newest.agents.len(), 2);
    }
}
