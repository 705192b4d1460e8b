//! Numbers as people read them.

/// Bytes with the prefixes of powers of 1,000, as networks are paid for.
#[must_use]
pub fn bytes(count: f64) -> String {
    if count == 0.0 {
        return "0 B".to_owned();
    }
    let (mut count, mut unit) = (count, "");
    for next in ["k", "M", "G", "T"] {
        if count < 999.5 {
            break;
        }
        (count, unit) = (count / 1000.0, next);
    }
    if count < 9.95 { format!("{count:.1} {unit}B") } else { format!("{count:.0} {unit}B") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_two_or_three_digits_and_a_unit() {
        let shown = [0.0, 1.0, 999.4, 999.6, 1.5e6, 4.2e9, 7e15].map(bytes);
        assert_eq!(shown, ["0 B", "1.0 B", "999 B", "1.0 kB", "1.5 MB", "4.2 GB", "7000 TB"]);
    }
}
