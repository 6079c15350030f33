//! Splits the command of a crontab line into words, as cron and the shell do.

/// A word of a command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// A word without quotes and escapes.
    Plain(String),
    /// A redirection of output to a file or to another output.
    Redirection,
}

/// Splits a command into words.
///
/// # Errors
/// Returns what only a shell can execute: another command, a substitution, input.
pub(super) fn split(command: &str) -> Result<Vec<Word>, String> {
    let text = unescape_percent(command)?;
    let mut words = Vec::new();
    let mut word = None::<String>;
    let mut chars = text.chars().peekable();
    // Whether the next word is the target of a redirection.
    let mut redirected = false;
    let mut finish = |word: &mut Option<String>, redirected: &mut bool| {
        if let Some(text) = word.take() {
            words.push(if *redirected { Word::Redirection } else { Word::Plain(text) });
            *redirected = false;
        }
    };
    while let Some(c) = chars.next() {
        match c {
            ' ' | '\t' => finish(&mut word, &mut redirected),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next().ok_or("a quote is not closed")? {
                        '\'' => break,
                        other => word.push(other),
                    }
                }
            }
            '"' => double_quoted(&mut chars, word.get_or_insert_default())?,
            '\\' => word.get_or_insert_default().push(chars.next().ok_or("a lone backslash")?),
            '>' => {
                // A number before the sign is that of the output.
                if word.as_deref().is_some_and(|it| it == "1" || it == "2" || it == "&") {
                    word = None;
                }
                finish(&mut word, &mut redirected);
                chars.next_if_eq(&'>');
                chars.next_if_eq(&'&');
                redirected = true;
            }
            '&' if chars.peek() == Some(&'>') => {}
            '#' if word.is_none() => break,
            '$' | '`' => return Err("a variable or substitution of the shell".to_owned()),
            '|' | '&' | ';' | '(' | ')' | '\n' => return Err("more than one command".to_owned()),
            '<' => return Err("input for the command".to_owned()),
            '*' | '?' | '[' | '{' => return Err("a pattern of file names".to_owned()),
            other => word.get_or_insert_default().push(other),
        }
    }
    finish(&mut word, &mut redirected);
    if redirected { Err("a redirection without a file".to_owned()) } else { Ok(words) }
}

/// Reads up to the closing quote.
fn double_quoted(chars: &mut impl Iterator<Item = char>, word: &mut String) -> Result<(), String> {
    let open = "a quote is not closed";
    loop {
        match chars.next().ok_or(open)? {
            '"' => return Ok(()),
            '\\' => match chars.next().ok_or(open)? {
                escaped @ ('"' | '\\' | '$' | '`') => word.push(escaped),
                '\n' => {}
                other => word.extend(['\\', other]),
            },
            '$' | '`' => return Err("a variable or substitution of the shell".to_owned()),
            other => word.push(other),
        }
    }
}

/// cron ends the command at a `%`, and makes the rest its input; `\%` is a percent sign.
fn unescape_percent(command: &str) -> Result<String, String> {
    let unescaped = command.replace("\\%", "\0");
    if unescaped.contains('%') {
        return Err("input for the command, after a percent sign".to_owned());
    }
    Ok(unescaped.replace('\0', "%"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plain(command: &str) -> Result<String, String> {
        let shown = |word: &Word| match word {
            Word::Plain(text) => format!("[{text}]"),
            Word::Redirection => ">".to_owned(),
        };
        split(command).map(|words| words.iter().map(shown).collect())
    }

    #[test]
    fn words_are_those_of_the_shell() {
        for (command, expected) in [
            ("psql  -c 'SELECT 1; SELECT \"a\"'", "[psql][-c][SELECT 1; SELECT \"a\"]"),
            (r#"psql -c "SELECT '\$1', \"a\"""#, "[psql][-c][SELECT '$1', \"a\"]"),
            (r"psql -c SELECT\ 1", "[psql][-c][SELECT 1]"),
            ("psql -c'a'\"b\"c", "[psql][-cabc]"),
            ("psql >/dev/null 2>&1", "[psql]>>"),
            ("psql &> x", "[psql]>"),
            ("psql >> '/var/log/x y' # comment", "[psql]>"),
            ("psql -c 'x'  2> e", "[psql][-c][x]>"),
            (r"date '+\%d'", "[date][+%d]"),
            ("psql -c ''", "[psql][-c][]"),
        ] {
            assert_eq!(plain(command).as_deref(), Ok(expected), "{command}");
        }
    }

    #[test]
    fn what_only_a_shell_can_do_is_refused() {
        for command in [
            "psql -c \"SELECT '$HOME'\"",
            "psql -c `date`",
            "cd /x && psql",
            "psql | mail",
            "psql; psql",
            "psql < file",
            "psql%SELECT 1",
            "psql -f *.sql",
            "psql -c 'x",
            "psql -c \"x",
            "psql &",
            "psql >",
            "(psql)",
            "psql \\",
        ] {
            assert!(split(command).is_err(), "{command}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_split_or_refused(text in r#"[a-c '"\\%$>&12#é]{0,30}"#) {
            drop(split(&text));
        }
    }
}
