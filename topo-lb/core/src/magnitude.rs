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

/// Money in cents; with two digits if it is less than half a cent. Below a millionth it is nothing.
#[must_use]
pub fn money(amount: f64) -> String {
    let (sign, amount) = (if amount <= -1e-6 { "-" } else { "" }, amount.abs());
    let digits =
        if (1e-6..0.005).contains(&amount) { 1 - amount.log10().floor() as i32 } else { 2 };
    format!("{sign}${amount:.*}", digits.unsigned_abs() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_in_cents_unless_that_would_show_nothing() {
        let shown =
            [0.0, 1e-9, -1e-9, 0.000_001_24, 0.0049, 0.005_1, 12.345_6, -3.5, -0.000_21].map(money);
        let wanted = [
            "$0.00",
            "$0.00",
            "$0.00",
            "$0.0000012",
            "$0.0049",
            "$0.01",
            "$12.35",
            "-$3.50",
            "-$0.00021",
        ];
        assert_eq!(shown, wanted);
    }

    #[test]
    fn bytes_have_two_or_three_digits_and_a_unit() {
        let shown = [0.0, 1.0, 999.4, 999.6, 1.5e6, 4.2e9, 7e15].map(bytes);
        assert_eq!(shown, ["0 B", "1.0 B", "999 B", "1.0 kB", "1.5 MB", "4.2 GB", "7000 TB"]);
    }
}
