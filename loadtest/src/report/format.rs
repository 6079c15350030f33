//! Formats counts.

/// Formats a count in short form: `10k`, `1M`, `20k`, `123`.
pub(crate) fn short_count(count: i64) -> String {
    match count {
        n if n >= 1_000_000 && n % 1_000_000 == 0 => format!("{}M", n / 1_000_000),
        n if n >= 1_000 && n % 1_000 == 0 => format!("{}k", n / 1_000),
        n => n.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_numbers_are_short() {
        let cases = [(10_000, "10k"), (20_000_000, "20M"), (1_500_000, "1500k"), (999, "999")];
        for (count, words) in cases {
            assert_eq!(short_count(count), words);
        }
    }
}
