//! The access file, which lists tokens and users with their rights, and the token file.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use jiff::Timestamp;
use serde::Deserialize;
use toml::Spanned;

use crate::options::rights::{Rights, Scope};
use crate::options::{AccessRules, AccessSource, ProxySignIn, StartError, Token, UserRule};

/// Minimum length of a token; a shorter token could be guessed.
const MIN_TOKEN_CHARS: usize = 16;

/// Reads a file that contains access rules.
///
/// # Errors
/// The file cannot be read or is invalid. The error shows no token.
pub(crate) fn read_source(source: &AccessSource) -> Result<AccessRules, StartError> {
    match source {
        AccessSource::Tokens(file) => read_tokens(file),
        AccessSource::Rules(file) => read(file),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AccessFile {
    #[serde(default)]
    token: Vec<TokenEntry>,
    proxy: Option<ProxyEntry>,
    #[serde(default)]
    user: Vec<Spanned<UserEntry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenEntry {
    name: String,
    token: Spanned<String>,
    role: Option<String>,
    scopes: Option<Vec<Scope>>,
    expires_at: Option<Timestamp>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProxyEntry {
    addresses: Vec<IpAddr>,
    user_header: String,
    groups_header: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UserEntry {
    name: Option<String>,
    group: Option<String>,
    role: Option<String>,
    scopes: Option<Vec<Scope>>,
    expires_at: Option<Timestamp>,
}

/// Reads an access file. docs/console.md describes its format.
///
/// # Errors
/// The file cannot be read, is no TOML, has an unknown key, a token that is too short, or entries
/// that have no effect.
fn read(file: &Path) -> Result<AccessRules, StartError> {
    let named = file.display();
    let refused = |problem: String| StartError::Usage {
        message: format!("access file {problem}"),
        hint: "docs/console.md describes the format of the access file".to_owned(),
    };
    let wrong = |message: String| refused(format!("{named}: {message}"));
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    // The error itself would show the line of the file, which may be that of a token.
    let AccessFile { token, proxy, user } = toml::from_str(&text).map_err(|error| {
        let at = error.span().map(|span| span.start);
        refused(cli::problem_in_file(file, &text, at, error.message()))
    })?;
    for entry in &token {
        check_length(entry.token.get_ref())
            .map_err(|message| wrong(format!("token \"{}\" {message}", entry.name)))?;
    }
    let lines = |repeated: Option<(usize, usize)>, what: &str| match repeated {
        Some((first, second)) => {
            let line = |at: usize| text[..at].matches('\n').count() + 1;
            Err(wrong(format!("line {} repeats the {what} of line {}", line(second), line(first))))
        }
        None => Ok(()),
    };
    lines(repeated(token.iter().map(|it| (it.token.get_ref(), it.token.span().start))), "token")?;
    // The first entry that matches applies, so the second one would have no effect.
    let whom = |it: &Spanned<UserEntry>| (it.get_ref().name.clone(), it.get_ref().group.clone());
    lines(repeated(user.iter().map(|it| (whom(it), it.span().start))), "[[user]]")?;
    if proxy.is_none() && !user.is_empty() {
        return Err(wrong("[[user]] has no effect without [proxy]".to_owned()));
    }
    if token.is_empty() && user.is_empty() {
        return Err(wrong(
            "the file allows nobody: it has no [[token]] and no [[user]]".to_owned(),
        ));
    }
    let header =
        |name: &str| name.parse().map_err(|_| wrong(format!("\"{name}\" is not a header name")));
    let proxy = match proxy {
        None => None,
        Some(entry) if entry.addresses.is_empty() => {
            return Err(wrong("[proxy] needs at least one address".to_owned()));
        }
        Some(entry) => Some(ProxySignIn {
            addresses: entry.addresses.iter().map(IpAddr::to_canonical).collect(),
            user_header: header(&entry.user_header)?,
            groups_header: entry.groups_header.as_deref().map(header).transpose()?,
            users: user.into_iter().map(|it| user_rule(it.into_inner())).collect(),
        }),
    };
    Ok(AccessRules { tokens: token.into_iter().map(named_token).collect(), proxy })
}

/// Returns the positions of two entries with the same key.
fn repeated<K: Ord>(entries: impl Iterator<Item = (K, usize)>) -> Option<(usize, usize)> {
    let mut positions = BTreeMap::new();
    entries.into_iter().find_map(|(key, at)| positions.insert(key, at).map(|first| (first, at)))
}

fn named_token(entry: TokenEntry) -> Token {
    let TokenEntry { name, token, role, scopes, expires_at } = entry;
    Token {
        secret: token.into_inner(),
        label: Some(name),
        rights: Rights { role, scopes, expires_at },
    }
}

fn user_rule(entry: UserEntry) -> UserRule {
    let UserEntry { name, group, role, scopes, expires_at } = entry;
    UserRule { name, group, rights: Rights { role, scopes, expires_at } }
}

/// Reads a token file: one token per line, followed by an optional name.
///
/// # Errors
/// The file cannot be read, has no token, or has one that is too short.
fn read_tokens(file: &Path) -> Result<AccessRules, StartError> {
    let named = file.display();
    let wrong = |message: String| StartError::Usage {
        message,
        hint: format!("openssl rand -hex 32 > {named}"),
    };
    let text = std::fs::read_to_string(file)
        .map_err(|error| wrong(format!("could not read the token file {named}: {error}")))?;
    let token = |line: &str| {
        let (secret, label) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let label = Some(label.trim().to_owned()).filter(|label| !label.is_empty());
        Token { secret: secret.to_owned(), label, rights: Rights::default() }
    };
    let lines = text.lines().map(str::trim).zip(1..).filter(|(line, _)| !line.is_empty());
    let (tokens, numbers): (Vec<Token>, Vec<usize>) =
        lines.map(|(line, number)| (token(line), number)).unzip();
    if tokens.is_empty() || tokens.iter().any(|token| check_length(&token.secret).is_err()) {
        return Err(wrong(format!(
            "{named} is empty or has a token of fewer than {MIN_TOKEN_CHARS} characters"
        )));
    }
    let secrets = tokens.iter().map(|token| &token.secret).zip(numbers);
    if let Some((first, second)) = repeated(secrets) {
        return Err(wrong(format!("{named}: line {second} repeats the token of line {first}")));
    }
    Ok(AccessRules { tokens, proxy: None })
}

fn check_length(token: &str) -> Result<(), String> {
    if token.chars().count() < MIN_TOKEN_CHARS {
        return Err(format!("has fewer than {MIN_TOKEN_CHARS} characters"));
    }
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("has a character that is not visible ASCII".to_owned());
    }
    Ok(())
}
