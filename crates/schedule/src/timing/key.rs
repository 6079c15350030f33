//! The key under which the settings of a schedule are stored.
//!
//! The key is made of the word of the timing and its positional arguments, sorted. Filters, zone
//! and intervals are not part of the key, so that a change of one of them keeps the settings.

use crate::timing::Timing;
use crate::timing::arguments::MAX_KEY_BYTES;
use crate::timing::cadence::Cadence;
use crate::timing::rule::Rule;
use crate::timing::trigger::{Source, Trigger};
use crate::timing::vocabulary::{ORDINAL, WEEKDAY};

impl Timing {
    /// Returns the key, which consists of `[a-z0-9_]` and has at most 100 bytes. Timings with the
    /// same content have the same key.
    #[must_use]
    pub fn key(&self) -> String {
        match self {
            Self::Manual => "manual".to_owned(),
            Self::Scheduled(cadence) => {
                cadence.key.clone().unwrap_or_else(|| plain(&of_cadence(cadence)))
            }
            Self::Triggered(trigger) => {
                trigger.key.clone().unwrap_or_else(|| plain(&of_trigger(trigger)))
            }
        }
    }
}

fn of_cadence(cadence: &Cadence) -> String {
    let named = match &cadence.rule {
        Rule::Daily | Rule::Every => Vec::new(),
        // Each day is listed separately, so that mon-fri differs from mon, fri.
        Rule::Weekly(days) => WEEKDAY.short(*days),
        Rule::Nth { ordinals, weekdays } => {
            [ORDINAL.short(*ordinals), WEEKDAY.short(*weekdays)].concat()
        }
        Rule::Monthly(days) => return joined(cadence, &days.words().join(" ")),
        Rule::Once(date) => return joined(cadence, &date.to_string()),
        Rule::Cron(cron) => return joined(cadence, &cron.text().replace('*', " star ")),
    };
    joined(cadence, &named.join(" "))
}

fn joined(cadence: &Cadence, days: &str) -> String {
    format!("{} {days} {}", cadence.word(), cadence.times().join(" "))
}

fn of_trigger(trigger: &Trigger) -> String {
    match &trigger.source {
        Source::Table { name, .. } => format!("trigger {}", name.join(" ")),
        Source::Probe(_) => "trigger probe".to_owned(),
    }
}

/// Replaces each run of other characters by one `_`. A text that is too long is cut, and gets a
/// hash that keeps it unique.
fn plain(text: &str) -> String {
    let text = text.to_lowercase();
    let words = text.split(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit()));
    let key = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("_");
    if key.len() <= MAX_KEY_BYTES {
        return key;
    }
    let hash = key
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{}_{hash:08x}", &key[..MAX_KEY_BYTES - 9])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> String {
        Timing::parse(text).unwrap().key()
    }

    #[test]
    fn a_key_is_derived_from_the_content() {
        assert_eq!(key("manual"), "manual");
        assert_eq!(key("daily(09:00)"), "daily_09_00");
        assert_eq!(key("daily(17:00, 09:00)"), "daily_09_00_17_00");
        assert_eq!(key("daily(09:00:30)"), "daily_09_00_30");
        assert_eq!(key("every(5 min)"), "every_5_minutes");
        assert_eq!(key("weekly(09:00, thu, mon)"), "weekly_mon_thu_09_00");
        assert_eq!(key("weekly(wed-fri, 09:00)"), "weekly_wed_thu_fri_09_00");
        assert_eq!(key("monthly(last, 15, 1, 06:00)"), "monthly_1_15_last_06_00");
        assert_eq!(key("nth(mon, last, first, 09:00)"), "nth_first_last_mon_09_00");
        assert_eq!(key("once(2026-06-01 09:00)"), "once_2026_06_01_09_00");
        assert_eq!(key("cron(30 2 * * 1-5)"), "cron_30_2_star_star_1_5");
        assert_eq!(key("cron(\"*/5 0,12 * * MON\")"), "cron_star_5_0_12_star_star_mon");
        assert_eq!(key("trigger(table: staging.orders, rows: 1)"), "trigger_staging_orders");
        assert_eq!(key("trigger(probe: SELECT 1, rows: 1)"), "trigger_probe");
    }

    #[test]
    fn filters_are_not_part_of_a_key() {
        let text = "daily(09:00, days: mon, months: jan, zone: Europe/Berlin, every: 2)";
        assert_eq!(key(text), "daily_09_00");
        assert_eq!(key("daily(09:00, key: My_Key)"), "my_key");
        assert!(Timing::parse("daily(09:00, key: my-key)").is_err());
        assert!(Timing::parse(&format!("daily(09:00, key: {})", "a".repeat(101))).is_err());
    }

    #[test]
    fn a_long_key_is_truncated_and_stays_unique() {
        let of = |last: &str| {
            let times: Vec<String> = (0..23).map(|hour| format!("{hour:02}:30")).collect();
            key(&format!("daily({}, {last})", times.join(", ")))
        };
        assert_eq!(of("23:10").len(), 100);
        assert_ne!(of("23:10"), of("23:11"));
    }
}
