//! The table of a single look. Pure.

use comfy_table::{CellAlignment, presets};

use super::cells::{COLUMNS, Cut, Shown};
use super::traffic::Row;
use super::view::Column;

/// The rows of a single look, as a table for people; of so many characters, if somebody looks.
pub(super) fn text(rows: &[&Row], sort: Column, room: Option<usize>) -> String {
    if rows.is_empty() {
        return "No Service that is counted has had a connection.".to_owned();
    }
    let sum = Row::sum_of(rows);
    let rows: Vec<_> = rows.iter().copied().chain(&sum).map(Cut::of_service).collect();
    let shown = Shown::of(room.unwrap_or(usize::MAX / 2), sort, rows.iter());
    let mut table = comfy_table::Table::new();
    let others = shown.others.iter().map(|(place, _)| COLUMNS[*place].0);
    table.load_preset(presets::NOTHING).set_header(["SERVICE"].into_iter().chain(others));
    for column in table.column_iter_mut() {
        // One character between two columns, as on the screen.
        column.set_padding((0, 1));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for row in &rows {
        let cells = shown.others.iter().map(|(place, _)| row.cells[*place].clone());
        table.add_row([row.title(shown.name)].into_iter().chain(cells));
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::super::traffic::TierRate;
    use super::*;
    use topo_lb_core::metrics::Tier;

    #[test]
    fn a_table_of_no_services_is_a_sentence() {
        let text = |rows: &[&Row], room| text(rows, Column::Connections, room);
        assert_eq!(text(&[], None), "No Service that is counted has had a connection.");
        let rows = Row::examples();
        let rows: Vec<_> = rows.iter().collect();
        let whole = text(&rows, None);
        assert!(whole.lines().nth(1).is_some_and(|line| line.contains("1.2 MB")), "{whole}");
        assert!(whole.starts_with("SERVICE"), "{whole}");
        for column in COLUMNS {
            assert!(whole.contains(column.0), "{whole}");
        }
        let narrow = text(&rows, Some(60));
        assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
        let all = whole.lines().last().expect("a row");
        assert!(all.starts_with("all ") && all.contains("1.2 MB"), "{whole}");
        assert!(narrow.contains("1.2 MB") && !narrow.contains("REGION"), "{narrow}");
        let left = Row {
            service: "shop/cart".into(),
            tiers: [(Tier::Left, TierRate::default())].into(),
            ..Row::default()
        };
        let table = text(&[&left], None);
        assert!(table.contains("shop/cart (left)"), "{table}");
    }
}
