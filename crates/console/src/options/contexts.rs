//! Several databases of one console, each with a name.

use conninfo::ConnectionTarget;

use crate::options::environment::Environment;

/// Maximum length of the name of a context, in characters.
const MAX_NAME_CHARS: usize = 63;

/// One of several databases that a console serves.
#[derive(Clone, Debug)]
pub struct ContextDatabase {
    /// Name of the context, which is a part of the paths of its pages; see [`context_name`].
    pub name: String,
    /// The database.
    pub target: ConnectionTarget,
    /// The environment that the pages of this database show, instead of that of the console.
    pub environment: Option<Environment>,
}

/// Checks the name of a context. Such a name is one segment of a path, and needs no escaping in a
/// URL, on a command line or on a terminal.
///
/// # Errors
/// Returns a message if the text is not such a name.
pub fn context_name(text: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let allowed = text.bytes().all(|byte| plain(byte) || b"_.-".contains(&byte));
    // A name that begins with a period could be a relative path, one with a hyphen a flag.
    if !allowed || !text.bytes().next().is_some_and(plain) || text.len() > MAX_NAME_CHARS {
        return Err(format!(
            "must begin with a letter or digit, have at most {MAX_NAME_CHARS} characters, and \
             consist of a to z, 0 to 9, _ . -"
        ));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_plain_segment_of_a_path() {
        for name in ["a", "shard-0", "eu.shard_1", "0"] {
            assert_eq!(context_name(name).as_deref(), Ok(name));
        }
        let long = "a".repeat(64);
        for name in [
            "", ".", "..", "-a", "_a", ".a", "A", "a/b", "a b", "ä", "{a}", "a%2f", "a\n", "*",
            "<b>", "a?", "a#b", "a\"", &long,
        ] {
            assert!(context_name(name).is_err(), "{name}");
        }
    }
}
