//! `topo-lb view` in a real browser, with agents that count what real decisions would make them count.

mod bill;
mod real;
mod shop;
mod sight;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use topo_lb_fake_api::{CLUSTER_POLICIES, FakeApi, NODES, SERVICES, SLICES};
use topo_lb_tests::browser::Browser;
use topo_lb_tests::counting::{self, Demand, PODS};
use topo_lb_tests::pictures;
use topo_lb_tests::population::Population;
use topo_lb_tests::served::View;
use topo_lb_tests::terminal::Terminal;
use topo_lb_tests::view_page::{self, COUNTED};
use topo_lb_tests::wait::{PATIENCE, until, until_is};

/// Keeps a picture of the page for the documentation.
fn keep(name: &str, picture: &[u8]) -> Result<()> {
    ensure!(picture.starts_with(b"\x89PNG"), "{name} is no PNG");
    ensure!((20_000..200_000).contains(&picture.len()), "{name} has {} bytes", picture.len());
    pictures::keep(name, picture)
}

/// The page of the shop, with rates.
fn shop() -> Result<(FakeApi, View, Browser)> {
    let api = shop::start()?;
    let view = View::start(&["--api-server", &api.url(), "--interval", "0.5"])?;
    let mut browser = Browser::start(1300, 800)?;
    browser.prefer("light")?;
    browser.open(&view.url)?;
    browser.until(COUNTED)?;
    Ok((api, view, browser))
}

fn text(browser: &mut Browser, selector: &str) -> Result<String> {
    let all = format!("[...document.querySelectorAll({})]", json!(selector));
    let value = browser.run(&format!("{all}.map((one) => one.textContent).join('|')"))?;
    Ok(value.as_str().unwrap_or_default().to_owned())
}

fn pick(browser: &mut Browser, service: &str) -> Result<()> {
    let selector = json!(format!("#services [data-name=\"{service}\"]"));
    browser.until(&format!("document.querySelector({selector}) !== null"))?;
    browser.run(&format!("document.querySelector({selector}).click()"))?;
    browser.until("document.querySelectorAll('.waterfall li').length > 0")?;
    Ok(())
}

fn no_complaints(browser: &Browser) -> Result<()> {
    ensure!(browser.complaints().is_empty(), "{:?}", browser.complaints());
    Ok(())
}

#[test]
fn the_page_shows_zones_nodes_and_what_flows_between_them() -> Result<()> {
    let (_api, _view, mut browser) = shop()?;
    let groups = text(&mut browser, ".group .title")?;
    ensure!(groups == "edge-9|eu-1a|eu-1b|eu-1c", "{groups}");
    ensure!(text(&mut browser, ".node-name")?.starts_with("e1|e2|e3|a1|a2"));
    ensure!(
        text(&mut browser, "#status")?
            .starts_with("17 of 17 nodes have an agent that counts · 12 Services")
    );
    browser.until("document.querySelectorAll('.lines path').length >= 9")?;
    // The clients of eu-1c have two zones to choose from for checkout: that is an estimate.
    pick(&mut browser, "shop/checkout")?;
    browser.run("document.getElementById('flows').open = true")?;
    let row = "[...document.querySelectorAll('#flow-rows tr')].map((it) => \
               [0, 1, 5, 6].map((cell) => it.children[cell].textContent).join(' ')).sort().join('|')";
    let wanted =
        "eu-1a eu-1a 0 % 0 %|eu-1b eu-1b 0 % 0 %|eu-1c eu-1a 100 % 100 %|eu-1c eu-1b 100 % 100 %";
    browser.until(&format!("({row}) === {}", json!(wanted))).with_context(|| wanted.to_owned())?;
    // As many bytes go back. Connections do not.
    let both = "eu-1a eu-1c|eu-1b eu-1c|eu-1c eu-1a|eu-1c eu-1b";
    browser.until(&format!("{DIRECTIONS} === '{both}'"))?;
    browser.press("m")?;
    browser.until(&format!("{DIRECTIONS} === 'eu-1c eu-1a|eu-1c eu-1b'"))?;
    no_complaints(&browser)
}

#[test]
fn while_a_zone_is_evacuated_the_flows_of_before_are_beside_those_of_now() -> Result<()> {
    let (api, _view, mut browser) = shop()?;
    let count = "document.querySelectorAll('.lines path.before').length";
    ensure!(
        browser.run(count)? == 0
            && browser.run("document.getElementById('before').hidden")? == true
    );
    let policy = json!({"apiVersion": "topo-lb.io/v1alpha1", "kind": "ClusterTopologyPolicy",
                        "metadata": {"name": "evacuate"},
                        "spec": {"evacuate": "topology.kubernetes.io/zone=eu-1b"}});
    api.change(CLUSTER_POLICIES, "ADDED", policy.clone());
    browser.until("document.querySelector('.group.evacuated .title')?.textContent === 'eu-1b'")?;
    browser.until(&format!("{count} > 0 && !document.getElementById('before').hidden"))?;
    // Of the clients of eu-1c, who have two zones to choose from without the evacuation.
    pick(&mut browser, "shop/checkout")?;
    let before = DIRECTIONS.replace(".lines path", ".lines path.before");
    let both = "eu-1a eu-1c|eu-1b eu-1c|eu-1c eu-1a|eu-1c eu-1b";
    browser.until(&format!("{before} === '{both}'"))?;
    browser.run("document.getElementById('shows-before').click()")?;
    browser.until(&format!("{count} === 0"))?;
    browser.run("document.getElementById('shows-before').click()")?;
    browser.until(&format!("{count} > 0"))?;
    api.change(CLUSTER_POLICIES, "DELETED", policy);
    browser.until(&format!("{count} === 0 && document.getElementById('before').hidden"))?;
    no_complaints(&browser)
}

/// From which group to which one each arrow leads: its path begins at the tip, and turns at the other end.
const DIRECTIONS: &str = r"(() => {
    const cards = [...document.querySelectorAll('.group')].map((card) => [
        card.querySelector('.title').textContent, card.getBoundingClientRect()]);
    const origin = document.getElementById('drawing').getBoundingClientRect();
    const away = (box, [x, y]) => Math.hypot(Math.max(box.left - x, 0, x - box.right), Math.max(box.top - y, 0, y - box.bottom));
    return [...document.querySelectorAll('.lines path')].map((line) => {
        const all = line.getAttribute('d').match(/-?[0-9.]+/g).map(Number);
        const point = (place) => [all[2 * place] + origin.left, all[2 * place + 1] + origin.top];
        const near = (at) => cards.toSorted((a, b) => away(a[1], at) - away(b[1], at))[0][0];
        return `${near(point(Math.floor(all.length / 4)))} ${near(point(0))}`;
    }).sort().join('|');
})()";

#[test]
fn the_share_that_stays_in_its_zone_is_that_of_the_traffic() -> Result<()> {
    let (_api, _view, mut browser) = shop()?;
    for service in [None, Some("ops/logs")] {
        if let Some(service) = service {
            pick(&mut browser, service)?;
            browser.until("document.getElementById('sum-name').textContent === 'This Service'")?;
        }
        let [node, zone, region, elsewhere] = shop::distances(service)?;
        let share = 100.0 * (node + zone) / (node + zone + region + elsewhere);
        ensure!((5.0..95.0).contains(&share), "{share} % is no share to tell from others");
        // Agents answer one after the other.
        let shown = "parseFloat(document.getElementById('sum-near').textContent)";
        browser.until(&format!("Math.abs({shown} - {share}) < 4"))?;
    }
    no_complaints(&browser)
}

#[test]
fn bytes_between_zones_are_measured_and_the_page_says_what_is_not() -> Result<()> {
    let (_api, _view, mut browser) = shop()?;
    let basis = "document.getElementById('basis').textContent";
    browser.until(&format!("{basis} === 'lines: bytes as measured'"))?;
    browser.run("document.getElementById('flows').open = true")?;
    let estimated =
        "[...document.querySelectorAll('#flow-rows tr')].map((it) => it.children[6].textContent)";
    browser
        .until(&format!("{estimated}.length >= 9 && {estimated}.every((it) => it === '0 %')"))?;
    browser.press("m")?;
    browser.until(&format!("{estimated}.some((it) => it !== '0 %')"))?;
    ensure!(text(&mut browser, "#basis")?.starts_with("lines: connections by decisions"));
    no_complaints(&browser)
}

#[test]
fn a_picked_service_has_its_own_time_line() -> Result<()> {
    let (_api, _view, mut browser) = shop()?;
    let note = "document.getElementById('time-note').textContent";
    browser.until(&format!("{note}.includes('all Services since')"))?;
    // The share of each distance in the bytes of the whole line. That of one moment is as uncertain as the time at which
    // each agent was asked: on a busy machine some of them answer late.
    let shares = |distances: [f64; 4]| {
        let all: f64 = distances.iter().sum();
        distances.map(|it| it / all)
    };
    // What is known is drawn up to the right edge, from the bottom.
    let drawn = "(() => { const time = document.getElementById('time'); \
                 return time.getContext('2d').getImageData(time.width - 2, 90, 1, 1).data[3] > 0 })()";
    for (service, named) in [(None, "all Services"), (Some("ops/logs"), "ops/logs")] {
        if let Some(service) = service {
            pick(&mut browser, service)?;
        }
        let wanted = json!(shares(shop::distances(service)?));
        let is_near = format!(
            "import('/page.js').then((page) => {{ const points = page.shown().history; \
             const add = (all, {{ bytes }}) => all.map((it, at) => it + bytes[at]); \
             const moved = points.reduce(add, [0, 0, 0, 0]); \
             const all = moved.reduce((one, other) => one + other); \
             const is_near = all > 0 && moved.every((it, at) => Math.abs(it / all - {wanted}[at]) < 0.05); \
             return is_near && {drawn} && {note}.includes('{named} since') }})"
        );
        browser.until(&is_near)?;
    }
    no_complaints(&browser)
}

#[test]
fn another_label_groups_the_nodes_anew() -> Result<()> {
    let (_api, _view, mut browser) = shop()?;
    browser.run(
        "const by = document.getElementById('by'); by.value = 'example.com/rack'; \
         by.dispatchEvent(new Event('change'))",
    )?;
    browser.until("document.querySelectorAll('.group').length === 10")?;
    ensure!(text(&mut browser, ".group .title")?.contains("eu-1a-r3"));
    browser.until(COUNTED)?;
    browser.until(&format!("{OVERLAPS} === 0"))?;
    no_complaints(&browser)
}

/// Pairs of cards that overlap.
const OVERLAPS: &str = r"(() => {
    const all = [...document.querySelectorAll('.group .card')].map((it) => it.getBoundingClientRect());
    return all.flatMap((a, at) => all.slice(at + 1).filter((b) =>
        a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)).length;
})()";

#[test]
fn a_hundred_groups_lie_side_by_side_and_labels_that_group_nothing_say_so() -> Result<()> {
    let node = |number: usize| {
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("n{number}"), "labels": {
               "topology.kubernetes.io/zone": format!("z{}", number % 3),
               "rack": format!("rack-{}", number / 4), "serial": format!("s{number}")}}})
    };
    let api = counting::cluster((0..400).map(node).collect(), &[])?;
    let view = View::start(&["--api-server", &api.url(), "--interval", "1", "--by", "rack"])?;
    let mut browser = Browser::start(1300, 800)?;
    browser.open(&view.url)?;
    browser.until("document.querySelectorAll('.group').length === 100")?;
    browser.until(&format!("{OVERLAPS} === 0"))?;
    // The last one is there, and can be reached.
    browser.run("document.querySelector('.group:nth-last-of-type(2)').focus()")?;
    let last = "(() => { const map = document.getElementById('scroll').getBoundingClientRect(); \
                const cards = document.querySelectorAll('.group .card'); \
                const card = cards[cards.length - 1].getBoundingClientRect(); \
                return map.top <= card.top && card.bottom <= map.bottom })()";
    browser.until(last)?;
    for (label, sentence) in [
        ("serial", "The label serial has 400 values, more than 200: nodes are in one group."),
        ("none", "No Node carries the label none: nodes are in one group."),
    ] {
        let cluster = view.picture(&format!("?by={label}"))?["cluster"].take();
        ensure!(
            cluster["label"] == label && cluster["sentences"] == json!([sentence]),
            "{cluster}"
        );
        ensure!(cluster["groups"].as_array().map(Vec::len) == Some(1), "{cluster}");
    }
    no_complaints(&browser)
}

#[test]
fn a_picked_service_has_its_waterfall_and_its_cost_at_the_reader_s_price() -> Result<()> {
    let (_api, _view, mut browser) = shop()?;
    pick(&mut browser, "data/postgres")?;
    ensure!(text(&mut browser, "aside .facts")?.starts_with("7 nodes are refused"));
    ensure!(text(&mut browser, ".waterfall .refused .outcome")? == "refused|refused");
    browser.until("/refused[1-9]/.test(document.querySelector('aside .cost').textContent)")?;

    pick(&mut browser, "shop/checkout")?;
    browser.until("document.querySelector('aside h2').textContent === 'shop/checkout'")?;
    browser.until("document.querySelectorAll('.waterfall .crossing').length === 2")?;
    let in_force = text(&mut browser, ".waterfall .crossing .in-force")?;
    ensure!(in_force == "any3|any3", "{in_force}");

    // Its clients are in the zone of the endpoint, in others, and in another region.
    pick(&mut browser, "ops/logs")?;
    for (zone, region) in [(20, 7000), (3000, 0), (0, 0)] {
        browser.run(&format!(
            "for (const [id, price] of [['price-zone', {zone}], ['price-region', {region}]]) {{ \
             const one = document.getElementById(id); one.value = price; one.dispatchEvent(new Event('input')); }}"
        ))?;
        // A month has 30 days, and a gigabyte 10⁹ bytes.
        browser.until(&format!(
            "import('/page.js').then((page) => {{ const {{ name, bytes }} = page.shown().now.picked ?? {{}}; \
             if (name !== 'ops/logs' || !bytes[2] || !bytes[3]) return false; \
             const cost = (bytes[2] * {zone} + bytes[3] * {region}) * 720 * 3600 / 1e9; \
             return document.querySelector('aside .money dd').textContent === (cost ? '$' + \
             Math.round(cost).toLocaleString('en-US') : '$0.00') }})"
        ))?;
    }
    no_complaints(&browser)
}

#[test]
fn everything_can_be_done_by_keyboard() -> Result<()> {
    let (_api, _view, mut browser) = shop()?;
    for key in ["/", "q", "u", "e"] {
        browser.press(key)?;
    }
    browser.until("document.querySelectorAll('#services li').length === 1")?;
    ensure!(text(&mut browser, "#services .name")? == "data/queue");
    browser.press("ArrowDown")?;
    browser.press("Enter")?;
    browser.until("document.querySelector('aside h2')?.textContent === 'data/queue'")?;
    browser.press("Escape")?;
    browser.until("document.getElementById('service').hidden")?;
    browser.press("m")?;
    browser.until("/^[0-9.,]+\\/s$/.test(document.getElementById('sum-all').textContent)")?;
    browser.press("?")?;
    browser.until("document.getElementById('help').open")?;
    no_complaints(&browser)
}

#[test]
fn the_page_is_light_or_dark_as_the_system_or_the_reader_wants() -> Result<()> {
    let (_api, _view, mut browser) = shop()?;
    let back = "getComputedStyle(document.body).backgroundColor";
    let light = browser.run(back)?;
    browser.prefer("dark")?;
    let dark = browser.until(&format!("{back} !== {light} && {back}"))?;
    browser.press("t")?;
    browser.until(&format!("{back} === {light}"))?;
    browser.prefer("light")?;
    browser.press("t")?;
    browser.until(&format!("{back} === {dark}"))?;
    no_complaints(&browser)
}

#[test]
fn names_with_markup_are_text() -> Result<()> {
    const MARKUP: &str = "<img src=x onerror=window.hacked=1>";
    let node = |name: &str, zone: &str| {
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name,
               "labels": {"topology.kubernetes.io/zone": zone, MARKUP: MARKUP}}})
    };
    let nodes = [node("n1", MARKUP), node(MARKUP, "<script>window.hacked=1</script>")];
    let on = [(MARKUP, MARKUP, 1), ("n1", "z", 2)];
    let on = on.map(|(node, zone, last)| (node.into(), zone.into(), [10, 0, 0, last].into()));
    let name = format!("default/{MARKUP}");
    let service = shop::service(0, &name, "topology.kubernetes.io/zone,<b>bold</b>", &on);
    let demand = Demand {
        node: "n1".to_owned(),
        service: ("default".to_owned(), MARKUP.to_owned()),
        connections: 10.0,
        bytes: 1e6,
    };
    let api = counting::cluster(nodes.into_iter().chain(service).collect(), &[demand])?;
    let view = View::start(&["--api-server", &api.url(), "--interval", "0.3"])?;
    let mut browser = Browser::start(1300, 800)?;
    browser.open(&view.url)?;
    browser.until("document.querySelectorAll('.group').length === 2")?;
    browser.until("document.querySelectorAll('#services button').length === 1")?;
    browser.run("document.querySelector('#services button').click()")?;
    browser.until("document.querySelectorAll('.waterfall li').length > 0")?;
    browser.run(
        "document.querySelector('.group').dispatchEvent(new PointerEvent('pointermove', \
         {clientX: 500, clientY: 300}))",
    )?;
    // The agent of a node with such a name has no path, and the sentence about it names the node.
    browser.until("document.getElementById('sentences').textContent.includes('<img')")?;
    ensure!(text(&mut browser, "#services .name")? == name);
    ensure!(text(&mut browser, "aside h2")? == name);
    let made = browser
        .run("document.querySelectorAll('main img, footer img, b b, main script').length")?;
    ensure!(made == 0 && browser.run("typeof window.hacked")? == "undefined", "{made}");
    no_complaints(&browser)
}

#[test]
fn a_user_without_rights_sees_decisions_and_a_sentence_for_the_rest() -> Result<()> {
    let api = shop::start()?;
    api.state().refuse.insert(PODS, (403, "no pods for you"));
    let view = View::start(&["--api-server", &api.url(), "--interval", "0.3"])?;
    let mut browser = Browser::start(1300, 800)?;
    browser.open(&view.url)?;
    let sentence = "There are no counts: cannot list the Pods of the namespace topo-lb with the label \
                    app.kubernetes.io/name=topo-lb: not allowed (no pods for you); this takes `list` on pods and `get` on pods/proxy.";
    browser.until(&format!("{SENTENCES}.includes({})", json!(sentence)))?;
    pick(&mut browser, "data/postgres")?;
    ensure!(text(&mut browser, "aside .facts")?.starts_with("7 nodes are refused"));
    // The browser logs nothing: the server has answered.
    no_complaints(&browser)
}

/// The sentences below the page.
const SENTENCES: &str =
    "[...document.querySelectorAll('#sentences li')].map((one) => one.textContent)";

/// A server that has just started refuses, too, so agents wait for 20 s before they complain. A reader
/// does not.
#[test]
fn what_a_server_refuses_is_said_soon_and_the_rest_is_shown() -> Result<()> {
    for (path, name) in [(NODES, "nodes"), (SERVICES, "services"), (SLICES, "endpointslices")] {
        let api = shop::start()?;
        api.state().refuse.insert(path, (403, "not for you"));
        let view = View::start(&["--api-server", &api.url(), "--interval", "0.3"])?;
        let start = Instant::now();
        let mut sentences = Vec::new();
        until("a sentence about what is refused", Duration::from_secs(5), || {
            let cluster = view.picture("")?["cluster"].take();
            sentences = cluster["sentences"].as_array().cloned().unwrap_or_default();
            let said = sentences.first().and_then(Value::as_str).unwrap_or_default().to_owned();
            let is_said = said.contains(&format!("does not let topo-lb list {name}"));
            Ok(if is_said { Ok(()) } else { Err(said) })
        })?;
        println!("{name}: said after {:.1} s", start.elapsed().as_secs_f64());
        ensure!(sentences.len() == 1, "{sentences:?}");
        let nodes = view.picture("")?["cluster"]["groups"].to_string();
        ensure!(nodes.contains("e1"), "{nodes}");
        // Allowed, it is over.
        api.state().refuse.clear();
        until("the end of the sentence", Duration::from_secs(20), || {
            let sentences = view.picture("")?["cluster"]["sentences"].take();
            Ok(if sentences == json!([]) { Ok(()) } else { Err(sentences) })
        })?;
    }
    Ok(())
}

#[test]
fn an_agent_that_cannot_be_reached_is_told_in_plain_words() -> Result<()> {
    const AGENT: &str = "/api/v1/namespaces/topo-lb/pods/agent-a1:19876/proxy/metrics";
    let message =
        "error trying to reach service: dial tcp 10.0.0.1:19876: connect: connection refused";
    let api = shop::start()?;
    api.state().refuse.insert(AGENT, (503, message));
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let direct = format!("a2=http://{nobody}");
    for (arguments, sentence) in [
        (vec!["--interval", "0.3"], "node a1: no answer (connection refused)"),
        (vec!["--agent", &*direct], "node a2: no answer (connection refused)"),
    ] {
        let url = api.url();
        let view = View::start(&[&["--api-server", &*url][..], &arguments].concat())?;
        let mut browser = Browser::start(1300, 800)?;
        browser.open(&view.url)?;
        browser.until(&format!("{SENTENCES}.includes({})", json!(sentence)))?;
        no_complaints(&browser)?;
    }
    Ok(())
}

/// The newest counts are those by zone; before there were bytes and tiers.
#[test]
fn an_agent_of_an_older_version_shows_what_it_counts() -> Result<()> {
    let api = shop::start()?;
    let old = FakeApi::start(std::net::TcpListener::bind("127.0.0.1:0")?, &[])?;
    let begin = Instant::now();
    old.answer_texts(move |_| {
        let labels = "namespace=\"shop\",service=\"cart\",port=\"http\",locality=\"elsewhere\"";
        let count = 10.0 * begin.elapsed().as_secs_f64();
        Some(format!("topo_lb_ready 1\ntopo_lb_connections_total{{{labels}}} {count}\n"))
    });
    let new = format!("a1={}/api/v1/namespaces/topo-lb/pods/agent-a1:19876/proxy", api.url());
    let old = format!("b1={}", old.url());
    let url = api.url();
    let flags = ["--api-server", &*url, "--interval", "0.3", "--agent", &*new, "--agent", &*old];
    let view = View::start(&flags)?;
    let mut now = Value::Null;
    until("rates of both agents", Duration::from_secs(20), || {
        now = view.picture("?service=shop/cart")?["now"].take();
        let is_complete = now["answered"] == 2 && now["picked"]["nodes"]["b1"].is_object();
        Ok(if is_complete { Ok(()) } else { Err(now.clone()) })
    })?;
    ensure!(now["troubles"] == json!([]), "{now}");
    let of = |node: &str, what: &str| {
        let distances = now["picked"]["nodes"][node][what].as_array().into_iter().flatten();
        distances.filter_map(Value::as_f64).sum::<f64>()
    };
    ensure!(of("b1", "connections") > 0.0 && of("b1", "bytes") == 0.0, "{now}");
    ensure!(of("a1", "connections") > 0.0 && of("a1", "bytes") > 0.0, "{now}");
    let all = view.picture("")?["now"].take();
    ensure!(all["flows"]["measured"] == 1, "only a1 measures by zone: {all}");
    Ok(())
}

#[test]
fn a_page_that_was_away_gets_the_newest_state() -> Result<()> {
    let (_api, _view, mut browser) = shop()?;
    let hide = |is_hidden| {
        format!(
            "Object.defineProperty(document, 'hidden', {{value: {is_hidden}, configurable: true}}); \
             document.dispatchEvent(new Event('visibilitychange'))"
        )
    };
    browser.run(&hide(true))?;
    let shown = "import('/page.js').then((page) => page.shown().now.look)";
    let before = browser.run(shown)?.as_u64().context("a look")?;
    let asked = "fetch('/picture').then((it) => it.json()).then((it) => it.now.look)";
    browser.until(&format!("{asked}.then((look) => look > {})", before + 4))?;
    let meanwhile = browser.run(shown)?.as_u64().context("a look")?;
    ensure!(meanwhile <= before + 1, "a hidden page still asks: {before}, {meanwhile}");
    browser.run(&hide(false))?;
    browser.until(&format!("{shown}.then((look) => look > {})", before + 4))?;
    no_complaints(&browser)
}

#[test]
fn a_thousand_nodes_and_ten_thousand_services_are_drawn() -> Result<()> {
    let api = counting::large(1_000, 10_000)?;
    let view = View::start(&["--api-server", &api.url(), "--interval", "2"])?;
    let mut browser = Browser::start(1300, 800)?;
    browser.open(&view.url)?;
    view_page::complete(&mut browser, "1,000", "10,000")?;
    keep("view-large.png", &browser.picture()?)?;
    // However slow the machine is: never an old picture after a newer one, and the newest at the end.
    let frames = browser.run(FRAMES)?;
    ensure!(frames["shown"] == "100 MB/s" && frames["isInOrder"] == true, "{frames}");
    no_complaints(&browser)
}

#[test]
fn ten_thousand_services_in_one_namespace_are_shown_and_found() -> Result<()> {
    let cluster = Population::new("node-00000", 3, 10_000, 1);
    let cluster = Population { namespaces: 1, ..cluster };
    let demand = Demand {
        node: "node-00000".to_owned(),
        service: ("team-0".to_owned(), "service-09999".to_owned()),
        connections: 5.0,
        bytes: 1e6,
    };
    let api = counting::cluster(cluster.objects().collect(), &[demand])?;
    let view = View::start(&["--api-server", &api.url(), "--interval", "1"])?;
    let mut browser = Browser::start(1300, 800)?;
    browser.open(&view.url)?;
    view_page::complete(&mut browser, "3", "10,000")?;
    // The last one of all has the only traffic, and a filter finds one without any.
    browser.until(
        "document.querySelector('#services .name').textContent === 'team-0/service-09999'",
    )?;
    browser.press("/")?;
    for digit in "04321".chars() {
        browser.press(&digit.to_string())?;
    }
    browser.until("document.querySelectorAll('#services li').length === 1")?;
    pick(&mut browser, "team-0/service-04321")?;
    no_complaints(&browser)
}

/// Gives the page 50 pictures, ten a second, with other rates in each, and looks at each frame.
const FRAMES: &str = r"(async () => {
    const page = await import('/page.js');
    const picture = await (await fetch('/picture')).json();
    // A hidden page asks for no pictures of its own.
    Object.defineProperty(document, 'hidden', { value: true, configurable: true });
    document.dispatchEvent(new Event('visibilitychange'));
    const sums = [];
    const shown = () => document.getElementById('sum-all').textContent;
    let isOver = false;
    const frame = () => {
        sums.push(parseFloat(shown()));
        if (!isOver) requestAnimationFrame(frame);
    };
    for (let update = 1; update <= 50; update += 1) {
        const other = structuredClone(picture);
        delete other.cluster;
        other.now.flows.total.bytes = [update * 2e6, 0, 0, 0];
        const older = structuredClone(other);
        older.now.flows.total.bytes[0] -= 1e6;
        for (const nodes of other.now.flows.nodes)
            for (const node of nodes) if (node) node.forEach((value, at) => { node[at] = value * (0.5 + Math.random()); });
        for (const line of other.now.flows.lines) line.bytes *= 0.5 + Math.random();
        page.receive(older);
        page.receive(other);
        if (update === 1) requestAnimationFrame(frame);
        await new Promise((done) => setTimeout(done, 100));
    }
    await new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)));
    isOver = true;
    const isInOrder = sums.every((sum, place) => place === 0 || sums[place - 1] <= sum);
    return { shown: shown(), isInOrder };
})()";

/// Real connections, real agents. Where every byte went is measured, and the page takes it from there.
#[test]
fn pictures_for_the_documentation() -> Result<()> {
    real::open_shop(|open| {
        let browser = &mut open.browser;
        browser.until(COUNTED)?;
        browser
            .until("document.getElementById('basis').textContent === 'lines: bytes as measured'")?;
        browser
            .until("document.getElementById('status').textContent.startsWith('17 of 17 nodes')")?;
        // Enough of the time line to see it.
        if pictures::folder().is_some() {
            browser.until("import('/page.js').then((page) => page.shown().history.length > 11)")?;
        }
        keep("view-light.png", &browser.picture()?)?;
        lines_and_services_agree(&open.view)?;
        pick(browser, "shop/checkout")?;
        browser.prefer("dark")?;
        browser.until("document.querySelectorAll('.lines path').length > 1")?;
        browser.until(COUNTED)?;
        browser
            .until("document.getElementById('time-note').textContent.includes('shop/checkout')")?;
        browser.run(sight::DRAWN)?;
        keep("view-dark.png", &browser.picture()?)?;
        no_complaints(browser)?;
        of_top(open.top()?)
    })
}

/// The screen of `top`, with the tiers and the nodes of a Service open.
fn of_top(mut top: Terminal) -> Result<()> {
    let has_rates = |text: &str| text.contains("17 nodes") && text.contains("round trips ");
    top.until("rates of all nodes", has_rates)?;
    top.press("\x1b[B")?;
    top.press("\r")?;
    let is_open = |text: &str| text.contains("FROM NODE") && text.contains("TCP BY TIER");
    top.until("tiers and nodes of a Service", |text| is_open(text) && has_rates(text))?;
    pictures::keep("top.svg", top.picture())?;
    top.press("q")?;
    top.ended()
}

/// Agents count bytes by Service and distance, and by zone. Both lead to the same sums.
fn lines_and_services_agree(view: &View) -> Result<()> {
    let bytes = |line: &Value| line["bytes"].as_f64().unwrap_or_default();
    let lines = |flows: &Value| flows["lines"].as_array().cloned().unwrap_or_default();
    let flows = until_is(
        "the same bytes on six lines between zones as of Services",
        PATIENCE,
        || Ok(view.picture("")?["now"]["flows"].take()),
        |flows| {
            let (lines, total) = (lines(flows), flows["total"]["bytes"].as_array());
            let total: f64 = total.into_iter().flatten().filter_map(Value::as_f64).sum();
            let all: f64 = lines.iter().map(bytes).sum();
            // No zone is without clients and servers of other zones; not all of them connect at once.
            let crossing = lines.iter().filter(|it| it["from"] != it["to"] && bytes(it) > 0.0);
            // A connection may end between the readings of two maps.
            crossing.count() >= 6 && (all / total - 1.0).abs() < 0.1
        },
    )?;
    let is_measured = |it: &Value| it["estimated"]["bytes"] == 0.0;
    let is_known = |it: &Value| !it["to"].is_null() || bytes(it) == 0.0;
    ensure!(lines(&flows).iter().all(|it| is_measured(it) && is_known(it)), "{flows}");
    Ok(())
}
