//! A Service or a node as the cells of a row, and the columns that there is room for. Pure.

use super::columns::{Need, fitting, shortened};
use super::traffic::{Rate, Row};
use super::view::Column;
use topo_lb_core::magnitude;

/// The columns after the first, and which go first where there is no room (`columns`).
pub(super) const COLUMNS: [(&str, u8); 9] = [
    ("CONN/S", 1),
    ("NODE", 7),
    ("ZONE", 6),
    ("REGION", 8),
    ("ELSEWHERE", 5),
    ("FAR", 2),
    ("FAR B/S", 0),
    ("REFUSED", 4),
    ("FAILED", 3),
];
pub(super) const WIDTH: usize = 9;
/// So much of a name stays while there are columns that can go.
const NAME: usize = 24;

/// What follows the name of a Service whose connections are left to another proxy.
const LEFT: &str = " (left)";

/// A Service or a node, and the cells of [`COLUMNS`].
pub(super) struct Cut<'a> {
    name: String,
    /// What follows the name, however short that becomes.
    mark: &'static str,
    pub(super) rate: &'a Rate,
    pub(super) cells: [String; COLUMNS.len()],
}

impl<'a> Cut<'a> {
    pub(super) fn of(name: &str, rate: &'a Rate) -> Self {
        Self { name: printable(name), mark: "", rate, cells: cells(rate) }
    }

    pub(super) fn of_service(row: &'a Row) -> Self {
        let mark = if row.is_left() { LEFT } else { "" };
        Self { mark, ..Self::of(&row.service, &row.rate) }
    }

    /// How many characters name and mark have.
    fn width(&self) -> usize {
        self.name.chars().count() + self.mark.len()
    }

    /// Both, of at most so many characters.
    pub(super) fn title(&self, most: usize) -> String {
        shortened(&self.name, most.saturating_sub(self.mark.len())) + self.mark
    }
}

/// The columns that there is room for.
pub(super) struct Shown {
    /// Characters of the first one.
    pub(super) name: usize,
    /// Places in [`COLUMNS`], and characters.
    pub(super) others: Vec<(usize, usize)>,
}

impl Shown {
    /// Those for these rows, sorted by a column that stays. If not all fit, none is wider than it must be.
    pub(super) fn of<'a, 'b: 'a>(
        room: usize,
        sort: Column,
        rows: impl Iterator<Item = &'a Cut<'b>> + Clone,
    ) -> Self {
        let longest = rows.clone().map(|row| row.width()).max().unwrap_or_default();
        let widest = |place: usize| {
            let cells = rows.clone().map(|row| row.cells[place].chars().count());
            cells.max().unwrap_or_default().max(COLUMNS[place].0.len())
        };
        let widths: [usize; COLUMNS.len()] = std::array::from_fn(widest);
        let wide = widths.map(|width| width.max(WIDTH));
        let fits = NAME + wide.iter().map(|width| width + 1).sum::<usize>() <= room;
        let widths = if fits { wide } else { widths };
        let first = Need { width: longest.clamp("FROM NODE".len(), NAME), rank: 0 };
        let others = COLUMNS.into_iter().zip(widths).map(|((column, rank), width)| {
            let stays = column == title(sort);
            Need { width, rank: if stays { 0 } else { rank } }
        });
        let needs: Vec<Need> = [first].into_iter().chain(others).collect();
        let kept = fitting(room, &needs);
        let others: Vec<_> = kept.into_iter().skip(1).map(|at| (at - 1, needs[at].width)).collect();
        let taken: usize = others.iter().map(|(_, width)| width + 1).sum();
        Self { name: room.saturating_sub(taken), others }
    }
}

pub(super) const fn title(column: Column) -> &'static str {
    match column {
        Column::Service => "SERVICE",
        Column::Connections => "CONN/S",
        Column::Far => "FAR",
        Column::Bytes => "FAR B/S",
        Column::Refused => "REFUSED",
        Column::Failed => "FAILED",
    }
}

/// A name without characters that a terminal obeys.
pub(super) fn printable(name: &str) -> String {
    name.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect()
}

/// The cells of [`COLUMNS`].
fn cells(rate: &Rate) -> [String; COLUMNS.len()] {
    let [node, zone, region, elsewhere] = rate.connections.map(per_second);
    let far = rate.far_share().map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0));
    [
        per_second(rate.all()),
        node,
        zone,
        region,
        elsewhere,
        far,
        bytes(rate.far_bytes()),
        per_second(rate.refused),
        per_second(rate.failed),
    ]
}

pub(super) fn per_second(rate: f64) -> String {
    match rate {
        0.0 => "-".to_owned(),
        rate if rate < 9.95 => format!("{rate:.1}"),
        rate => format!("{rate:.0}"),
    }
}

/// Nothing is a dash.
pub(super) fn bytes(rate: f64) -> String {
    if rate == 0.0 { "-".to_owned() } else { magnitude::bytes(rate) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_to_their_columns() {
        let shown = [0.0, 0.04, 9.94, 9.96, 12_345.6].map(per_second);
        assert_eq!(shown, ["-", "0.0", "9.9", "10", "12346"]);
        assert_eq!([0.0, 1.5e6].map(bytes), ["-", "1.5 MB"]);
    }
}
