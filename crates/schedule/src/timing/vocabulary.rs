//! Fixed word lists of schedules (days of the week, months, ordinals), and times of day.

use std::fmt;

use crate::error::{ValidationError, truncated};

/// Words in order, each with a short and a full form.
pub(crate) struct Vocabulary {
    what: &'static str,
    short: &'static [&'static str],
    full: &'static [&'static str],
    /// Words that stand for several other words.
    groups: &'static [(&'static str, WordSet)],
    ranges: bool,
}

/// Some of the words of a vocabulary; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WordSet(u16);

pub(crate) const MONDAY_TO_FRIDAY: WordSet = WordSet(0b001_1111);
pub(crate) const WEEKEND: WordSet = WordSet(0b110_0000);

/// Days of the week; Monday has the number 0.
pub(crate) const WEEKDAY: Vocabulary = Vocabulary {
    what: "day of the week",
    short: &["mon", "tue", "wed", "thu", "fri", "sat", "sun"],
    full: &["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"],
    groups: &[("weekdays", MONDAY_TO_FRIDAY), ("weekend", WEEKEND)],
    ranges: true,
};

/// Months; January has the number 0.
pub(crate) const MONTH: Vocabulary = Vocabulary {
    what: "month",
    short: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    full: &[
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ],
    groups: &[],
    ranges: true,
};

/// Ordinals; first has the number 0, fifth has 4, and last has [`LAST`].
pub(crate) const ORDINAL: Vocabulary = Vocabulary {
    what: "ordinal",
    short: &["first", "second", "third", "fourth", "fifth", "last"],
    full: &["first", "second", "third", "fourth", "fifth", "last"],
    groups: &[],
    ranges: false,
};

/// Number of `last` among the ordinals.
pub(crate) const LAST: u8 = 5;

impl WordSet {
    pub fn holds(self, place: u8) -> bool {
        self.0 & (1 << place) != 0
    }

    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Vocabulary {
    /// Parses one word or one range; `None` if the text is neither.
    pub fn read(&self, text: &str) -> Option<WordSet> {
        let text = text.to_lowercase();
        if let Some((_, set)) = self.groups.iter().find(|(group, _)| *group == text) {
            return Some(*set);
        }
        let place = |word: &str| {
            let same = |known: &&str| known.eq_ignore_ascii_case(word);
            self.short.iter().position(same).or_else(|| self.full.iter().position(same))
        };
        let Some((from, to)) = text.split_once('-') else {
            return Some(WordSet(1 << place(&text)?));
        };
        let (mut at, to) = (place(from)?, place(to)?);
        let mut set = WordSet(1 << at);
        while at != to {
            at = (at + 1) % self.short.len();
            set = set.and(WordSet(1 << at));
        }
        self.ranges.then_some(set)
    }

    /// Parses words and ranges separated by blanks.
    ///
    /// # Errors
    /// Fails on a word that is not in this vocabulary.
    pub fn read_list(&self, text: &str, at: usize) -> Result<WordSet, ValidationError> {
        let mut set = None;
        for word in text.replace(" - ", "-").split_whitespace() {
            let more = self.read(word).ok_or_else(|| self.unknown(word, at))?;
            set = Some(set.map_or(more, |set: WordSet| set.and(more)));
        }
        set.ok_or_else(|| ValidationError::new(at, format!("a {} is missing", self.what)))
    }

    pub fn unknown(&self, word: &str, at: usize) -> ValidationError {
        ValidationError::unknown(at, self.what, word, self.short)
    }

    fn places(&self, set: WordSet) -> Vec<usize> {
        (0..self.short.len()).filter(|place| set.0 & (1 << place) != 0).collect()
    }

    /// Returns the short form of each word, in order.
    pub fn short(&self, set: WordSet) -> Vec<&'static str> {
        self.places(set).into_iter().map(|place| self.short[place]).collect()
    }

    /// Returns the full form of each word, in order.
    pub fn full(&self, set: WordSet) -> Vec<&'static str> {
        self.places(set).into_iter().map(|place| self.full[place]).collect()
    }

    /// Returns the words in the syntax of a schedule. Three or more consecutive words become a
    /// range.
    pub fn listed(&self, set: WordSet) -> Vec<String> {
        self.in_rows(set, self.short, "-")
    }

    /// Returns the words in English: "Monday to Friday and Sunday".
    pub fn described(&self, set: WordSet) -> String {
        and(&self.in_rows(set, self.full, " to "))
    }

    fn in_rows(&self, set: WordSet, words: &[&str], to: &str) -> Vec<String> {
        let mut found = Vec::new();
        let mut left = &self.places(set)[..];
        while let Some(first) = left.first() {
            let row = left.iter().zip(*first..).take_while(|(place, next)| *place == next).count();
            let row = if row >= 3 && self.ranges { row } else { 1 };
            let last = words[left[row - 1]];
            found.push(match row {
                1 => last.to_owned(),
                _ => format!("{}{to}{last}", words[*first]),
            });
            left = &left[row..];
        }
        found
    }
}

/// Joins the words: "a", "a and b", "a, b and c".
pub(crate) fn and(words: &[impl AsRef<str>]) -> String {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    match words.split_last() {
        None => String::new(),
        Some((last, [])) => (*last).to_owned(),
        Some((last, before)) => format!("{} and {last}", before.join(", ")),
    }
}

/// A second of the day, counted on the wall clock from 00:00:00.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimeOfDay(pub u32);

/// Number of seconds of a day on the wall clock.
pub(crate) const DAY: u32 = 86_400;

impl TimeOfDay {
    /// Parses `HH:MM` or `HH:MM:SS`. `at` is the position that errors name.
    pub fn read(text: &str, at: usize) -> Result<Self, ValidationError> {
        let parts: Vec<&str> = text.split(':').collect();
        let number = |part: &&str| {
            let plain = part.len() <= 2 && part.bytes().all(|b| b.is_ascii_digit());
            plain.then(|| part.parse::<u32>().ok()).flatten()
        };
        let numbers: Option<Vec<u32>> = parts.iter().map(number).collect();
        let form = || {
            let message = format!("\"{}\" is not a time of day", truncated(text));
            ValidationError::new(at, message)
        };
        let (hour, minute, second) = match numbers.as_deref() {
            Some([hour, minute]) => (*hour, *minute, 0),
            Some([hour, minute, second]) => (*hour, *minute, *second),
            _ => return Err(form().hint("write HH:MM or HH:MM:SS, such as 09:00")),
        };
        if hour > 23 || minute > 59 || second > 59 {
            return Err(form().hint("expected a time from 00:00 to 23:59:59"));
        }
        let time = Self(hour * 3600 + minute * 60 + second);
        if parts.iter().any(|part| part.len() != 2) {
            return Err(form().hint(format!("did you mean {time}?")));
        }
        Ok(time)
    }

    /// Returns whether the text looks like a time of day.
    pub fn begins(text: &str) -> bool {
        text.starts_with(|c: char| c.is_ascii_digit()) && text.contains(':')
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 3600, self.0 / 60 % 60)?;
        if !self.0.is_multiple_of(60) {
            write!(f, ":{:02}", self.0 % 60)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_contain_words_and_ranges_that_may_wrap() {
        let days = |text| WEEKDAY.short(WEEKDAY.read_list(text, 0).unwrap()).join(" ");
        assert_eq!(days("fri MON tuesday"), "mon tue fri");
        assert_eq!(days("sat-mon"), "mon sat sun");
        assert_eq!(days("weekdays sun"), "mon tue wed thu fri sun");
        assert_eq!(days("tue-tue"), "tue");
        assert_eq!(days("mon - wed"), "mon tue wed");
        let months = |text| MONTH.short(MONTH.read_list(text, 0).unwrap()).join(" ");
        assert_eq!(months("nov-feb june"), "jan feb jun nov dec");
        assert!(ORDINAL.read("first-third").is_none());
        let refused = WEEKDAY.read_list("mon thi", 7).unwrap_err();
        assert_eq!(refused.message, "unknown day of the week \"thi\"");
        assert!(refused.hint.is_some_and(|hint| hint.contains("thu")));
    }

    #[test]
    fn consecutive_words_are_described_as_ranges() {
        let set = |text| WEEKDAY.read_list(text, 0).unwrap();
        assert_eq!(WEEKDAY.described(set("mon-fri sun")), "Monday to Friday and Sunday");
        assert_eq!(WEEKDAY.described(set("mon tue thu")), "Monday, Tuesday and Thursday");
        assert_eq!(WEEKDAY.listed(set("mon-fri sun")), ["mon-fri", "sun"]);
    }

    #[test]
    fn times_of_day_have_two_digits_each() {
        let read = |text| TimeOfDay::read(text, 0).map(|time| time.to_string());
        assert_eq!(read("09:05").unwrap(), "09:05");
        assert_eq!(read("23:59:59").unwrap(), "23:59:59");
        assert_eq!(read("09:05:00").unwrap(), "09:05");
        assert_eq!(read("9:05").unwrap_err().hint.unwrap(), "did you mean 09:05?");
        for wrong in ["24:00", "12:60", "12", "12:00:60", "", ":", "12:0x", "1:2:3:4", "+1:00"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
