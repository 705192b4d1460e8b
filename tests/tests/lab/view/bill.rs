//! The bill: every figure of the page is what pods moved, or "–".

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use serde_json::json;
use topo_lb_tests::browser::Browser;
use topo_lb_tests::folder::Folder;
use topo_lb_tests::served::View;
use topo_lb_tests::view_page::COUNTED;
use topo_lb_tests::wait::{PATIENCE, until, until_is};

use super::{no_complaints, pick, shop, text};

/// What an agent tells that knows no regions of endpoints.
fn without_regions(text: String) -> String {
    text.replace("locality=\"region\"", "locality=\"elsewhere\"")
}

/// Sets the prices of the page.
fn price(browser: &mut Browser, zone: f64, region: f64) -> Result<()> {
    browser.run(&format!(
        "for (const [id, price] of [['price-zone', {zone}], ['price-region', {region}]]) {{ \
         const one = document.getElementById(id); one.value = price; one.dispatchEvent(new Event('input')); }}"
    ))?;
    Ok(())
}

/// The colours of what the cards show that are not in the map's part of the saved picture.
const MISSING_COLOURS: &str = r"(async () => {
  const { picture } = await import('/picture.js');
  const map = await createImageBitmap(await picture({ service: '', cluster: { label: '' }, now: { at: 0 } }));
  const context = new OffscreenCanvas(map.width, map.height).getContext('2d');
  context.drawImage(map, 0, 0);
  const room = document.getElementById('drawing');
  // Between the sums and the names of the colours.
  const { data } = context.getImageData(0, 116, map.width, 2 * room.clientHeight);
  const seen = new Set();
  for (let at = 0; at < data.length; at += 4) seen.add(`rgb(${data[at]}, ${data[at + 1]}, ${data[at + 2]})`);
  const parts = [...document.querySelectorAll('#drawing .stack rect:not(.empty)')];
  const wanted = new Set(parts.filter((it) => it.getBBox().width > 4).map((it) => getComputedStyle(it).fill));
  return wanted.size < 2 ? ['parts'] : [...wanted].filter((it) => !seen.has(it));
})()";

#[test]
fn traffic_is_priced_by_the_regions_of_nodes_whatever_agents_know() -> Result<()> {
    let api = shop::start_as(|_| true, without_regions)?;
    let view = View::start(&["--api-server", &api.url(), "--interval", "0.5"])?;
    let mut browser = Browser::start(1300, 800)?;
    browser.open(&view.url)?;
    browser.until(COUNTED)?;
    price(&mut browser, 0.02, 0.09)?;
    for service in [None, Some("ops/logs")] {
        if let Some(service) = service {
            pick(&mut browser, service)?;
            browser.until("document.getElementById('sum-name').textContent === 'This Service'")?;
        }
        let [.., region, elsewhere] = shop::distances(service)?;
        // Traffic is not the same every second, and the mean price of a gigabyte is.
        let right = (region * 0.02 + elsewhere * 0.09) / (region + elsewhere);
        ensure!(right < 0.06, "one price could be told for the other: {right}");
        let is_right = format!(
            "import('/page.js').then((page) => {{ \
             const cost = document.getElementById('sum-cost').textContent.replace(/[$,]/g, ''); \
             const [, , region, elsewhere] = page.shown().now.flows.total.bytes; \
             const mean = parseFloat(cost) / ((region + elsewhere) * 720 * 3600 / 1e9); \
             return Math.abs(mean / {right} - 1) < 0.1 }})"
        );
        browser.until(&is_right).with_context(|| format!("${right:.3} a gigabyte"))?;
    }
    // Lines, too, of a Service and of connections.
    browser.until("document.querySelectorAll('.lines path.region').length >= 2")?;
    browser.press("m")?;
    browser
        .until("document.getElementById('basis').textContent.startsWith('lines: connections')")?;
    browser.until("document.querySelectorAll('.lines path.region').length >= 2")?;
    browser.until("document.getElementById('unknown').hidden")?;
    no_complaints(&browser)
}

#[test]
fn what_nobody_counts_is_no_zero() -> Result<()> {
    // Agents that handle only Services with a policy.
    let api = shop::start_as(|keys| !keys.is_empty(), |text| text)?;
    let url = api.url();
    let view = View::start(&["--api-server", &url, "--interval", "0.5", "--scope", "opt-in"])?;
    let mut browser = Browser::start(1300, 800)?;
    browser.open(&view.url)?;
    browser.until(COUNTED)?;
    ensure!(text(&mut browser, "#sum-name")? == "Traffic of 10 of 12 Services");
    let row = "document.querySelector('#services [data-name=\"ops/logs\"]').innerText.replace(/\\s+/g, ' ')";
    browser.until(&format!("{row} === 'ops/logs no policy not counted'"))?;
    pick(&mut browser, "ops/logs")?;
    browser.until(
        "document.querySelector('aside .cost').textContent.includes('Not counted: no policy.')",
    )?;
    ensure!(text(&mut browser, "aside .money dd")? == "–");
    ensure!(text(&mut browser, "#sums dd")? == "–|–|–|–|–");
    browser.until("document.getElementById('time-note').textContent === 'not counted'")?;
    no_complaints(&browser)?;

    // The same Service is counted by others, and has no traffic.
    let view = View::start(&["--api-server", &url, "--interval", "0.5", "--scope", "all"])?;
    browser.open(&view.url)?;
    browser.until(COUNTED)?;
    ensure!(text(&mut browser, "#sum-name")? == "All traffic");
    browser.until(&format!("{row} === 'ops/logs no policy no traffic'"))?;
    pick(&mut browser, "ops/logs")?;
    let note = "document.getElementById('time-note').textContent";
    browser.until(&format!("{note} === 'no traffic since topo-lb view began'"))?;
    browser.until("document.querySelector('aside .money dd').textContent === '$0.00'")?;
    no_complaints(&browser)
}

/// What agents tell that handle only Services with a policy and count all: `ops/logs` has none, and some of the
/// bytes of `shop/cart` went to endpoints that clients dialled directly.
fn counting_all(text: String) -> String {
    let of = |service: &str, tier: &str, line: &str| match line.contains(service) {
        true => line.replace("tier=\"0\"", &format!("tier=\"{tier}\"")),
        false => line.to_owned(),
    };
    let direct = |line: &str| of("service=\"cart\"", "direct", line);
    let lines = text.trim_end_matches("# EOF\n").lines().flat_map(|line| {
        let line = of("service=\"logs\"", "left", line);
        let more = Some(direct(&line)).filter(|more| *more != line);
        [line].into_iter().chain(more)
    });
    let lines: Vec<_> = lines.collect();
    let gauge = "# TYPE topo_lb_counting_all gauge\ntopo_lb_counting_all 1";
    format!(
        "{}\n{gauge}\ntopo_lb_other_sent_bytes_total{{to=\"elsewhere\"}} 5\n# EOF\n",
        lines.join("\n")
    )
}

#[test]
fn what_is_left_or_dialled_directly_is_counted_and_said() -> Result<()> {
    let api = shop::start_as(|_| true, counting_all)?;
    let url = api.url();
    let view = View::start(&["--api-server", &url, "--interval", "0.5", "--scope", "opt-in"])?;
    let mut browser = Browser::start(1300, 800)?;
    browser.open(&view.url)?;
    browser.until(COUNTED)?;
    ensure!(text(&mut browser, "#sum-name")? == "All traffic");
    let tag = |service: &str| {
        format!("document.querySelector('#services [data-name=\"{service}\"] .tag').textContent")
    };
    browser.until(&format!("{} === 'left'", tag("ops/logs")))?;
    browser.until(&format!("{} === 'policy, part direct'", tag("shop/cart")))?;
    browser.until(&format!("{} === 'policy'", tag("data/queue")))?;
    pick(&mut browser, "ops/logs")?;
    browser.until(
        "document.querySelector('aside .cost').textContent.includes('Left to another proxy: ')",
    )?;
    browser.until("/^[$][1-9]/.test(document.querySelector('aside .money dd').textContent)")?;
    pick(&mut browser, "shop/cart")?;
    browser.until("/Policy in force[.].* [kM]B[/]s dialled directly/.test(document.querySelector('aside .cost').textContent)")?;
    no_complaints(&browser)
}

#[test]
fn without_an_answer_there_are_dashes() -> Result<()> {
    let api = shop::start()?;
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let (url, agent) = (api.url(), format!("a2=http://{nobody}"));
    let view = View::start(&["--api-server", &url, "--interval", "0.3", "--agent", &agent])?;
    let mut browser = Browser::start(1300, 800)?;
    browser.open(&view.url)?;
    browser.until("document.getElementById('status').textContent.startsWith('0 of 17 nodes')")?;
    ensure!(text(&mut browser, "#sums dd")? == "–|–|–|–|–");
    ensure!(
        text(&mut browser, ".group .sub")? == "3 nodes · –|5 nodes · –|5 nodes · –|4 nodes · –"
    );
    no_complaints(&browser)
}

#[test]
fn a_node_that_is_away_is_told_and_leaves_a_gap() -> Result<()> {
    const AGENT: &str = "/api/v1/namespaces/topo-lb/pods/agent-a1:19876/proxy/metrics";
    let (api, _view, mut browser) = shop()?;
    let status = |count: u8| {
        let text = json!(format!("{count} of 17 nodes have an agent that counts"));
        format!("document.getElementById('status').textContent.startsWith({text})")
    };
    browser.until(&status(17))?;
    browser.until("import('/page.js').then((page) => page.shown().history.length > 0)")?;
    api.state().refuse.insert(AGENT, (404, "pods \"agent-a1\" not found"));
    browser.until(&status(16))?;
    ensure!(text(&mut browser, "#sum-name")? == "All traffic, 16 of 17 nodes");
    // A whole interval at least: in one with a complete look, the rates are known.
    let gap = "import('/page.js').then((page) => \
               page.shown().history.filter((point) => point.isGap).length >= 2)";
    browser.until(gap)?;
    browser
        .until("document.getElementById('time-note').textContent.includes('nodes were away')")?;
    api.state().refuse.clear();
    browser.until(&status(17))?;
    // Two times without a break, and none with less than before or after.
    let parts = "Promise.all([import('/page.js'), import('/time.js')]).then(([page, time]) => \
                 time.runs(page.shown().history, 5).length)";
    browser.until(&format!("{parts}.then((parts) => parts === 2)"))?;
    no_complaints(&browser)
}

#[test]
fn bytes_lead_where_they_went_and_connections_to_the_endpoint() -> Result<()> {
    let (_api, _view, mut browser) = shop()?;
    let edges = |measure: &str| {
        format!(
            "import('/lines.js').then(({{ edges, kind }}) => edges([\
             {{from: 0, to: 1, connections: 4, bytes: 100, sent: 10, far: 1, elsewhere: 0, estimated: {{bytes: 0, connections: 1}}}},\
             {{from: 1, to: 0, connections: 1, bytes: 8, sent: 8, far: 1, elsewhere: 1, estimated: {{bytes: 1, connections: 0}}}},\
             {{from: 0, to: 0, connections: 9, bytes: 9, sent: 9}}, {{from: 0, to: null, connections: 9, bytes: 9, sent: 9}}\
             ], '{measure}').map((it) => `${{it.from}} ${{it.to}} ${{it.value}} ${{kind(it)}}`).join('|'))"
        )
    };
    // A client in 0 downloads from 1.
    let bytes = browser.run(&edges("bytes"))?;
    ensure!(bytes == "1 0 98 region|0 1 10 region", "{bytes}");
    let connections = browser.run(&edges("connections"))?;
    ensure!(connections == "0 1 4 region estimated|1 0 1 elsewhere", "{connections}");
    no_complaints(&browser)
}

#[test]
fn what_is_seen_can_be_saved_and_linked_to() -> Result<()> {
    let (_api, _view, mut browser) = shop()?;
    browser.run(
        "const by = document.getElementById('by'); by.value = 'example.com/rack'; \
         by.dispatchEvent(new Event('change'))",
    )?;
    browser.until("document.querySelectorAll('.group').length === 10")?;
    pick(&mut browser, "ops/logs")?;
    price(&mut browser, 0.01, 0.05)?;
    browser.press("m")?;
    browser.run(
        "const span = document.getElementById('span'); span.value = '300'; \
         span.dispatchEvent(new Event('change'))",
    )?;
    let link = browser.run("location.href")?;
    let mut other = Browser::start(1300, 800)?;
    other.open(link.as_str().context("an address")?)?;
    other.until("document.querySelector('aside h2')?.textContent === 'ops/logs'")?;
    other.until("document.querySelectorAll('.group').length === 10")?;
    let shown = "import('/page.js').then((page) => { const { by, service, measure, span, prices } = page.shown(); \
                 return [by, service, measure, span, prices.zone, prices.region].join(' ') })";
    ensure!(other.run(shown)? == "example.com/rack ops/logs connections 300 0.01 0.05");
    // Back, and the reader sees what was there before.
    other.run("location.hash = '#measure=bytes'")?;
    other.until("document.getElementById('service').hidden")?;
    other.run("history.back()")?;
    other.until("document.querySelector('aside h2')?.textContent === 'ops/logs'")?;

    let folder = Folder::make(std::env::temp_dir().join(format!("tl{}-csv", std::process::id())))?;
    let path = folder.path().display().to_string();
    other.ask("Page.setDownloadBehavior", json!({"behavior": "allow", "downloadPath": path}))?;
    for (button, head) in
        [("save-flows", "clients_in,endpoints_in,"), ("save-services", "service,treatment,")]
    {
        other.run(&format!("document.getElementById('{button}').click()"))?;
        let read = || {
            let files = fs::read_dir(folder.path())?.map(|file| Ok(file?.path()));
            let files = files.collect::<Result<Vec<_>>>()?.into_iter();
            let whole = files.filter(|it| it.extension().is_some_and(|end| end == "csv"));
            let texts = whole.map(fs::read_to_string).collect::<Result<Vec<_>, _>>()?;
            Ok(texts.into_iter().find(|text| text.starts_with(head)).unwrap_or_default())
        };
        let saved = until_is("a file", PATIENCE, read, |text| !text.is_empty())?;
        let lines: Vec<_> = saved.lines().collect();
        let columns = lines[0].split(',').count();
        ensure!(
            lines.len() > 3 && lines.iter().all(|it| it.split(',').count() == columns),
            "{saved}"
        );
    }
    other.run("document.getElementById('save-map').click()")?;
    let map = || {
        let files = fs::read_dir(folder.path())?.map(|file| Ok(file?.path()));
        let files = files.collect::<Result<Vec<_>>>()?.into_iter();
        let mut maps = files.filter(|it| it.extension().is_some_and(|end| end == "png"));
        let map = maps.next().map(fs::read).transpose()?.unwrap_or_default();
        let is_whole = map.starts_with(b"\x89PNG\r\n") && map.windows(4).any(|it| it == b"IEND");
        Ok(if is_whole { Ok(()) } else { Err(format!("{} bytes", map.len())) })
    };
    until("a picture", PATIENCE, map)?;
    let missing = other.run(MISSING_COLOURS)?;
    ensure!(missing == json!([]), "the saved picture lacks {missing}");
    let formula = other
        .run("import('/csv.js').then(({ csv }) => csv([['=1+2', 'a\"b,c', null, NaN, -5]]))")?;
    ensure!(formula == "'=1+2,\"a\"\"b,c\",,,-5\r\n", "{formula}");
    no_complaints(&browser)?;
    no_complaints(&other)
}
