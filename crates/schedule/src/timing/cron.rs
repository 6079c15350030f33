//! Cron expressions: their dates and times of day.
//!
//! croner parses the fields and matches the dates. The walk through the calendar and the treatment
//! of clock changes are those of this crate, as for every other cadence. The rules of croner for
//! them do not apply.

use croner::Cron as Fields;
use croner::errors::CronError;
use croner::parser::{CronParser, Year};
use croner::time::Weekday;
use jiff::civil::Date;

use crate::error::ValidationError;
use crate::timing::clock::Clock;

/// The dates of a cron expression, and its text.
#[derive(Clone, Debug)]
pub(crate) struct Cron {
    text: String,
    fields: Box<Fields>,
    follows_wall_clock: bool,
}

impl PartialEq for Cron {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Cron {}

impl Cron {
    /// Parses five fields, or six with the seconds first.
    ///
    /// # Errors
    /// Fails if croner does not accept the expression, or it contains a year.
    pub fn read(text: &str, at: usize) -> Result<(Self, Clock), ValidationError> {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let count = text.split(' ').count();
        if !text.starts_with('@') && !(5..=6).contains(&count) {
            let message = format!("a cron expression has 5 or 6 fields, not {count}");
            return Err(ValidationError::new(at, message).hint(
                "the fields are minute hour day-of-month month day-of-week; a sixth field, seconds, may come first",
            ));
        }
        let parser = CronParser::builder().year(Year::Disallowed).build();
        let fields = parser.parse(&text).map_err(|error| {
            ValidationError::new(at, format!("cron expression: {}", fragment(&error)))
        })?;
        let pattern = &fields.pattern;
        let clock = Clock::Fields {
            hours: pattern.hours.values(),
            minutes: pattern.minutes.values(),
            seconds: pattern.seconds.values(),
        };
        let given: Vec<&str> = pattern.as_str().split_whitespace().collect();
        let times = &given[..given.len() - 3];
        let follows_wall_clock = times.iter().any(|field| field.starts_with('*'));
        Ok((Self { text, fields: Box::new(fields), follows_wall_clock }, clock))
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether the second, minute or hour field begins with `*`.
    pub fn follows_wall_clock(&self) -> bool {
        self.follows_wall_clock
    }

    pub fn holds(&self, date: Date) -> bool {
        let (month, day) = (date.month().unsigned_abs().into(), date.day().unsigned_abs().into());
        let weekday = date.weekday().to_sunday_zero_offset().unsigned_abs();
        let weekday = Weekday::from_days_from_sunday(weekday.into());
        let pattern = &self.fields.pattern;
        // Neither call fails for a date that exists.
        pattern.month_match(month).unwrap_or(false)
            && pattern.day_match(date.year().into(), month, day, weekday).unwrap_or(false)
    }
}

/// Converts croner's sentence into a fragment.
fn fragment(error: &CronError) -> String {
    let text = match error {
        CronError::InvalidPattern(text)
        | CronError::IllegalCharacters(text)
        | CronError::ComponentError(text) => text.clone(),
        other => other.to_string(),
    };
    let text = text.trim_end_matches('.').replace("CronPattern contains i", "i");
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_ascii_lowercase());
    first.into_iter().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::civil::date;
    use proptest::prelude::*;

    fn days(text: &str, year: i16, month: i8) -> Vec<i8> {
        let (cron, _) = Cron::read(text, 0).unwrap();
        let first = date(year, month, 1);
        let matches = |day: &i8| cron.holds(first.with().day(*day).build().unwrap());
        (1..=first.days_in_month()).filter(matches).collect()
    }

    #[test]
    fn a_matching_day_of_month_or_day_of_week_is_sufficient() {
        assert_eq!(days("0 0 13 * FRI", 2026, 3), [6, 13, 20, 27]);
        assert_eq!(days("0 0 10 * 5", 2026, 3), [6, 10, 13, 20, 27]);
        assert_eq!(days("0 0 13 * +5", 2026, 4), [] as [i8; 0]);
        assert_eq!(days("0 0 * * 7", 2026, 3), [1, 8, 15, 22, 29]);
        assert_eq!(days("0 0 10 4 *", 2026, 3), [] as [i8; 0]);
    }

    #[test]
    fn last_nearest_and_nth_are_supported() {
        assert_eq!(days("0 0 L * *", 2028, 2), [29]);
        assert_eq!(days("0 0 15W * *", 2026, 3), [16]);
        assert_eq!(days("0 0 LW * *", 2026, 5), [29]);
        assert_eq!(days("0 0 * * MON#2", 2026, 3), [9]);
        assert_eq!(days("0 0 * * 5L", 2026, 3), [27]);
    }

    #[test]
    fn a_star_in_the_time_follows_the_wall_clock() {
        let follows = |text| Cron::read(text, 0).unwrap().0.follows_wall_clock();
        assert!(follows("* 2 * * *"));
        assert!(follows("*/5 2 * * *"));
        assert!(follows("0 */2 * * *"));
        assert!(follows("* 0 2 * * *"));
        assert!(follows("@hourly"));
        assert!(!follows("0 2 * * *"));
        assert!(!follows("0 0-59 1-3 * * *"));
        assert!(!follows("@daily"));
    }

    #[test]
    fn invalid_expressions_are_refused() {
        let message = |text| Cron::read(text, 0).unwrap_err().message;
        assert_eq!(message("0 2 * *"), "a cron expression has 5 or 6 fields, not 4");
        assert_eq!(message("0 0 2 * * * 2026"), "a cron expression has 5 or 6 fields, not 7");
        assert_eq!(message("61 2 * * *"), "cron expression: number out of bounds");
        assert_eq!(message("ä 2 * * *"), "cron expression: illegal character 'Ä' in part 'Ä'");
        assert!(Cron::read("@reboot", 0).is_err());
        assert!(Cron::read("", 0).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "[0-9*/,#LW?+A-Zé@-]{0,6}( [0-9*/,#LW?+-]{1,6}){0,6}") {
            if let Ok((cron, clock)) = Cron::read(&text, 0) {
                clock.first(0);
                cron.holds(date(2026, 2, 28));
            }
        }
    }
}
