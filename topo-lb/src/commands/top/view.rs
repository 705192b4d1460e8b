//! What the screen shows: which column sorts, which names are wanted, which Service is open. Pure:
//! keys and rates go in, rows come out.

use std::cmp::Ordering;
use std::sync::Arc;

use strum::{EnumIter, FromRepr};

use super::traffic::Row;

/// A column that rows can be sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, EnumIter, FromRepr, clap::ValueEnum)]
pub enum Column {
    /// The Service's name, from A to Z.
    Service,
    /// All connections a second, the most first; so are the next ones.
    #[default]
    Connections,
    /// The share of connections that leave their zone.
    Far,
    /// Bytes a second that leave their zone.
    Bytes,
    /// Refused connections a second.
    Refused,
    /// Failed connections a second.
    Failed,
}

/// A key that means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Backspace,
    Enter,
    Escape,
    Up,
    Down,
    Left,
    Right,
    /// Ctrl-C.
    Interrupt,
}

/// What the screen shows of the newest rates.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) sort: Column,
    /// Only Services whose names contain this.
    pub(super) filter: String,
    /// Whether keys are written to the filter.
    pub(super) is_typing: bool,
    /// The Service under the cursor, which keeps it when the order changes.
    pub(super) cursor: Option<Arc<str>>,
    /// Whether the nodes of that Service are shown.
    pub(super) is_open: bool,
    rows: Vec<Row>,
}

impl View {
    pub(super) fn new(sort: Column, filter: String) -> Self {
        Self { sort, filter, ..Self::default() }
    }

    /// Takes newer rates.
    pub(super) fn update(&mut self, rows: Vec<Row>) {
        self.rows = rows;
    }

    /// The rows in their order.
    pub(super) fn rows(&self) -> Vec<&Row> {
        let mut rows: Vec<_> =
            self.rows.iter().filter(|row| row.service.contains(&self.filter)).collect();
        rows.sort_by(|a, b| order(self.sort, a, b).then_with(|| a.service.cmp(&b.service)));
        rows
    }

    /// The place of the cursor in [`rows`](Self::rows); the first row if its Service is not there.
    pub(super) fn place(&self) -> usize {
        let is_there = |row: &&Row| Some(&row.service) == self.cursor.as_ref();
        self.rows().iter().position(is_there).unwrap_or(0)
    }

    /// The row under the cursor, if it is open.
    pub(super) fn open(&self) -> Option<&Row> {
        self.is_open.then(|| self.rows().get(self.place()).copied()).flatten()
    }

    /// Does what a key means. Returns whether to go on.
    pub(super) fn press(&mut self, key: Key) -> bool {
        match key {
            Key::Interrupt => return false,
            Key::Char(letter) if self.is_typing => self.filter.push(letter),
            Key::Backspace if self.is_typing => {
                self.filter.pop();
            }
            Key::Enter if self.is_typing => self.is_typing = false,
            Key::Escape if self.is_typing => {
                self.is_typing = false;
                self.filter.clear();
            }
            Key::Char('q') => return false,
            Key::Char('/') => self.is_typing = true,
            Key::Char('k') | Key::Up => self.walk(-1),
            Key::Char('j') | Key::Down => self.walk(1),
            Key::Char('h') | Key::Left => self.turn(-1),
            Key::Char('l') | Key::Right => self.turn(1),
            Key::Enter => {
                self.walk(0);
                self.is_open = !self.is_open;
            }
            Key::Escape if self.is_open => self.is_open = false,
            Key::Escape if !self.filter.is_empty() => self.filter.clear(),
            Key::Escape => return false,
            Key::Char(_) | Key::Backspace => {}
        }
        true
    }

    fn walk(&mut self, steps: isize) {
        let rows = self.rows();
        let last = rows.len().saturating_sub(1);
        let place = self.place().saturating_add_signed(steps).min(last);
        self.cursor = rows.get(place).map(|row| Arc::clone(&row.service));
    }

    fn turn(&mut self, steps: isize) {
        let column = (self.sort as usize).checked_add_signed(steps).and_then(Column::from_repr);
        self.sort = column.unwrap_or(self.sort);
    }
}

/// Which of two rows comes first.
pub(crate) fn order(by: Column, a: &Row, b: &Row) -> Ordering {
    let value = |row: &Row| match by {
        Column::Service => 0.0,
        Column::Connections => row.rate.all(),
        Column::Far => row.rate.far_share().unwrap_or(-1.0),
        Column::Bytes => row.rate.far_bytes(),
        Column::Refused => row.rate.refused,
        Column::Failed => row.rate.failed,
    };
    value(b).total_cmp(&value(a))
}

#[cfg(test)]
mod tests {
    use super::super::traffic::Rate;
    use super::*;

    fn view(rows: &[(&str, f64, f64)]) -> View {
        let mut view = View::default();
        view.update(rows.iter().map(|&(service, near, far)| row(service, near, far)).collect());
        view
    }

    fn row(service: &str, near: f64, far: f64) -> Row {
        let rate = Rate { connections: [near, 0.0, far, 0.0], ..Rate::default() };
        Row { service: service.into(), rate, ..Row::default() }
    }

    fn names(view: &View) -> Vec<&str> {
        view.rows().into_iter().map(|row| &*row.service).collect()
    }

    const ROWS: [(&str, f64, f64); 3] =
        [("a/idle", 0.0, 0.0), ("a/near", 9.0, 1.0), ("b/far", 1.0, 4.0)];

    #[test]
    fn the_busiest_come_first_and_other_columns_are_a_key_away() {
        let mut view = view(&ROWS);
        assert_eq!(names(&view), ["a/near", "b/far", "a/idle"]);
        assert!(view.press(Key::Right));
        assert_eq!(names(&view), ["b/far", "a/near", "a/idle"]);
        for _ in 0..9 {
            assert!(view.press(Key::Left));
        }
        assert_eq!((view.sort, names(&view)), (Column::Service, vec!["a/idle", "a/near", "b/far"]));
    }

    #[test]
    fn a_filter_is_typed_and_escape_takes_it_back() {
        let mut view = view(&ROWS);
        for key in [Key::Char('/'), Key::Char('q'), Key::Backspace, Key::Char('a'), Key::Char('/')]
        {
            assert!(view.press(key), "q is a letter of the filter");
        }
        assert_eq!(names(&view), ["a/near", "a/idle"]);
        assert!(view.press(Key::Enter) && view.press(Key::Escape));
        assert_eq!(names(&view).len(), 3);
        assert!(!view.press(Key::Escape));
    }

    #[test]
    fn the_cursor_stays_with_its_service() {
        let mut view = view(&ROWS);
        assert!(view.press(Key::Down));
        assert_eq!((view.cursor.as_deref(), view.place()), (Some("b/far"), 1));
        view.update(vec![row("b/far", 50.0, 0.0), row("a/near", 1.0, 0.0)]);
        assert_eq!(view.place(), 0);
        assert!(view.press(Key::Enter));
        assert_eq!(view.open().map(|row| &*row.service), Some("b/far"));
        view.update(Vec::new());
        assert_eq!(view.open(), None);
        assert!(view.press(Key::Down) && view.press(Key::Up));
    }
}
