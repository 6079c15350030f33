//! The access file, which lists tokens and users with their rights, and the token file.

use std::net::IpAddr;
use std::path::Path;

use jiff::Timestamp;
use serde::Deserialize;

use crate::options::rights::{Rights, Scope};
use crate::options::{AccessRules, ProxySignIn, StartError, Token, UserRule};

/// Minimum length of a token; a shorter token could be guessed.
const MIN_TOKEN_CHARS: usize = 16;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AccessFile {
    #[serde(default)]
    token: Vec<TokenEntry>,
    proxy: Option<ProxyEntry>,
    #[serde(default)]
    user: Vec<UserEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenEntry {
    name: String,
    token: String,
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
pub(crate) fn read(file: &Path) -> Result<AccessRules, StartError> {
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
        check_length(&entry.token)
            .map_err(|message| wrong(format!("token \"{}\" {message}", entry.name)))?;
    }
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
            users: user.into_iter().map(user_rule).collect(),
        }),
    };
    Ok(AccessRules { tokens: token.into_iter().map(named_token).collect(), proxy })
}

fn named_token(entry: TokenEntry) -> Token {
    let TokenEntry { name, token, role, scopes, expires_at } = entry;
    Token { secret: token, label: Some(name), rights: Rights { role, scopes, expires_at } }
}

fn user_rule(entry: UserEntry) -> UserRule {
    let UserEntry { name, group, role, scopes, expires_at } = entry;
    UserRule { name, group, rights: Rights { role, scopes, expires_at } }
}

/// Reads a token file: one token per line, followed by an optional name.
///
/// # Errors
/// The file cannot be read, has no token, or has one that is too short.
pub(crate) fn read_tokens(file: &Path) -> Result<AccessRules, StartError> {
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
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let tokens: Vec<Token> = lines.map(token).collect();
    if tokens.is_empty() || tokens.iter().any(|token| check_length(&token.secret).is_err()) {
        return Err(wrong(format!(
            "{named} is empty or has a token of fewer than {MIN_TOKEN_CHARS} characters"
        )));
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
