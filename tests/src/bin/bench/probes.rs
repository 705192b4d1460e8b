//! Response times of probes and scrapes while many other clients are connected and send nothing.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use anyhow::{Result, ensure};
use topo_lb_tests::crowd::{self, Plan};
use topo_lb_tests::http;
use topo_lb_tests::wait::{PATIENCE, until, until_is};

use crate::ground::{Effort, Ground, HERE};
use crate::result::Figure;
use crate::sample::Sample;

/// Path, name of its figure, and promise in milliseconds.
const ASKED: [(&str, &str, f64); 3] =
    [("/livez", "probe_ms", 100.0), ("/readyz", "probe_ms", 100.0), ("/metrics", "scrape_ms", 1e3)];

pub(crate) fn measure(
    ground: &Ground<'_>,
    effort: Effort,
    say: &dyn Fn(&str),
) -> Result<Vec<Figure>> {
    let services = effort.of(10, 1_000);
    let crowd = Plan::LARGE;
    say(&format!("answers beside {} idle connections", crowd.connections()));
    let manifests = ground.manifests(&ground.population(services, ["a", "b"])?, &[])?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 8600));
    let listen = address.to_string();
    let _agent = ground.agent(("--manifests", &manifests), &[("--listen", &listen)])?;
    let netns = ground.cluster.node_netns(HERE)?;
    let ready = || http::get(netns, address, "/readyz");
    until_is("readiness", PATIENCE, ready, |answer| answer.status == 200)?;
    let mut samples = ASKED.map(|_| Sample::default());
    // The agent closes an idle connection after at most ten seconds, and the client reconnects: a
    // full measurement lasts until each has connected three times.
    let enough = effort.of(1, 3) * crowd.connections();
    crowd::around(netns, address, crowd, |counts| {
        until("the crowd", PATIENCE * 6, || {
            for ((path, ..), sample) in ASKED.iter().zip(&mut samples) {
                // An address of its own, and one shared with clients of the crowd.
                for from in [Ipv4Addr::LOCALHOST, Plan::address(1)] {
                    let begun = Instant::now();
                    let answer = http::get_from(netns, Some(from.into()), address, path)?;
                    sample.add(begun.elapsed().as_secs_f64() * 1e3);
                    ensure!(answer.status == 200, "{path}: {answer}");
                }
            }
            let opened = counts.opened();
            Ok(if opened >= enough { Ok(()) } else { Err(opened) })
        })?;
        let there = counts.open();
        ensure!(there >= crowd.connections() / 2, "only {there} of the crowd are there");
        Ok(())
    })?;
    let figure = |((path, name, promise), sample): (_, &Sample)| {
        Figure::new(name, "ms", sample)
            .with("path", path)
            .with("services", services)
            .with("connections", crowd.connections())
            .p99_at_most(promise)
    };
    Ok(ASKED.into_iter().zip(&samples).map(figure).collect())
}
