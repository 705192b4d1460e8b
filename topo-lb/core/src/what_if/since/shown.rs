//! What has changed since a moment, as text.

use std::fmt::Write as _;

use super::{Distance, Outcome, Since};
use crate::explain::{empty, shown};
use crate::magnitude::{self, money};

/// Most Services that are shown. JSON has all.
const ROWS: usize = 20;

/// The comparison for people; `colour` adds terminal colours.
#[must_use]
pub fn table(since: &Since, colour: bool) -> String {
    let mut table = empty(colour);
    table.set_header(["SERVICE", "OUT OF ZONE", "STAYED", "COSTS", "SAVED"]);
    let factor = since.months.unwrap_or(1.0);
    let cells = |name: String, it: &Outcome| {
        let far = |it: &Distance| magnitude::bytes(it.out_of_zone * factor);
        let stayed = |it: &Distance| {
            it.stayed().map_or_else(|| "–".to_owned(), |part| format!("{:.0} %", part * 100.0))
        };
        let (before, after) = (&it.bytes.before, &it.bytes.after);
        [
            name,
            format!("{} → {}", far(before), far(after)),
            format!("{} → {}", stayed(before), stayed(after)),
            format!("{} → {}", money(it.money.before * factor), money(it.money.after * factor)),
            it.saved.map_or_else(|| "–".to_owned(), |saved| money(saved * factor)),
        ]
    };
    for one in since.services.iter().take(ROWS) {
        let name = format!("{}/{}", shown(&one.namespace), shown(&one.name));
        table.add_row(cells(name, &one.outcome));
    }
    table.add_row(cells("all Services".to_owned(), &since.all));
    let has_direct = since.direct != Outcome::default();
    if has_direct {
        table.add_row(cells("dialled directly".to_owned(), &since.direct));
        table.add_row(cells("together".to_owned(), &since.together));
    }
    let mut text = format!("{}\n", table.trim_fmt());
    if let Some(more) = since.services.len().checked_sub(ROWS).filter(|more| *more > 0) {
        let _ = writeln!(text, "  {more} more: -o json has all");
    }
    let time = &since.since;
    let month = if since.months.is_some() { ", as those of a month" } else { "" };
    let _ = writeln!(
        text,
        "\nThe {time} before → the last {time}, as Prometheus has them{month}. {}.",
        since.prices,
    );
    let far = [&since.all.bytes.before, &since.all.bytes.after];
    let has_far = far.iter().any(|it| it.out_of_zone > 0.0);
    if has_far && far.iter().all(|it| it.out_of_region == it.out_of_zone) {
        text += "All that left its zone left its region, or Nodes have no region: then give one price for both.\n";
    }
    text += "SAVED: the later bytes at what an earlier byte cost on average, less what they did cost. More or less \
             traffic does not change it.\n";
    text
}

#[cfg(test)]
mod tests {
    use super::super::super::{Prices, since};
    use super::super::Both;
    use super::super::tests::example;
    use super::*;

    #[test]
    fn the_table_tells_what_is_not_known_with_a_dash() {
        let wanted = " \
SERVICE           OUT OF ZONE      STAYED        COSTS              SAVED
 shop/cart         30 TB → 0 B      25 % → 100 %  $400.00 → $0.00    $800.00
 shop/far          0 B → 10 TB      100 % → 0 %   $0.00 → $100.00    -$100.00
 shop/gone         10 TB → 0 B      0 % → –       $100.00 → $0.00    –
 shop/new          0 B → 30 GB      – → 0 %       $0.00 → $0.30      –
 all Services      40 TB → 10 TB    33 % → 89 %   $500.00 → $100.30  $700.00
 dialled directly  5.0 TB → 5.0 TB  0 % → 0 %     $100.00 → $100.00  $0.00
 together          45 TB → 15 TB    31 % → 84 %   $600.00 → $200.30  $700.00

The 3d before → the last 3d, as Prometheus has them, as those of a month. A GB costs $0.01 out of the zone, $0.02 \
out of the region.
SAVED: the later bytes at what an earlier byte cost on average, less what they did cost. More or less traffic does \
not change it.
";
        assert_eq!(table(&example(&[]), false), wanted);
    }

    #[test]
    fn nothing_is_a_row_of_dashes() {
        let none = table(&since("1d", Prices::default(), &[], Both::default()), false);
        assert!(none.contains(" all Services  0 B → 0 B    – → –   $0.00 → $0.00  –"), "{none}");
    }
}
