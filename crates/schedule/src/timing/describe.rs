//! Describes timings in English.

use crate::timing::Timing;
use crate::timing::cadence::Cadence;
use crate::timing::clock::Clock;
use crate::timing::duration;
use crate::timing::rule::{MonthDays, Rule};
use crate::timing::trigger::{Source, Trigger};
use crate::timing::vocabulary::{MONDAY_TO_FRIDAY, MONTH, ORDINAL, WEEKDAY, WEEKEND, WordSet, and};

impl Timing {
    /// Returns a description such as "every weekday at 03:15 Europe/Berlin".
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Manual => "only on demand".to_owned(),
            Self::Scheduled(cadence) => describe_cadence(cadence),
            Self::Triggered(trigger) => describe_trigger(trigger),
        }
    }
}

/// Returns the description of a timing, or the text itself if it cannot be parsed.
#[must_use]
pub fn describe_timing(timing: &str) -> String {
    Timing::parse(timing).map_or_else(|_| timing.to_owned(), |timing| timing.describe())
}

fn describe_cadence(cadence: &Cadence) -> String {
    let filter = &cadence.filter;
    let count = cadence.interval.map(|interval| interval.count).filter(|count| *count > 1);
    // If a daily cadence is restricted to some weekdays, the description names these weekdays.
    let by_weekday = matches!(cadence.rule, Rule::Daily) && count.is_none();
    let mut text = days(cadence, count, filter.days.filter(|_| by_weekday));
    match (&cadence.rule, &cadence.clock) {
        (Rule::Once(_), _) | (_, Clock::Every(_) | Clock::Fields { .. }) => (),
        _ => text += &format!(" at {}", and(&cadence.times())),
    }
    if let Some(window) = filter.between {
        text += &format!(" between {} and {}", window.from, window.to);
    }
    if cadence.zone_name() != "UTC" {
        text += &format!(" {}", cadence.zone_name());
    }
    if let Some(days) = filter.days.filter(|_| !by_weekday) {
        text += &format!(" on {}", WEEKDAY.described(days));
    }
    if let Some(weeks) = filter.weeks {
        text += &format!(" in the {} week of the month", ORDINAL.described(weeks));
    }
    if let Some(months) = filter.months {
        text += &format!(" in {}", MONTH.described(months));
    }
    if let Some(from) = filter.from {
        text += &format!(", from {from}");
    }
    if let Some(until) = filter.until {
        text += &format!(", until {until}");
    }
    text
}

/// Returns the description of the dates, without the times of day.
fn days(cadence: &Cadence, count: Option<u16>, only: Option<WordSet>) -> String {
    let each = |what: &str| count.map_or(String::new(), |count| format!("every {count} {what} "));
    match &cadence.rule {
        Rule::Daily => match (count, only) {
            (Some(count), _) => format!("every {count} days"),
            (None, Some(days)) => format!("every {}", weekdays(days)),
            (None, None) => "every day".to_owned(),
        },
        Rule::Every => match &cadence.clock {
            Clock::Every(step) => format!("every {}", step.described()),
            _ => "every day".to_owned(),
        },
        Rule::Weekly(days) if count.is_none() => format!("every {}", weekdays(*days)),
        Rule::Weekly(days) => format!("{}on {}", each("weeks"), WEEKDAY.described(*days)),
        Rule::Monthly(days) => format!("{}on {} of the month", each("months"), month_days(*days)),
        Rule::Nth { ordinals, weekdays } => format!(
            "{}on the {} {} of the month",
            each("months"),
            ORDINAL.described(*ordinals),
            and(&WEEKDAY.full(*weekdays))
        ),
        Rule::Once(date) => format!("once at {date} {}", cadence.times().concat()),
        Rule::Cron(cron) => format!("cron {}", cron.text()),
    }
}

/// Returns the words that follow "every".
fn weekdays(days: WordSet) -> String {
    match days {
        MONDAY_TO_FRIDAY => "weekday".to_owned(),
        WEEKEND => "Saturday and Sunday".to_owned(),
        days => and(&WEEKDAY.full(days)),
    }
}

fn month_days(days: MonthDays) -> String {
    let words = days.words();
    match words.split_last() {
        Some((last, [])) if last == "last" => "the last day".to_owned(),
        Some((last, numbers)) if last == "last" => {
            format!("day {} and the last", numbers.join(", "))
        }
        _ => format!("day {}", and(&words)),
    }
}

fn describe_trigger(trigger: &Trigger) -> String {
    let (what, rows) = match &trigger.source {
        Source::Table { name, filter, .. } => {
            let filter = filter.as_ref().map_or(String::new(), |filter| format!(" ({filter})"));
            (format!("{}{filter}", name.join(".")), "has")
        }
        Source::Probe(_) => ("the probe".to_owned(), "counts"),
    };
    let mut when = Vec::new();
    // The first condition names the table or probe.
    let of = |when: &[String]| if when.is_empty() { format!("of {what} ") } else { String::new() };
    if let Some(count) = trigger.rows {
        let plural = if count == 1 { "" } else { "s" };
        when.push(format!("{what} {rows} {count} row{plural}"));
    }
    if let Some(idle) = trigger.idle {
        let oldest = if when.is_empty() { "the oldest row" } else { "its oldest" };
        when.push(format!("{oldest} {}is {} old", of(&when), duration::format(idle)));
    }
    if let Some(debounce) = trigger.new_rows {
        let any = if when.is_empty() { "any row" } else { "any" };
        let debounce = duration::format(debounce);
        when.push(format!("{any} {}is new, at least {debounce} after the last fire", of(&when)));
    }
    format!("when {}; checked every {}", when.join(", or "), duration::format(trigger.every()))
}

#[cfg(test)]
mod tests;
