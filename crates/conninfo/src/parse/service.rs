//! The connection service file: named sections of settings, such as `[reporting]`.

use crate::error::ConnectError;
use crate::parse::environment::Environment;
use crate::parse::keyword::{Pairs, known};
use crate::secret::shown;
use std::path::{Path, PathBuf};

/// Loads the settings of a service. If a keyword is repeated, the first value counts.
///
/// `file` is the file that `servicefile` or PGSERVICEFILE names, which takes the place of
/// `~/.pg_service.conf`. If this file does not define the service, the system-wide file is read.
pub(crate) fn load(
    service: &str,
    file: Option<&str>,
    env: &Environment,
) -> Result<Pairs, ConnectError> {
    let own = match file {
        Some(file) => Some(PathBuf::from(file)),
        None => env.below_home(".pg_service.conf").filter(|path| path.exists()),
    };
    if let Some(path) = own
        && let Some(pairs) = group_in(&path, service)?
    {
        return Ok(pairs);
    }
    let system = env.system_service_file();
    if system.exists()
        && let Some(pairs) = group_in(&system, service)?
    {
        return Ok(pairs);
    }
    Err(ConnectError::usage_with_hint(
        format!("definition of service \"{}\" not found", shown(service)),
        "services are defined in ~/.pg_service.conf or in the file named by PGSERVICEFILE",
    ))
}

fn group_in(path: &Path, service: &str) -> Result<Option<Pairs>, ConnectError> {
    let name = path.to_string_lossy();
    let shown = shown(&name);
    let text = std::fs::read_to_string(path).map_err(|error| {
        ConnectError::usage(format!("could not read service file \"{shown}\": {error}"))
    })?;
    group(&text, service).map_err(|ParseError { line, message, hint }| ConnectError::Usage {
        message: format!("{message} in service file \"{shown}\", line {line}"),
        hint,
    })
}

#[derive(Debug)]
struct ParseError {
    line: usize,
    message: String,
    hint: Option<String>,
}

/// Parses the settings of one section. Values are taken as they are, without quotes or escapes.
fn group(text: &str, service: &str) -> Result<Option<Pairs>, ParseError> {
    let mut found: Option<Pairs> = None;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            if found.is_some() {
                break;
            }
            if rest.strip_prefix(service).is_some_and(|rest| rest.starts_with(']')) {
                found = Some(Pairs::new());
            }
            continue;
        }
        let Some(pairs) = &mut found else { continue };
        let (keyword, value) = setting(line).map_err(|(message, hint)| ParseError {
            line: index + 1,
            message,
            hint,
        })?;
        if pairs.iter().all(|(earlier, _)| *earlier != keyword) {
            pairs.push((keyword, value));
        }
    }
    Ok(found)
}

fn setting(line: &str) -> Result<(&'static str, String), (String, Option<String>)> {
    if line.starts_with("ldap") {
        return Err(("LDAP lookup, which is not supported,".to_owned(), None));
    }
    let Some((keyword, value)) = line.split_once('=') else {
        return Err((
            "syntax error".to_owned(),
            Some("lines are of the form key=value".to_owned()),
        ));
    };
    if matches!(keyword, "service" | "servicefile") {
        return Err(("nested service specification".to_owned(), None));
    }
    let keyword = known(keyword).map_err(|error| {
        let hint = match keyword.trim_ascii() == keyword {
            true => error.hint(),
            false => Some("no spaces are allowed around \"=\"".to_owned()),
        };
        (error.to_string(), hint)
    })?;
    Ok((keyword, value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
# comment
[other]
nonsense that nobody reads
[mine]
 host=a b
dbname='quoted'
host=second

[mine]
port=1
";

    #[test]
    fn values_are_verbatim_and_the_first_wins() {
        let found = group(FILE, "mine").unwrap().unwrap();
        assert_eq!(found, [("host", "a b".to_owned()), ("dbname", "'quoted'".to_owned())]);
        assert!(group(FILE, "min").unwrap().is_none());
    }

    #[test]
    fn syntax_errors_name_the_line() {
        for (line, message) in [
            ("service=x", "nested"),
            ("hots=x", "unknown connection option \"hots\""),
            ("host = x", "unknown connection option"),
            ("host", "syntax error"),
            ("ldap://x", "LDAP"),
        ] {
            let parse_error = group(&format!("[a]\n{line}\n"), "a").unwrap_err();
            assert!(parse_error.message.contains(message), "{parse_error:?}");
            assert_eq!(parse_error.line, 2);
        }
    }
}
