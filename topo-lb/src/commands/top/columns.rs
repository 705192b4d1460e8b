//! Which columns a table shows on a narrow terminal: digits are never cut, so whole columns go, and names end in `…`.
//! Pure.

/// What a column needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    /// Characters of its widest cell.
    pub(super) width: usize,
    /// Columns with the highest go first; those with 0 stay.
    pub(super) rank: u8,
}

/// The places of the columns that fit into `room` characters, one character apart.
pub(super) fn fitting(room: usize, needs: &[Need]) -> Vec<usize> {
    let mut kept: Vec<usize> = (0..needs.len()).collect();
    let taken = |kept: &[usize]| -> usize { kept.iter().map(|&it| needs[it].width + 1).sum() };
    while taken(&kept) > room + 1 {
        let least = kept.iter().copied().max_by_key(|&it| needs[it].rank);
        let Some(least) = least.filter(|&it| needs[it].rank > 0) else { break };
        kept.retain(|&it| it != least);
    }
    kept
}

/// The text, of at most so many characters.
pub(super) fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let kept: String = text.chars().take(most.saturating_sub(1)).collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_important_go_until_the_rest_fits() {
        let needs = [(5, 0), (3, 2), (4, 1), (2, 3)].map(|(width, rank)| Need { width, rank });
        let wanted: [(usize, &[usize]); 5] = [
            (17, &[0, 1, 2, 3]),
            (16, &[0, 1, 2]),
            (13, &[0, 2]),
            (9, &[0]),
            // What must stay does.
            (0, &[0]),
        ];
        for (room, columns) in wanted {
            assert_eq!(fitting(room, &needs), columns, "{room}");
        }
    }

    #[test]
    fn a_long_name_says_that_it_is_longer() {
        let cut = [0, 1, 4, 5].map(|most| shortened("größe", most));
        assert_eq!(cut, ["…", "…", "grö…", "größe"]);
    }
}
