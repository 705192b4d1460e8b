//! One client outside of the nodes that dials one node port all the time: no connection that is over
//! may hold up the next one.

use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::exchange::{Act, Dialler, Targets};
use crate::ground::Effort;
use crate::result::Figure;
use crate::sample::Sample;

/// Connections of one order to the client.
const ORDER: u32 = 5_000;
/// Connections a second, in thousands, that topo-lb promises.
const RATE: f64 = 11.0;
/// The longest time for a connection that topo-lb promises, in milliseconds. A client sends a SYN that was
/// dropped again after a second.
const PAUSE: f64 = 500.0;

/// Takes turns between these ways to a server. `proxy` is whose promises these are.
pub(crate) fn measure(
    ways: &[(&str, Targets)],
    proxy: &str,
    client: &mut Dialler,
    effort: Effort,
) -> Result<Vec<Figure>> {
    // Long enough to fill a client's quota several times.
    let turn = Duration::from_secs(effort.of(5, 20));
    let mut samples = vec![(Sample::default(), Sample::default()); ways.len()];
    for _ in 0..effort.of(1, 3) {
        for ((name, targets), (rates, pauses)) in ways.iter().zip(&mut samples) {
            let (mut opened, mut spent, mut longest) = (0, Duration::ZERO, Duration::ZERO);
            while spent < turn {
                let times = client.times(Act::Open, *targets, ORDER);
                for time in times.with_context(|| format!("in series, {name}"))? {
                    let time = Duration::from_nanos(time);
                    opened += 1;
                    spent += time;
                    longest = longest.max(time);
                }
            }
            rates.add(f64::from(opened) / spent.as_secs_f64() / 1e3);
            pauses.add(longest.as_secs_f64() * 1e3);
        }
    }
    let figures = ways.iter().zip(&samples).flat_map(|((name, _), (rates, pauses))| {
        let rate = Figure::new("external_serial_kcps", "kcps", rates);
        let pause = Figure::new("external_serial_pause_ms", "ms", pauses);
        let figures = if *name == proxy {
            [rate.at_least(RATE), pause.p99_at_most(PAUSE)]
        } else {
            [rate, pause]
        };
        figures.map(|figure| figure.with("proxy", *name))
    });
    Ok(figures.collect())
}
