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

/// Gives the longest time from frame to frame in ms, and the updates a second that the page's own stream
/// brings, during so many ms.
const FRAMES: &str = r"async (time) => {
    const page = await import('/page.js');
    const begin = performance.now();
    let [last, newest, seen, longest] = [begin, page.shown().now, 0, 0];
    while (last - begin < time) {
        const now = await new Promise(requestAnimationFrame);
        longest = Math.max(longest, now - last);
        last = now;
        if (page.shown().now !== newest) { newest = page.shown().now; seen += 1; }
    }
    return [longest, 1000 * seen / (last - begin)];
}";

/// As often as `topo-lb view` looks at most.
const OFTEN: &str = "0.1";

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
    let open = |browser: &mut Browser, interval: &str| {
        let arguments = ["--api-server", &url, "--interval", interval];
        let view = View::start_with(&arguments, |command| cluster.beyond(command))?;
        browser.open(&view.url)?;
        view_page::complete(browser, &readable(nodes.into()), &readable(services.into()))?;
        anyhow::Ok(view)
    };

    let mut firsts = Sample::default();
    let view = open(&mut browser, "2")?;
    for _ in 0..effort.of(2, 20) {
        firsts.add(view_page::first_paint(&mut browser, &view.url)?);
    }
    // A page that loses its server complains.
    browser.open("about:blank")?;
    drop(view);

    let (mut longest, mut updates) = (Sample::default(), Sample::default());
    let _view = open(&mut browser, OFTEN)?;
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
