//! The advice as text.

use std::fmt::Write as _;

use super::super::Both;
use super::super::table::direct;
use super::Advice;
use crate::explain::{empty, shown, some};
use crate::magnitude;

/// Most Services that are shown. JSON has all.
const ROWS: usize = 20;
/// Most of those that are left as they are.
const LEFT: usize = 5;
/// Most names in a sentence.
const NAMED: usize = 5;

/// The advice for people; `colour` adds terminal colours.
#[must_use]
pub fn table(advice: &Advice, colour: bool) -> String {
    let factor = advice.months.unwrap_or(1.0);
    let money = |money: f64| magnitude::money(money * factor);
    let bytes = |count: f64| magnitude::bytes(count * factor);
    let time = if advice.months.is_some() { "A month" } else { "Of what is counted" };
    let mut text = String::new();
    if advice.services.is_empty() {
        let least = advice.min_saving;
        text += &match least > 0.0 {
            true => format!("No policy would save {} within the bound.\n", magnitude::money(least)),
            false => "No policy would save anything within the bound.\n".to_owned(),
        };
    } else {
        let mut table = empty(colour);
        table.set_header(["SERVICE", "OUT OF ZONE", "COSTS", "SAVES", "BUSIEST", "REFUSED"]);
        for one in advice.services.iter().take(ROWS) {
            let Both { before, after } = one.money;
            let crossed = one.bytes.crossed.unwrap_or(one.bytes.crossing.before);
            table.add_row([
                one.service(),
                format!("{} → {}", bytes(crossed), bytes(one.bytes.crossing.after)),
                format!("{} → {}", money(before), money(after)),
                money(before - after),
                format!("{} → {}", load(one.load.before), load(one.load.after)),
                if one.refused == 0 {
                    "nobody".to_owned()
                } else {
                    format!("{} nodes", one.refused)
                },
            ]);
        }
        let _ = writeln!(text, "{}", table.trim_fmt());
        text += &rest(advice.services.len(), ROWS);
        text.push('\n');
        for one in advice.services.iter().take(ROWS) {
            let _ = writeln!(text, "{}", one.command);
        }
        text.push('\n');
    }
    let Both { before, after } = advice.money;
    let _ = writeln!(
        text,
        "{time}: {} → {}, saves {}. {}.",
        money(before),
        money(after),
        money(before - after),
        advice.prices,
    );
    if !advice.left.is_empty() {
        text += "Left as they are:\n";
        for left in advice.left.iter().take(LEFT) {
            let service = format!("{}/{}", shown(&left.namespace), shown(&left.name));
            let _ = writeln!(text, "  {service} ({}): {}", money(left.money), left.why);
        }
        text += &rest(advice.left.len(), LEFT);
    }
    let who = if advice.months.is_some() { "A month, clients of" } else { "Clients of" };
    let services = some(advice.direct_services.iter().map(String::as_str), NAMED);
    text += &direct(advice.direct * factor, &format!("{who} {services}"));
    if advice.uncounted > 0 {
        let s = if advice.uncounted == 1 { " has" } else { "s have" };
        let _ = writeln!(text, "{} Service{s} no bytes in these metrics.", advice.uncounted);
    }
    let _ = writeln!(
        text,
        "BUSIEST: how many times its even share the busiest endpoint gets; at most ×{}.",
        advice.max_load
    );
    for assumption in [advice.assumption, advice.bytes_assumption] {
        let _ = writeln!(text, "Assumed: {assumption}.");
    }
    if let Some(over) = &advice.over {
        let _ = writeln!(text, "Bytes are those of the last {over}, as Prometheus has them.");
    }
    text
}

fn load(load: Option<f64>) -> String {
    load.map_or_else(|| "–".to_owned(), |load| format!("×{load:.2}"))
}

fn rest(all: usize, shown: usize) -> String {
    match all.saturating_sub(shown) {
        0 => String::new(),
        more => format!("  {more} more: -o json has all\n"),
    }
}
