//! Parses connection strings of the form `key=value`, and determines which of the three forms a
//! string has.
//!
//! The grammar is that of libpq's `conninfo_parse`. Spaces around `=` are allowed, values with
//! spaces are in single quotes, and a backslash escapes the next character. If a keyword is
//! repeated, the last value counts.

use crate::error::ConnectError;
use crate::parse::keyword::{self, Pairs};
use crate::parse::uri;

/// Parses a connection string. A text without `=` and without a URI scheme is a database name.
pub(crate) fn parse(text: &str) -> Result<Pairs, ConnectError> {
    if let Some(rest) = uri::after_scheme(text) {
        uri::parse(rest)
    } else if uri::has_scheme(text) {
        Err(ConnectError::usage_with_hint(
            "unknown URI scheme in connection string",
            "begin the URI with postgresql:// or postgres://",
        ))
    } else if text.contains('=') {
        Parser { text, at: 0, secret_before: false }.pairs()
    } else if text.is_empty() {
        Ok(Pairs::new())
    } else {
        Ok(vec![("dbname", text.to_owned())])
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    /// Whether the last value was an unquoted password. The text after it may then be the rest of
    /// the password.
    secret_before: bool,
}

/// Returns whether C's `isspace` accepts the character.
fn blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\x0b' | '\x0c' | '\r')
}

impl Parser<'_> {
    fn pairs(mut self) -> Result<Pairs, ConnectError> {
        let mut pairs = Pairs::new();
        loop {
            self.skip_blanks();
            if self.peek().is_none() {
                return Ok(pairs);
            }
            let start = self.at;
            let keyword = self.keyword(start)?;
            self.skip_blanks();
            let quoted = self.peek() == Some('\'');
            let value = if quoted { self.quoted_value(keyword)? } else { self.plain_value() };
            self.secret_before = keyword == "password" && !quoted;
            pairs.push((keyword, value));
        }
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn skip_blanks(&mut self) {
        while self.peek().is_some_and(blank) {
            self.next();
        }
    }

    /// Parses the keyword that begins at `start`, and the `=` after it.
    fn keyword(&mut self, start: usize) -> Result<&'static str, ConnectError> {
        while self.peek().is_some_and(|c| c != '=' && !blank(c)) {
            self.next();
        }
        let name = &self.text[start..self.at];
        self.skip_blanks();
        if self.next() != Some('=') {
            return Err(self.quoting_error("missing \"=\"", start));
        }
        if self.secret_before && keyword::find(name).is_none() {
            return Err(self.quoting_error("unknown connection option", start));
        }
        keyword::known(name)
    }

    fn quoting_error(&self, problem: &str, at: usize) -> ConnectError {
        let position = self.text[..at].chars().count() + 1;
        ConnectError::usage_with_hint(
            format!("{problem} in connection string, character {position}"),
            "enclose values with spaces in single quotes, and write \\' and \\\\ inside",
        )
    }

    fn plain_value(&mut self) -> String {
        let mut value = String::new();
        while let Some(c) = self.next() {
            match c {
                c if blank(c) => break,
                '\\' => value.extend(self.next()),
                c => value.push(c),
            }
        }
        value
    }

    fn quoted_value(&mut self, keyword: &str) -> Result<String, ConnectError> {
        self.next();
        let mut value = String::new();
        loop {
            match self.next() {
                None => {
                    return Err(ConnectError::usage(format!(
                        "unterminated quoted string in the value of \"{keyword}\""
                    )));
                }
                Some('\'') => return Ok(value),
                Some('\\') => value.extend(self.next()),
                Some(c) => value.push(c),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        let pairs = parse(text).unwrap();
        pairs.into_iter().map(|(keyword, value)| (keyword.to_owned(), value)).collect()
    }

    fn pair(keyword: &str, value: &str) -> (String, String) {
        (keyword.to_owned(), value.to_owned())
    }

    #[test]
    fn quotes_escapes_and_spaces_follow_libpq() {
        assert_eq!(
            pairs(r"user = 'o\'neil' password='a \\ b'port=1  host=a\ b"),
            [
                pair("user", "o'neil"),
                pair("password", r"a \ b"),
                pair("port", "1"),
                pair("host", "a b")
            ]
        );
        assert_eq!(pairs("host="), [pair("host", "")]);
        assert_eq!(pairs("mydb"), [pair("dbname", "mydb")]);
        assert_eq!(pairs(""), []);
    }

    #[test]
    fn an_unknown_keyword_is_named_with_its_neighbour() {
        let error = parse("sslmod=require").unwrap_err();
        assert_eq!(error.to_string(), "unknown connection option \"sslmod\"");
        assert_eq!(error.hint().unwrap(), "did you mean \"sslmode\"?");
        assert!(error.is_usage());
    }

    #[test]
    fn a_uri_with_another_scheme_is_refused_and_not_shown() {
        for text in [
            "postgressql://u:hunter2@h/d",
            "pg://u:hunter2@h/d",
            "POSTGRES://u:hunter2@h/d?sslmode=require",
            "jdbc:postgresql://h/d?password=hunter2",
            " postgresql://u:hunter2@h/d",
        ] {
            let error = parse(text).unwrap_err();
            let shown = format!("{error} {error:?} {}", error.hint().unwrap());
            assert!(
                shown.contains("unknown URI scheme") && shown.contains("postgresql://"),
                "{shown}"
            );
            assert!(error.is_usage() && !shown.contains("hunter2"), "{shown}");
        }
        assert_eq!(pairs("password=a://b"), [pair("password", "a://b")]);
    }

    #[test]
    fn no_error_repeats_a_badly_quoted_password() {
        for text in [
            "password=open sesame",
            "password=open sesame=1",
            "password=open s3same=1",
            "password='open sesame",
            "user=x password=open sesame host=y",
        ] {
            let error = parse(text).unwrap_err();
            let shown = format!("{error} {error:?} {:?}", error.hint());
            assert!(!shown.contains("same") && !shown.contains("open s"), "{shown}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in ".*") {
            let _ = parse(&text);
            let _ = parse(&format!("postgres://{text}"));
            let _ = parse(&format!("host={text}"));
        }

        #[test]
        fn quoted_values_round_trip(user in ".*", password in ".*") {
            let quote = |value: &str| value.replace('\\', r"\\").replace('\'', r"\'");
            let text = format!("user='{}' password = '{}'", quote(&user), quote(&password));
            prop_assert_eq!(pairs(&text), [pair("user", &user), pair("password", &password)]);
        }
    }
}
