//! The page of `topo-lb view` in a real browser: how soon it is there, and how long its frames take.

use anyhow::{Context as _, Result, ensure};
use topo_lb_tests::browser::Browser;
use topo_lb_tests::cluster::Cluster;
use topo_lb_tests::counting;
use topo_lb_tests::served::View;
use topo_lb_tests::view_page;

use crate::ground::{Effort, Ground};
use crate::result::{Figure, readable};
use crate::sample::Sample;

/// Keeps pictures as the server sends them after the first, which has the groups, too. Gives them to the
/// page ten times a second during so many ms. Returns the longest time from frame to frame in ms, and how
/// many pictures a second were drawn.
const FRAMES: &str = r"async (time) => {
    const page = await import('/page.js');
    const pictures = await new Promise((resolve) => {
        const [stream, all] = [new EventSource('/pictures'), []];
        stream.onmessage = (message) => {
            if (all.push(message.data) === 5) { stream.close(); resolve(all.slice(1)); }
        };
    });
    let next = 0;
    const often = setInterval(() => {
        const picture = JSON.parse(pictures[next++ % pictures.length]);
        // The time line only goes on.
        picture.now.history = [];
        page.receive(picture);
    }, 100);
    const begin = performance.now();
    let [last, newest, seen, longest] = [begin, page.shown().now, 0, 0];
    while (last - begin < time) {
        const now = await new Promise(requestAnimationFrame);
        longest = Math.max(longest, now - last);
        last = now;
        if (page.shown().now !== newest) { newest = page.shown().now; seen += 1; }
    }
    clearInterval(often);
    return [longest, 1000 * seen / (last - begin)];
}";

pub(crate) fn measure(
    ground: &Ground<'_>,
    effort: Effort,
    say: &dyn Fn(&str),
) -> Result<Vec<Figure>> {
    let (nodes, services) = effort.of((100, 1_000), (1_000, 10_000));
    say(&format!("the page of view, {nodes} nodes and {services} Services"));
    let cluster = ground.cluster;
    cluster.fabric().run(|| on_fabric(cluster, effort, nodes, services))
}

/// Server, agents and browser are beside the nodes: whatever ends the bench ends them, too.
fn on_fabric(cluster: &Cluster, effort: Effort, nodes: u32, services: u32) -> Result<Vec<Figure>> {
    let api = counting::large(nodes, services)?;
    let url = api.url();
    let mut browser = Browser::start(1300, 800)?;
    let view = View::start_with(&["--api-server", &url], |command| cluster.beyond(command))?;
    browser.open(&view.url)?;
    view_page::complete(&mut browser, &readable(nodes.into()), &readable(services.into()))?;

    let mut firsts = Sample::default();
    for _ in 0..effort.of(2, 20) {
        firsts.add(view_page::first_paint(&mut browser, &view.url)?);
    }

    let (mut longest, mut updates) = (Sample::default(), Sample::default());
    for _ in 0..effort.of(2, 6) {
        let measured = browser.run(&format!("({FRAMES})({})", effort.of(1_000, 10_000)))?;
        let [frame, often] = [0, 1].map(|place| measured[place].as_f64());
        longest.add(frame.context("a time")?);
        updates.add(often.context("a rate")?);
    }
    ensure!(browser.complaints().is_empty(), "{:?}", browser.complaints());
    let with = |figure: Figure| figure.with("nodes", nodes).with("services", services);
    Ok(vec![
        with(Figure::new("view_first_paint_ms", "ms", &firsts)).p99_at_most(1e3),
        with(Figure::new("view_longest_frame_ms", "ms", &longest)).p99_at_most(100.0),
        with(Figure::new("view_updates_per_second", "1/s", &updates)),
    ])
}
