//! The page as it is seen: nothing covers anything, and every text can be read.

use anyhow::{Result, ensure};
use serde_json::json;
use topo_lb_tests::browser::Browser;
use topo_lb_tests::served::View;
use topo_lb_tests::view_page::COUNTED;

use super::{no_complaints, pick, shop};

/// Is there when the page has drawn what it knows.
pub(crate) const DRAWN: &str =
    "new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))";

/// Texts and fields that cover one another, as far as they can be seen, and cards without room between them.
const COVERED: &str = r"(() => {
    const all = [];
    const seen = (owner, rect) => {
        let [left, top, right, bottom] = [rect.left, rect.top, rect.right, rect.bottom];
        for (let box = owner; box && box !== document.body; box = box.parentElement) {
            if (getComputedStyle(box).overflow === 'visible' || box instanceof SVGElement) continue;
            const around = box.getBoundingClientRect();
            [left, top] = [Math.max(left, around.left), Math.max(top, around.top)];
            [right, bottom] = [Math.min(right, around.right), Math.min(bottom, around.bottom)];
        }
        return { left: left + 1, top: top + 2, right: right - 1, bottom: bottom - 2 };
    };
    const add = (owner, name, rect) => {
        const box = seen(owner, rect);
        if (box.right > box.left && box.bottom > box.top) all.push({ name, owner, box });
    };
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const { data, parentElement: owner } = texts.currentNode;
        if (!data.trim() || !owner.checkVisibility() || owner.closest('select, dialog, legend, #tip')) continue;
        if (owner instanceof SVGElement) { add(owner, data, owner.getBoundingClientRect()); continue; }
        const range = document.createRange();
        range.selectNodeContents(texts.currentNode);
        for (const rect of range.getClientRects()) add(owner, data, rect);
    }
    for (const field of document.querySelectorAll('input, select')) {
        if (field.checkVisibility()) add(field, field.id, field.getBoundingClientRect());
    }
    const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
    const found = all.flatMap((a, at) => all.slice(at + 1).filter((b) => meet(a.box, b.box))
        .map((b) => `${a.name} / ${b.name}`));
    const cards = [...document.querySelectorAll('.group .card')].map((it) => it.getBoundingClientRect());
    for (const [at, a] of cards.entries()) for (const b of cards.slice(at + 1)) {
        const wide = { left: b.left - 8, right: b.right + 8, top: b.top - 8, bottom: b.bottom + 8 };
        if (meet(a, wide)) found.push('cards');
    }
    const map = document.getElementById('map').getBoundingClientRect();
    if (cards.some((card) => card.left < map.left || card.right > map.right)) found.push('a card beside the map');
    const labels = [...document.querySelectorAll('.labels text')].map((it) => it.getBoundingClientRect());
    for (const label of labels) if (cards.some((card) => meet(label, card))) found.push('a label on a card');
    if (document.documentElement.scrollWidth > innerWidth) found.push(`${document.documentElement.scrollWidth} pixels wide`);
    return found.join('\n');
})()";

/// Texts with a contrast below 4.5 to what is behind them.
const PALE: &str = r"(() => {
    const numbers = (colour) => colour.match(/[0-9.]+/g).map(Number);
    const luminance = (colour) => {
        const [r, g, b] = numbers(colour).map((it) => it / 255).map((it) => it <= 0.04045 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (owner) => {
        if (owner instanceof SVGElement) return getComputedStyle(document.querySelector('.group .card')).fill;
        for (let box = owner; box; box = box.parentElement) {
            const colour = getComputedStyle(box).backgroundColor;
            if (numbers(colour).length === 3) return colour;
        }
        return 'rgb(255, 255, 255)';
    };
    const found = [];
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    let count = 0;
    while (texts.nextNode()) {
        const { data, parentElement: owner } = texts.currentNode;
        if (!data.trim() || !owner.checkVisibility()) continue;
        const style = getComputedStyle(owner);
        const [one, other] = [owner instanceof SVGElement ? style.fill : style.color, behind(owner)].map(luminance).sort((a, b) => b - a);
        count += 1;
        if ((one + 0.05) / (other + 0.05) < 4.5) found.push(`${data}: ${((one + 0.05) / (other + 0.05)).toFixed(2)}`);
    }
    return count < 60 ? `only ${count} texts` : found.join('\n');
})()";

#[test]
fn nothing_covers_a_number_on_a_narrow_page_and_on_a_wide_one() -> Result<()> {
    let api = shop::start()?;
    let view = View::start(&["--api-server", &api.url(), "--interval", "0.5"])?;
    for (width, height) in [(400, 900), (760, 900), (1300, 800), (1900, 1000)] {
        let mut browser = Browser::start(width, height)?;
        browser.open(&view.url)?;
        browser.until(COUNTED)?;
        browser.run("document.getElementById('flows').open = true")?;
        for by in ["topology.kubernetes.io/zone", "example.com/rack"] {
            let label = json!(by);
            browser.run(&format!(
                "(() => {{ const by = document.getElementById('by'); by.value = {label}; \
                 by.dispatchEvent(new Event('change')) }})()"
            ))?;
            let is_shown = format!(
                "import('/page.js').then((page) => page.shown().cluster.label === {label})"
            );
            browser.until(&is_shown)?;
            browser.run(DRAWN)?;
            let covered = browser.run(COVERED)?;
            ensure!(
                covered == "",
                "{width} pixels, {by}:\n{}",
                covered.as_str().unwrap_or_default()
            );
        }
        pick(&mut browser, "data/postgres")?;
        browser.run(DRAWN)?;
        let covered = browser.run(COVERED)?;
        ensure!(
            covered == "",
            "{width} pixels, just picked:\n{}",
            covered.as_str().unwrap_or_default()
        );
        browser.until("/refused[1-9]/.test(document.querySelector('aside .cost').textContent)")?;
        let covered = browser.run(COVERED)?;
        ensure!(
            covered == "",
            "{width} pixels, a Service:\n{}",
            covered.as_str().unwrap_or_default()
        );
        if width == 400 {
            topo_lb_tests::pictures::keep("view-narrow.png", &browser.picture()?)?;
        }
        no_complaints(&browser)?;
    }
    Ok(())
}

#[test]
fn every_text_can_be_read_in_light_and_in_dark() -> Result<()> {
    let (_api, _view, mut browser) = shop()?;
    browser.run("document.getElementById('flows').open = true")?;
    for service in ["data/postgres", "ops/logs"] {
        pick(&mut browser, service)?;
        for scheme in ["light", "dark"] {
            browser.prefer(scheme)?;
            browser.run("document.getElementById('help').show()")?;
            let pale = browser.run(PALE)?;
            ensure!(pale == "", "{scheme}:\n{}", pale.as_str().unwrap_or_default());
            browser.run("document.getElementById('help').close()")?;
        }
    }
    no_complaints(&browser)
}
