//! Parses connection strings of the form
//! `postgresql://user:password@host:port,host:port/dbname?key=value`.
//!
//! The grammar is that of libpq's `conninfo_uri_parse`, which is laxer than RFC 3986: there may be
//! several hosts and empty parts, and percent-encoding is decoded after the text is split.

use crate::error::ConnectError;
use crate::parse::keyword::{Pairs, known};

/// Returns the text after `postgresql://` or `postgres://`.
pub(crate) fn after_scheme(text: &str) -> Option<&str> {
    text.strip_prefix("postgresql://").or_else(|| text.strip_prefix("postgres://"))
}

/// Returns whether the text begins like a URI, with any scheme. Such a text is not the name of a database,
/// and may contain a password.
pub(crate) fn has_scheme(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| !scheme.contains('='))
}

/// Parses a URI without its scheme.
pub(crate) fn parse(rest: &str) -> Result<Pairs, ConnectError> {
    let mut pairs = Pairs::new();
    let credentials_end = rest.find(['@', '/']).filter(|at| rest.as_bytes()[*at] == b'@');
    let rest = match credentials_end {
        Some(at) => {
            credentials(&rest[..at], &mut pairs)?;
            &rest[at + 1..]
        }
        None => rest,
    };
    let authority_end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(authority_end);
    let (path, query) = match rest.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (rest, None),
    };
    refuse_stray_at(authority, path, credentials_end.is_some())?;
    hosts(authority, &mut pairs)?;
    push(&mut pairs, "dbname", path.strip_prefix('/').unwrap_or(path))?;
    if let Some(query) = query {
        parameters(query, &mut pairs)?;
    }
    Ok(pairs)
}

/// Refuses an `@` in the wrong place. A password with an unencoded `@` or `/` would be split, and a
/// part of it would be taken for a host or a database, which is shown in messages and sent to the
/// name server.
fn refuse_stray_at(authority: &str, path: &str, credentials: bool) -> Result<(), ConnectError> {
    if authority.contains('@') || (!credentials && path.contains('@') && authority.contains(':')) {
        return Err(ConnectError::usage_with_hint(
            "unexpected \"@\" in connection URI",
            "in a password write @ as %40, / as %2F, : as %3A and % as %25",
        ));
    }
    Ok(())
}

fn credentials(text: &str, pairs: &mut Pairs) -> Result<(), ConnectError> {
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    push(pairs, "user", user)?;
    push(pairs, "password", password)
}

/// Parses `host:port,[::1]:port,…` into the comma-separated lists `host` and `port`.
fn hosts(authority: &str, pairs: &mut Pairs) -> Result<(), ConnectError> {
    let mut hosts = Vec::new();
    let mut ports = Vec::new();
    for one in authority.split(',') {
        let (host, port) = match one.strip_prefix('[') {
            Some(bracketed) => ipv6(bracketed)?,
            None => one.split_once(':').unwrap_or((one, "")),
        };
        hosts.push(host);
        ports.push(port);
    }
    push(pairs, "host", &hosts.join(","))?;
    push(pairs, "port", &ports.join(","))
}

fn ipv6(bracketed: &str) -> Result<(&str, &str), ConnectError> {
    let (host, after) = bracketed.split_once(']').ok_or_else(|| {
        ConnectError::usage("missing \"]\" after an IPv6 host address in connection URI")
    })?;
    if host.is_empty() {
        return Err(ConnectError::usage("IPv6 host address may not be empty in connection URI"));
    }
    match after.strip_prefix(':') {
        Some(port) => Ok((host, port)),
        None if after.is_empty() => Ok((host, "")),
        None => Err(ConnectError::usage(
            "unexpected character after an IPv6 host address in connection URI",
        )),
    }
}

fn parameters(query: &str, pairs: &mut Pairs) -> Result<(), ConnectError> {
    if query.is_empty() {
        return Ok(());
    }
    // A trailing "&" is allowed, as in libpq.
    for parameter in query.strip_suffix('&').unwrap_or(query).split('&') {
        let Some((keyword, value)) = parameter.split_once('=') else {
            return Err(ConnectError::usage("missing \"=\" in a parameter of connection URI"));
        };
        if value.contains('=') {
            return Err(ConnectError::usage_with_hint(
                "extra \"=\" in a parameter of connection URI",
                "write = as %3D inside a value",
            ));
        }
        let keyword = decode(keyword, "parameter name")?;
        let value = decode(value, "parameter value")?;
        // JDBC URLs use this spelling.
        if keyword == "ssl" && value == "true" {
            pairs.push(("sslmode", "require".to_owned()));
        } else {
            pairs.push((known(&keyword)?, value));
        }
    }
    Ok(())
}

/// Adds a part of the URI. An empty part counts as not given; a list of empty parts (`,`) counts as
/// given.
fn push(pairs: &mut Pairs, keyword: &'static str, raw: &str) -> Result<(), ConnectError> {
    if !raw.is_empty() {
        pairs.push((keyword, decode(raw, keyword)?));
    }
    Ok(())
}

/// Decodes percent-encoding. Errors name the part of the URI, but never quote its text.
fn decode(raw: &str, part: &str) -> Result<String, ConnectError> {
    let invalid = |problem: &str| {
        ConnectError::usage_with_hint(
            format!("{problem} in the {part} of connection URI"),
            "write % itself as %25",
        )
    };
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| byte.and_then(|b| char::from(b).to_digit(16));
        let (Some(high), Some(low)) = (digit(rest.next()), digit(rest.next())) else {
            return Err(invalid("invalid percent-encoded token"));
        };
        match u8::try_from(high * 16 + low) {
            Ok(0) | Err(_) => return Err(invalid("forbidden value %00")),
            Ok(byte) => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).map_err(|_| invalid("invalid UTF-8"))
}

#[cfg(test)]
mod tests {
    use crate::parse::key_value;

    fn pairs(text: &str) -> String {
        let pairs = key_value::parse(text).unwrap();
        pairs.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" ")
    }

    fn error(text: &str) -> String {
        let error = key_value::parse(text).unwrap_err();
        format!("{error} {error:?} {:?}", error.hint())
    }

    #[test]
    fn parts_are_split_before_they_are_decoded() {
        assert_eq!(
            pairs("postgres://u%40x:p%3Aw@h:1/d%2Fb?sslmode=disable"),
            "user=u@x password=p:w host=h port=1 dbname=d/b sslmode=disable"
        );
        assert_eq!(pairs("postgresql://"), "");
        assert_eq!(pairs("postgresql:///db?host=/tmp"), "dbname=db host=/tmp");
        assert_eq!(pairs("postgresql://%2Ftmp:1/db"), "host=/tmp port=1 dbname=db");
        assert_eq!(pairs("postgresql://:1"), "port=1");
        assert_eq!(pairs("postgresql://@h?user=x&"), "host=h user=x");
        assert_eq!(pairs("postgresql://h?ssl=true"), "host=h sslmode=require");
    }

    #[test]
    fn several_hosts_and_ipv6_brackets() {
        assert_eq!(
            pairs("postgres://[::1]:1,b,[fe80::1]/d"),
            "host=::1,b,fe80::1 port=1,, dbname=d"
        );
        assert!(error("postgres://[::1").contains("missing \"]\""));
        assert!(error("postgres://[]").contains("may not be empty"));
        assert!(error("postgres://[::1]x").contains("unexpected character"));
    }

    #[test]
    fn malformed_parts_are_refused() {
        assert!(error("postgres://h/%zz").contains("percent-encoded token in the dbname"));
        assert!(error("postgres://h/%0").contains("percent-encoded token"));
        assert!(error("postgres://h/%00").contains("%00"));
        assert!(error("postgres://h/%ff").contains("UTF-8"));
        assert!(error("postgres://h?x").contains("missing \"=\""));
        assert!(error("postgres://h?user=a=b").contains("extra \"=\""));
        assert!(error("postgres://h?usr=a").contains("\"usr\""));
    }

    #[test]
    fn no_error_repeats_a_badly_encoded_password() {
        for text in [
            "postgres://u:hun@ter2@h/d",
            "postgres://u:hun/ter2@h/d",
            "postgres://u:1/ter2@h/d",
            "postgres://u:ter2%@h/d",
            "postgres://u:x%ter2@h/d",
        ] {
            let shown = error(text);
            assert!(!shown.contains("ter2"), "{shown}");
        }
    }
}
