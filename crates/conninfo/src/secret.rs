//! Texts that are not printed, because they are or may contain a password.

use std::borrow::Cow;
use std::fmt;

/// Takes the place of a value that is not shown.
const NOT_SHOWN: &str = "(not shown: it may contain a password)";

/// Characters that surround a value in a message.
const QUOTES: [char; 3] = ['"', '\'', '`'];

/// Returns whether a value that somebody has given may contain a password: it looks like a connection
/// string or a URL, although it may be meant as something else, such as the name of a file.
pub fn may_contain_password(value: &str) -> bool {
    value.contains("://") || value.to_ascii_lowercase().contains("password=")
}

/// Returns the value for a message, unless it may contain a password.
pub fn shown(value: &str) -> &str {
    if may_contain_password(value) { NOT_SHOWN } else { value }
}

/// Returns a message without the values in it that look like connection strings with a password. Such a
/// value ends with its quotes, or else with the line.
pub fn conceal(message: &str) -> Cow<'_, str> {
    if !message.split('\n').any(|line| password_at(line).is_some()) {
        return Cow::Borrowed(message);
    }
    Cow::Owned(message.split('\n').map(conceal_line).collect::<Vec<_>>().join("\n"))
}

/// Returns where a connection string with a password may begin.
fn password_at(line: &str) -> Option<usize> {
    let uri = line.find("://").filter(|at| line[*at..].contains('@'));
    let keyword = line.to_ascii_lowercase().find("password=");
    uri.into_iter().chain(keyword).min()
}

fn conceal_line(line: &str) -> Cow<'_, str> {
    let Some(at) = password_at(line) else { return Cow::Borrowed(line) };
    let is_boundary = |c: char| c.is_whitespace() || QUOTES.contains(&c);
    let start = line[..at]
        .rfind(is_boundary)
        .map_or(0, |boundary| boundary + line[boundary..].chars().next().map_or(0, char::len_utf8));
    let quote = line[..start].chars().next_back().filter(|c| QUOTES.contains(c));
    let end = quote.and_then(|quote| line.rfind(quote)).filter(|end| *end > at);
    let end = end.unwrap_or(line.len());
    Cow::Owned(format!("{}{NOT_SHOWN}{}", &line[..start], &line[end..]))
}

/// A text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns both texts, separated by a space.
    pub(crate) fn joined(first: Option<&Self>, second: Option<&Self>) -> Option<Self> {
        match (first, second) {
            (Some(first), Some(second)) => Some(Self(format!("{} {}", first.0, second.0))),
            (one, other) => one.or(other).cloned(),
        }
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_looks_like_a_connection_string_is_not_shown() {
        for value in
            ["postgres://u:Xyzzy@h/d", "host=h PASSWORD=Xyzzy", "https://hooks.example/Xyzzy"]
        {
            assert_eq!(shown(value), NOT_SHOWN);
        }
        assert_eq!(shown("/run/secrets/database-url"), "/run/secrets/database-url");
    }

    #[test]
    fn a_message_keeps_its_text_around_a_password() {
        for (message, expected) in [
            ("file \"postgres://u:Xyzzy@h\": absent", format!("file \"{NOT_SHOWN}\": absent")),
            ("file \"postgres://u:Xy\"zzy@h\": absent", format!("file \"{NOT_SHOWN}\": absent")),
            ("could not read postgres://u:Xy zzy@h: absent", format!("could not read {NOT_SHOWN}")),
            ("a\nb 'host=h password=Xy zzy'\nc", format!("a\nb 'host=h {NOT_SHOWN}\nc")),
            ("\u{a0}x://u:Xyzzy@h", format!("\u{a0}{NOT_SHOWN}")),
        ] {
            assert_eq!(conceal(message), expected);
        }
        for harmless in ["", "such as https://tempo.example/{trace_id}", "no @ at all", "a@b"] {
            assert_eq!(conceal(harmless), harmless);
        }
    }
}
