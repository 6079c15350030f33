//! The password file: lines of `hostname:port:database:username:password`.

use crate::secret::shown;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A password file that passed the permission checks.
pub(crate) struct Passfile {
    text: String,
}

/// The values to compare with the fields of each line.
pub(crate) struct PasswordLookup<'a> {
    /// The names under which the host may be listed.
    pub(crate) hosts: &'a [&'a str],
    pub(crate) port: u16,
    pub(crate) dbname: &'a str,
    pub(crate) user: &'a str,
}

impl Passfile {
    /// Reads the file. Returns `None` if the file does not exist. Returns `None` with a warning if
    /// the file must not be used, because other users can read it or it is not a plain file.
    pub(crate) fn read(path: &Path, warnings: &mut Vec<String>) -> Option<Self> {
        let name = path.to_string_lossy();
        let shown = shown(&name);
        let metadata = std::fs::metadata(path).ok()?;
        if !metadata.is_file() {
            warnings.push(format!("password file \"{shown}\" is not a plain file: ignored"));
            return None;
        }
        if metadata.permissions().mode() & 0o077 != 0 {
            warnings.push(format!(
                "password file \"{shown}\" has group or world access: ignored; \
                 permissions should be u=rw (0600) or less"
            ));
            return None;
        }
        let mut bytes = Vec::new();
        if let Err(error) = std::fs::File::open(path).and_then(|mut f| f.read_to_end(&mut bytes)) {
            warnings.push(format!("password file \"{shown}\" ignored: {error}"));
            return None;
        }
        let Ok(text) = String::from_utf8(bytes) else {
            warnings.push(format!("password file \"{shown}\" is not valid UTF-8: ignored"));
            return None;
        };
        Some(Self { text })
    }

    /// Returns the password of the first matching line.
    pub(crate) fn find(&self, lookup: &PasswordLookup<'_>) -> Option<String> {
        let port = lookup.port.to_string();
        self.text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
            let after_host = lookup.hosts.iter().find_map(|host| after_match(line, host))?;
            let after_port = after_match(after_host, &port)?;
            let after_dbname = after_match(after_port, lookup.dbname)?;
            after_match(after_dbname, lookup.user).map(unescape)
        })
    }
}

/// Returns the rest of the line after its first field, if this field is `*` or `token`. A backslash
/// escapes the next character.
fn after_match<'a>(line: &'a str, token: &str) -> Option<&'a str> {
    if let Some(rest) = line.strip_prefix("*:") {
        return Some(rest);
    }
    let mut expected = token.chars();
    let mut field = line.chars();
    loop {
        match field.next()? {
            ':' if expected.as_str().is_empty() => return Some(field.as_str()),
            '\\' => {
                let c = field.next()?;
                (expected.next()? == c).then_some(())?;
            }
            c => (expected.next()? == c).then_some(())?,
        }
    }
}

/// Returns the password field without its escapes. It ends at the next unescaped colon.
fn unescape(field: &str) -> String {
    let mut password = String::new();
    let mut rest = field.chars();
    while let Some(c) = rest.next() {
        match c {
            ':' => break,
            '\\' => password.push(rest.next().unwrap_or('\\')),
            c => password.push(c),
        }
    }
    password
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn find(text: &str, host: &str) -> Option<String> {
        let file = Passfile { text: text.to_owned() };
        file.find(&PasswordLookup { hosts: &[host], port: 5432, dbname: "d:b", user: "u\\s" })
    }

    #[test]
    fn fields_match_exactly_or_by_star() {
        assert_eq!(find("h:5432:d\\:b:u\\\\s:pw", "h").as_deref(), Some("pw"));
        assert_eq!(find("*:*:*:*:pw", "h").as_deref(), Some("pw"));
        assert_eq!(find("#*:*:*:*:no\nh2:*:*:*:no\nh:*:*:*:p\\:\\\\w", "h").unwrap(), "p:\\w");
        assert_eq!(find("h*:*:*:*:pw", "h"), None);
        assert_eq!(find("h:5433:*:*:pw", "h"), None);
        assert_eq!(find("h:5432:*:*", "h"), None);
        assert_eq!(find("h:*:*:*:pw:trailing", "h").as_deref(), Some("pw"));
    }

    proptest! {
        #[test]
        fn escaped_passwords_round_trip(host in "[^\n\r#][^\n\r]*", password in "[^\n\r]*") {
            let escape = |text: &str| text.replace('\\', r"\\").replace(':', r"\:");
            let line = format!("{}:*:*:*:{}", escape(&host), escape(&password));
            prop_assert_eq!(find(&line, &host), Some(password));
        }

        #[test]
        fn no_line_makes_the_match_panic(text in ".*", host in ".*") {
            let _ = find(&text, &host);
        }
    }
}
