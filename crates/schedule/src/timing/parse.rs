//! Converts a call to a cadence.

use jiff::civil::{Date, date};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, tz::Offset};

use crate::error::{ValidationError, truncated};
use crate::timing::arguments;
use crate::timing::cadence::Cadence;
use crate::timing::call::{Arg, Call};
use crate::timing::clock::{Clock, Step};
use crate::timing::cron::Cron;
use crate::timing::filter::{Filter, Window};
use crate::timing::rule::{Interval, MonthDays, Rule};
use crate::timing::vocabulary::{MONTH, ORDINAL, TimeOfDay, WEEKDAY, WordSet};
use crate::timing::zone;

/// The words with which cadences begin.
pub(crate) const CADENCES: &[&str] =
    &["daily", "every", "weekly", "monthly", "nth", "once", "cron"];

const NAMES: &[&str] =
    &["days", "months", "weeks", "between", "zone", "key", "from", "until", "every"];

/// Maximum number of days, weeks or months between two fires.
const MAX_PERIODS: u16 = 1000;

/// Converts a call whose word is one of [`CADENCES`].
///
/// # Errors
/// Fails if arguments are invalid, missing or superfluous, or the cadence never fires.
pub(crate) fn cadence(call: &Call) -> Result<Cadence, ValidationError> {
    let repeats = matches!(call.word.as_str(), "daily" | "weekly" | "monthly" | "nth");
    call.only(match call.word.as_str() {
        _ if repeats => NAMES,
        "once" => &NAMES[..NAMES.len() - 3],
        _ => &NAMES[..NAMES.len() - 1],
    })?;
    let (rule, clock) = match call.word.as_str() {
        "daily" => (Rule::Daily, times(call, call.positional().collect())?),
        "every" => (Rule::Every, every(call)?),
        "weekly" => weekly(call)?,
        "monthly" => monthly(call)?,
        "nth" => nth(call)?,
        "once" => once(call)?,
        _ => {
            let arg = only_one(call, "cron(\"30 2 * * 1-5\")")?;
            let (cron, clock) = Cron::read(&arg.value, arg.at)?;
            (Rule::Cron(cron), clock)
        }
    };
    let cadence = Cadence {
        rule,
        clock,
        interval: interval(call)?,
        filter: filter(call)?,
        zone: call.named("zone").map_or(Ok(TimeZone::UTC), |arg| zone::read(&arg.value, arg.at))?,
        key: arguments::key(call)?,
    };
    if fires(&cadence) {
        Ok(cadence)
    } else {
        Err(ValidationError::new(call.at, "this timing never fires")
            .hint("no date and time fulfils all conditions of the timing; remove one of them"))
    }
}

/// Returns whether the cadence fires between 2000 and 2100; for a single date, whether it fires at
/// all.
fn fires(cadence: &Cadence) -> bool {
    let start = |year| Offset::UTC.to_timestamp(date(year, 1, 1).at(0, 0, 0, 0));
    let (after, limit) = match (&cadence.rule, start(2000), start(2100)) {
        (Rule::Once(_), ..) | (_, Err(_), _) | (_, _, Err(_)) => (Timestamp::MIN, Timestamp::MAX),
        (_, Ok(from), Ok(until)) => (from - SignedDuration::from_secs(1), until),
    };
    cadence.next_fire_until(after, limit).is_some()
}

fn weekly(call: &Call) -> Result<(Rule, Clock), ValidationError> {
    let (words, times_of_day) = split(call);
    let mut days = None;
    for arg in words {
        days = join(days, WEEKDAY.read(&arg.value).ok_or_else(|| not_one(call, arg, "weekday"))?);
    }
    let days = days.ok_or_else(|| missing(call, "a day of the week", "weekly(mon, thu, 09:00)"))?;
    Ok((Rule::Weekly(days), times(call, times_of_day)?))
}

fn monthly(call: &Call) -> Result<(Rule, Clock), ValidationError> {
    let (words, times_of_day) = split(call);
    let mut days = MonthDays::default();
    for arg in words {
        days = days.with(&arg.value).ok_or_else(|| {
            let message = format!("\"{}\" is not a day of the month", truncated(&arg.value));
            ValidationError::new(arg.at, message).hint("write a number from 1 to 31, or last")
        })?;
    }
    if days.none() {
        return Err(missing(call, "a day of the month", "monthly(1, last, 06:00)"));
    }
    Ok((Rule::Monthly(days), times(call, times_of_day)?))
}

fn nth(call: &Call) -> Result<(Rule, Clock), ValidationError> {
    let (words, times_of_day) = split(call);
    let (mut ordinals, mut weekdays) = (None, None);
    for arg in words {
        if let Some(ordinal) = ORDINAL.read(&arg.value) {
            ordinals = join(ordinals, ordinal);
        } else {
            let day = WEEKDAY.read(&arg.value);
            weekdays = join(weekdays, day.ok_or_else(|| not_one(call, arg, "ordinal or weekday"))?);
        }
    }
    let example = "nth(first, mon, 09:00)";
    let ordinals = ordinals.ok_or_else(|| missing(call, "first to fifth or last", example))?;
    let weekdays = weekdays.ok_or_else(|| missing(call, "a day of the week", example))?;
    Ok((Rule::Nth { ordinals, weekdays }, times(call, times_of_day)?))
}

fn once(call: &Call) -> Result<(Rule, Clock), ValidationError> {
    let arg = only_one(call, "once(2026-06-01 09:00)")?;
    let form = || {
        let message = format!("\"{}\" is not a date and a time of day", truncated(&arg.value));
        ValidationError::new(arg.at, message).hint("such as 2026-06-01 09:00")
    };
    let (date, time) = arg.value.split_once([' ', 'T', 't']).ok_or_else(form)?;
    let time = TimeOfDay::read(time, arg.at)?;
    Ok((Rule::Once(read_date(date, arg.at)?), Clock::At(vec![time])))
}

fn every(call: &Call) -> Result<Clock, ValidationError> {
    let arg = only_one(call, "every(5 minutes)")?;
    Step::read(&arg.value, arg.at).map(Clock::Every)
}

/// Separates the positional arguments into words and times of day.
fn split(call: &Call) -> (Vec<&Arg>, Vec<&Arg>) {
    let (times, words) = call.positional().partition(|arg| TimeOfDay::begins(&arg.value));
    (words, times)
}

fn join(some: Option<WordSet>, more: WordSet) -> Option<WordSet> {
    Some(some.map_or(more, |some| some.and(more)))
}

fn times(call: &Call, args: Vec<&Arg>) -> Result<Clock, ValidationError> {
    let mut times = Vec::new();
    for arg in args {
        times.push(TimeOfDay::read(&arg.value, arg.at).map_err(|error| {
            match WEEKDAY.read(&arg.value) {
                Some(_) => error.hint("separate days with blanks: days: mon wed fri"),
                None => error,
            }
        })?);
    }
    if times.is_empty() {
        return Err(missing(call, "a time of day", "09:00"));
    }
    times.sort();
    times.dedup();
    Ok(Clock::At(times))
}

fn only_one<'a>(call: &'a Call, example: &str) -> Result<&'a Arg, ValidationError> {
    let mut args = call.positional();
    match (args.next(), args.next()) {
        (Some(arg), None) => Ok(arg),
        (None, _) => Err(missing(call, "an argument", example)),
        (_, Some(second)) => {
            let message = format!("{}(…) takes exactly one argument, without a name", call.word);
            let quotes = if call.word == "cron" {
                "put an expression with a comma in quotes, for example "
            } else {
                ""
            };
            Err(ValidationError::new(second.at, message).hint(format!("{quotes}{example}")))
        }
    }
}

fn missing(call: &Call, what: &str, example: &str) -> ValidationError {
    ValidationError::new(call.at, format!("{} needs {what}", call.word))
        .hint(format!("such as {example}"))
}

fn not_one(call: &Call, arg: &Arg, what: &str) -> ValidationError {
    let error = if call.word == "nth" {
        let known =
            ["first", "second", "third", "fourth", "fifth", "last", "mon", "tue", "wed", "thu"];
        let known = [&known[..], &["fri", "sat", "sun"]].concat();
        ValidationError::unknown(arg.at, what, &arg.value, &known)
    } else {
        WEEKDAY.unknown(&arg.value, arg.at)
    };
    let words: Vec<&str> = arg.value.split_whitespace().collect();
    let known = |word: &&str| WEEKDAY.read(word).or_else(|| ORDINAL.read(word)).is_some();
    if words.len() > 1 && words.iter().all(known) {
        return error.hint(format!("separate them with commas: {}", words.join(", ")));
    }
    error
}

/// Reads `every`, which counts from the date in `from`.
fn interval(call: &Call) -> Result<Option<Interval>, ValidationError> {
    let from = named_date(call, "from")?;
    let Some(every) = call.named("every") else { return Ok(None) };
    let digits = every.value.bytes().all(|b| b.is_ascii_digit());
    match every.value.parse::<u16>() {
        Ok(count) if digits && (1..=MAX_PERIODS).contains(&count) => {
            Ok(Some(Interval { count, from }))
        }
        _ => Err(ValidationError::new(every.at, "every must be a number from 1 to 1000")
            .hint("every counts days in daily, weeks in weekly, months in monthly and nth")),
    }
}

fn filter(call: &Call) -> Result<Filter, ValidationError> {
    let list = |name: &str, words: &crate::timing::vocabulary::Vocabulary| {
        call.named(name).map(|arg| words.read_list(&arg.value, arg.at)).transpose()
    };
    let between = call.named("between").map(|arg| Window::read(&arg.value, arg.at)).transpose()?;
    let (from, until) = (named_date(call, "from")?, named_date(call, "until")?);
    if let (Some(arg), true) = (call.named("until"), from > until) {
        return Err(ValidationError::new(arg.at, "until is before from"));
    }
    Ok(Filter {
        from,
        until,
        days: list("days", &WEEKDAY)?,
        months: list("months", &MONTH)?,
        weeks: list("weeks", &ORDINAL)?,
        between,
    })
}

fn named_date(call: &Call, name: &str) -> Result<Option<Date>, ValidationError> {
    call.named(name).map(|arg| read_date(&arg.value, arg.at)).transpose()
}

/// Parses `YYYY-MM-DD`.
fn read_date(text: &str, at: usize) -> Result<Date, ValidationError> {
    let form = text.len() == 10
        && text.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        });
    let date = || text.parse::<Date>().ok().filter(|date| date.year() > 0);
    form.then(date).flatten().ok_or_else(|| {
        ValidationError::new(at, format!("\"{}\" is not a date", truncated(text)))
            .hint("write YYYY-MM-DD, such as 2026-01-05")
    })
}
