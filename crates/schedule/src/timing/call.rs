//! The grammar of timings and annotations: `word(arg, arg, name: value)`, or a `word` without
//! parentheses.
//!
//! A value is bare text up to the next `,` or `)` outside parentheses, or a text in double quotes,
//! in which `""` stands for one quote. This module does not interpret arguments.

use crate::error::{ValidationError, truncated};

/// Maximum length of one call, in bytes.
const MAX_BYTES: usize = 4_000;

/// Arguments that have several values, separated by spaces. A word behind a comma would be read as an
/// argument of its own.
const LISTS: [&str; 3] = ["days", "months", "weeks"];

/// A word with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// The word, in lower case.
    pub word: String,
    /// Position of the word, in characters.
    pub at: usize,
    pub args: Vec<Arg>,
}

/// An argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arg {
    /// Name of the argument, in lower case; `None` for a positional argument.
    pub name: Option<String>,
    /// Value of the argument. In bare text, each run of white space is replaced by one space;
    /// quoted text is unchanged.
    pub value: String,
    /// Position of the value, in characters.
    pub at: usize,
}

impl Call {
    /// Returns the positional arguments, in order.
    pub fn positional(&self) -> impl Iterator<Item = &Arg> {
        self.args.iter().filter(|arg| arg.name.is_none())
    }

    /// Returns the argument of this name.
    pub fn named(&self, name: &str) -> Option<&Arg> {
        self.args.iter().find(|arg| arg.name.as_deref() == Some(name))
    }

    /// Returns an error if an argument has a name that is not in `known`, or if a name is given
    /// twice.
    pub fn only(&self, known: &[&str]) -> Result<(), ValidationError> {
        self.only_with_aliases(known, &[])
    }

    /// As [`Call::only`], but also accepts the aliases. The error for an unknown name does not
    /// suggest aliases.
    pub fn only_with_aliases(
        &self,
        known: &[&str],
        aliases: &[&str],
    ) -> Result<(), ValidationError> {
        for (i, arg) in self.args.iter().enumerate() {
            let Some(name) = &arg.name else {
                if let Some(Arg { name: Some(before), .. }) =
                    i.checked_sub(1).map(|i| &self.args[i])
                    && LISTS.contains(&before.as_str())
                    && !arg.value.starts_with(|c: char| c.is_ascii_digit())
                {
                    let value = truncated(&arg.value);
                    let message = format!("\"{value}\" follows {before}: and has no name itself");
                    return Err(ValidationError::new(arg.at, message).hint(format!(
                        "separate several values of {before} by spaces: {before}: one two"
                    )));
                }
                continue;
            };
            if !known.contains(&name.as_str()) && !aliases.contains(&name.as_str()) {
                let what = format!("argument of {}", self.word);
                let is_zone = ["tz", "timezone", "time_zone"].contains(&name.as_str());
                return Err(if is_zone && known.contains(&"zone") {
                    ValidationError::unknown(arg.at, &what, name, &["zone"])
                        .hint("did you mean zone?")
                } else if known.is_empty() {
                    ValidationError::new(arg.at, format!("{} takes no argument {name}", self.word))
                } else {
                    ValidationError::unknown(arg.at, &what, name, known)
                });
            }
            if self.args[..i].iter().any(|before| before.name == arg.name) {
                return Err(ValidationError::new(arg.at, format!("{name} is given twice")));
            }
        }
        Ok(())
    }
}

/// Parses a text that consists of a single call.
pub(crate) fn parse(text: &str) -> Result<Call, ValidationError> {
    if text.len() > MAX_BYTES {
        return Err(ValidationError::new(0, format!("the text exceeds {MAX_BYTES} bytes")));
    }
    let chars: Vec<char> = text.chars().collect();
    let mut reader = Reader { chars: &chars, at: 0 };
    reader.skip_blanks();
    let mut call = reader.word()?;
    reader.skip_blanks();
    if reader.peek() == Some('(') {
        call.args = reader.args()?;
    }
    reader.skip_blanks();
    match reader.peek() {
        None => Ok(call),
        Some(_) => Err(ValidationError::new(reader.at, "unexpected text after the timing")
            .hint("a timing is word(argument, name: value), such as daily(03:15, days: mon)")),
    }
}

/// Parses the call that begins at `at`, including its parentheses. Returns the call and the
/// position after it.
pub(crate) fn read_at(chars: &[char], at: usize) -> Result<(Call, usize), ValidationError> {
    // The text may be far longer than the call, for example a comment.
    let end = chars.len().min(at + MAX_BYTES);
    let mut reader = Reader { chars: &chars[..end], at };
    let mut call = reader.word()?;
    call.args = reader.args().map_err(|error| match error.message.as_str() {
        "unclosed parenthesis" | "unclosed quote" if end < chars.len() => {
            let message = format!("{}, or more than {MAX_BYTES} characters", error.message);
            ValidationError { message, ..error }
        }
        _ => error,
    })?;
    Ok((call, reader.at))
}

/// Returns the value as it may be written in a call. Quotes it only if this is necessary.
pub(crate) fn quoted(value: &str) -> String {
    let bare = !value.is_empty()
        && !value.contains([',', '(', ')', '"'])
        && value.split_whitespace().collect::<Vec<_>>().join(" ") == value
        && name_length(&value.chars().collect::<Vec<_>>()).is_none();
    if bare { value.to_owned() } else { format!("\"{}\"", value.replace('"', "\"\"")) }
}

/// Returns the length of the name before a `:`, if such a name begins here.
fn name_length(chars: &[char]) -> Option<usize> {
    let length = chars.iter().take_while(|c| c.is_ascii_alphabetic() || **c == '_').count();
    let begins = chars.first().is_some_and(char::is_ascii_alphabetic);
    (begins && chars.get(length) == Some(&':')).then_some(length)
}

struct Reader<'a> {
    chars: &'a [char],
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn skip_blanks(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.at += 1;
        }
    }

    fn word(&mut self) -> Result<Call, ValidationError> {
        let at = self.at;
        let rest = &self.chars[at..];
        let length = rest.iter().take_while(|c| c.is_ascii_alphabetic() || **c == '_').count();
        if !rest.first().is_some_and(char::is_ascii_alphabetic) {
            let what = if rest.is_empty() { "empty text" } else { "expected a word" };
            return Err(ValidationError::new(at, what)
                .hint("a timing begins with a word, such as daily(03:15)"));
        }
        self.at += length;
        let word = rest[..length].iter().collect::<String>().to_ascii_lowercase();
        Ok(Call { word, at, args: Vec::new() })
    }

    /// Parses the arguments, from the opening to the closing parenthesis.
    fn args(&mut self) -> Result<Vec<Arg>, ValidationError> {
        let opened_at = self.at;
        self.at += 1;
        let mut args = Vec::new();
        self.skip_blanks();
        if self.peek() == Some(')') {
            self.at += 1;
            return Ok(args);
        }
        loop {
            args.push(self.arg(opened_at)?);
            self.at += 1;
            if self.chars[self.at - 1] == ')' {
                return Ok(args);
            }
        }
    }

    /// Parses one argument, up to the `,` or `)` that ends it.
    fn arg(&mut self, opened_at: usize) -> Result<Arg, ValidationError> {
        self.skip_blanks();
        let mut name = None;
        if let Some(length) = name_length(&self.chars[self.at..]) {
            let letters = &self.chars[self.at..self.at + length];
            name = Some(letters.iter().collect::<String>().to_ascii_lowercase());
            self.at += length + 1;
            self.skip_blanks();
        }
        let at = self.at;
        let value = if self.peek() == Some('"') { self.quoted()? } else { self.bare()? };
        match self.peek() {
            Some(',' | ')') => Ok(Arg { name, value, at }),
            Some(_) => {
                Err(ValidationError::new(self.at, "unexpected text after the closing quote")
                    .hint("quote the whole value, and double each quote in it"))
            }
            None => Err(ValidationError::new(opened_at, "unclosed parenthesis")),
        }
    }

    fn bare(&mut self) -> Result<String, ValidationError> {
        let begins_at = self.at;
        let mut depth = 0_usize;
        while let Some(c) = self.peek() {
            match c {
                '(' => depth += 1,
                ')' | ',' if depth == 0 => break,
                ')' => depth -= 1,
                c if c.is_control() && !c.is_whitespace() => return Err(self.control()),
                _ => (),
            }
            self.at += 1;
        }
        let text: String = self.chars[begins_at..self.at].iter().collect();
        let value = text.split_whitespace().collect::<Vec<_>>().join(" ");
        if value.is_empty() && self.peek().is_some() {
            return Err(ValidationError::new(begins_at, "missing value"));
        }
        Ok(value)
    }

    fn quoted(&mut self) -> Result<String, ValidationError> {
        let begins_at = self.at;
        self.at += 1;
        let mut value = String::new();
        loop {
            match (self.peek(), self.chars.get(self.at + 1)) {
                (None, _) => {
                    return Err(ValidationError::new(begins_at, "unclosed quote"));
                }
                (Some('"'), Some('"')) => {
                    value.push('"');
                    self.at += 2;
                }
                (Some('"'), _) => break,
                (Some(c), _) if c.is_control() && !c.is_whitespace() => return Err(self.control()),
                (Some(c), _) => {
                    value.push(c);
                    self.at += 1;
                }
            }
        }
        self.at += 1;
        self.skip_blanks();
        Ok(value)
    }

    fn control(&self) -> ValidationError {
        ValidationError::new(self.at, "unexpected control character")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn args(text: &str) -> Vec<(Option<String>, String)> {
        parse(text).unwrap().args.into_iter().map(|arg| (arg.name, arg.value)).collect()
    }

    fn error_of(text: &str) -> (usize, String) {
        let error_of = parse(text).unwrap_err();
        (error_of.at, error_of.message)
    }

    #[test]
    fn arguments_are_positional_or_named() {
        let some = |name: &str| Some(name.to_owned());
        assert_eq!(args("manual"), []);
        assert_eq!(args(" Manual ( ) "), []);
        assert_eq!(args("daily(03:15)"), [(None, "03:15".to_owned())]);
        assert_eq!(
            args("weekly( mon ,09:00,zone:Europe/Berlin, Days:  mon\n  tue )"),
            [
                (None, "mon".to_owned()),
                (None, "09:00".to_owned()),
                (some("zone"), "Europe/Berlin".to_owned()),
                (some("days"), "mon tue".to_owned()),
            ]
        );
    }

    #[test]
    fn a_value_may_be_quoted_or_contain_parentheses() {
        assert_eq!(args(r#"a("x, ""y"" )")"#), [(None, r#"x, "y" )"#.to_owned())]);
        assert_eq!(args("a(f(x, (y)) = 1)"), [(None, "f(x, (y)) = 1".to_owned())]);
        assert_eq!(args(r#"a("", "  b ")"#), [(None, String::new()), (None, "  b ".to_owned())]);
        assert_eq!(args(r#"a(it = "x")"#), [(None, r#"it = "x""#.to_owned())]);
    }

    #[test]
    fn values_are_quoted_only_if_necessary() {
        assert_eq!(quoted("a = b.c"), "a = b.c");
        assert_eq!(quoted("a: b"), "\"a: b\"");
        assert_eq!(quoted("a  b"), "\"a  b\"");
        assert_eq!(quoted("a\"b"), "\"a\"\"b\"");
    }

    #[test]
    fn errors_have_positions() {
        assert_eq!(error_of(""), (0, "empty text".to_owned()));
        assert_eq!(error_of("  3"), (2, "expected a word".to_owned()));
        assert_eq!(error_of("ä"), (0, "expected a word".to_owned()));
        assert_eq!(error_of("a(1"), (1, "unclosed parenthesis".to_owned()));
        assert_eq!(error_of("a(1,"), (1, "unclosed parenthesis".to_owned()));
        assert_eq!(error_of("a("), (1, "unclosed parenthesis".to_owned()));
        assert_eq!(error_of("a(1,)"), (4, "missing value".to_owned()));
        assert_eq!(error_of("a(ä, b: )"), (8, "missing value".to_owned()));
        assert_eq!(error_of("a(\"ä"), (2, "unclosed quote".to_owned()));
        assert_eq!(
            error_of("a(\"b\"c)"),
            (5, "unexpected text after the closing quote".to_owned())
        );
        assert_eq!(error_of("a() b"), (4, "unexpected text after the timing".to_owned()));
        assert_eq!(error_of("a(\u{1})"), (2, "unexpected control character".to_owned()));
        assert_eq!(error_of(&"a".repeat(4001)).0, 0);
    }

    #[test]
    fn names_must_be_known_and_unique() {
        let only = |text| parse(text).unwrap().only(&["days", "zone"]).unwrap_err();
        assert_eq!(only("a(zon: x)").hint.as_deref(), Some("did you mean zone?"));
        assert_eq!(only("a(zone: x, zone: y)").message, "zone is given twice");
        assert_eq!(only("a(zone: x, zone: y)").at, 17);
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in r#"[a-b(),:" é\n]{0,40}"#) {
            if let Err(error) = parse(&text) {
                prop_assert!(error.at <= text.chars().count());
            }
        }

        #[test]
        fn quoted_values_round_trip(value in r#"[a-c(),:" é\n]{0,20}"#) {
            let call = parse(&format!("a({}, name: {0})", quoted(&value))).unwrap();
            prop_assert_eq!(&call.args[0].value, &value);
            prop_assert_eq!(&call.args[0].name, &None);
            prop_assert_eq!(&call.args[1].value, &value);
        }
    }
}
