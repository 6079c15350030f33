//! Formats numbers: as many digits as a measurement supports, with thousands separators.

use crate::result::{Better, Case};

/// Formats a measured value with three significant digits, or all integer digits if there are more:
/// `5,432`, `91.3`, `0.0123`. A value that is not finite becomes a dash.
pub(crate) fn figure(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    grouped(&format!("{value:.*}", decimals(value)))
}

/// Formats a ratio: `0.91 ×`, `2.61 ×`.
pub(crate) fn ratio(value: f64) -> String {
    let text = if value.abs() >= 0.1 && value.abs() < 100.0 {
        format!("{value:.2}")
    } else {
        figure(value)
    };
    format!("{text} ×")
}

/// Formats a share without its sign: `3.2 %`.
pub(crate) fn percent(share: f64) -> String {
    // Adding zero turns -0.0 into 0.0.
    let percent = share * 100.0 + 0.0;
    if !percent.is_finite() {
        return "–".to_owned();
    }
    let decimals = usize::from(percent.abs() < 10.0);
    format!("{} %", grouped(&format!("{percent:.decimals$}")))
}

/// Formats a value with its unit.
pub(crate) fn with_unit(value: f64, unit: &str) -> String {
    format!("{} {unit}", figure(value)).trim_end().to_owned()
}

/// Formats the goal of a case: `≥ 0.85 ×`, `≤ 3 ms`.
pub(crate) fn goal(case: &Case) -> Option<String> {
    let sign = match case.better {
        Better::Higher => "≥",
        Better::Lower => "≤",
    };
    let unit = if case.reference.is_some() { "×" } else { &case.unit };
    Some(format!("{sign} {} {unit}", grouped(&case.goal?.to_string())).trim_end().to_owned())
}

/// Inserts thousands separators: `10,000`.
pub(crate) fn grouped(number: &str) -> String {
    let (sign, digits) = number.strip_prefix('-').map_or(("", number), |digits| ("-", digits));
    let (whole, fraction) = digits.split_at(digits.find('.').unwrap_or(digits.len()));
    let mut text = sign.to_owned();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text + fraction
}

/// Returns the number of decimals for three significant digits, at most six; smaller values show as
/// zero.
fn decimals(value: f64) -> usize {
    let mut bound = 100.0;
    let mut decimals = 0;
    while decimals < 6 && value.abs() < bound {
        bound /= 10.0;
        decimals += 1;
    }
    decimals
}

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

    #[test]
    fn a_figure_has_three_digits_or_all_before_the_point() {
        let shown = [0.0, 0.01234, 0.5, 1.0, 12.34, 99.96, 123.4, 5432.1, 10_000_000.0, -1234.0];
        let shown = shown.map(figure);
        let wanted = [
            "0",
            "0.0123",
            "0.500",
            "1.00",
            "12.3",
            "100.0",
            "123",
            "5,432",
            "10,000,000",
            "-1,234",
        ];
        assert_eq!(shown, wanted);
        assert_eq!([f64::NAN, f64::INFINITY].map(figure), ["–", "–"]);
    }

    #[test]
    fn ratios_and_shares_are_short() {
        assert_eq!(
            [0.914, 2.6, 0.01, 1234.0].map(ratio),
            ["0.91 ×", "2.60 ×", "0.0100 ×", "1,234 ×"]
        );
        assert_eq!([0.032, 0.5, -0.25, 12.0].map(percent), ["3.2 %", "50 %", "-25 %", "1,200 %"]);
    }

    #[test]
    fn a_goal_says_what_it_is_a_bound_of() {
        let mut case = Case { unit: "tasks/s".into(), goal: Some(10_000.0), ..Case::default() };
        assert_eq!(goal(&case).as_deref(), Some("≥ 10,000 tasks/s"));
        case.reference = Some("ceiling".into());
        case.goal = Some(0.85);
        assert_eq!(goal(&case).as_deref(), Some("≥ 0.85 ×"));
        case.better = Better::Lower;
        assert_eq!(goal(&case).as_deref(), Some("≤ 0.85 ×"));
        case.goal = None;
        assert_eq!(goal(&case), None);
    }
}
