//! The keywords of a connection string: their names, the variables that set them, and the treatment
//! of keywords that this program does not use.

use crate::error::ConnectError;
use strsim::levenshtein;

/// Keywords and values as written, in order.
pub(crate) type Pairs = Vec<(&'static str, String)>;

/// Treatment of a keyword.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Treatment {
    /// Used by `resolve`.
    Used,
    /// Accepted, but has no effect.
    Ignored,
    /// Accepted, but has no effect. A warning says so, because the user may expect an effect.
    IgnoredWithWarning,
    /// Refused, because ignoring it would be unsafe. Accepted if the value is empty or one of
    /// these.
    Refused { unless: &'static [&'static str], reason: &'static str },
}

/// A keyword.
#[derive(Debug)]
pub(crate) struct Keyword {
    pub(crate) name: &'static str,
    /// The environment variable that sets the keyword, according to libpq's list.
    pub(crate) variable: Option<&'static str>,
    pub(crate) treatment: Treatment,
}

const fn used(name: &'static str, variable: &'static str) -> Keyword {
    Keyword { name, variable: Some(variable), treatment: Treatment::Used }
}

const fn used_without_variable(name: &'static str) -> Keyword {
    Keyword { name, variable: None, treatment: Treatment::Used }
}

const fn ignored(name: &'static str) -> Keyword {
    Keyword { name, variable: None, treatment: Treatment::Ignored }
}

const fn refused(
    name: &'static str,
    variable: Option<&'static str>,
    unless: &'static [&'static str],
    reason: &'static str,
) -> Keyword {
    Keyword { name, variable, treatment: Treatment::Refused { unless, reason } }
}

const NO_CRL: &str = "certificate revocation lists are not supported";
const NO_OAUTH: &str = "OAuth authentication is not supported";
const NO_SCRAM_KEY: &str = "SCRAM authentication supports passwords only";
const FALSE: &[&str] = &["false", "off", "no", "0"];
const UTF8: &[&str] = &["auto", "UTF8", "utf8", "UTF-8", "utf-8", "unicode", "UNICODE"];

/// All keywords of libpq 18, and two keywords that other programs put into URLs.
pub(crate) const KEYWORDS: &[Keyword] = &[
    used("application_name", "PGAPPNAME"),
    used("channel_binding", "PGCHANNELBINDING"),
    refused("client_encoding", None, UTF8, "sessions always use UTF8"),
    used("connect_timeout", "PGCONNECT_TIMEOUT"),
    used("dbname", "PGDATABASE"),
    used_without_variable("fallback_application_name"),
    ignored("gssdelegation"),
    refused(
        "gssencmode",
        Some("PGGSSENCMODE"),
        &["disable", "prefer"],
        "GSSAPI encryption is not supported",
    ),
    ignored("gsslib"),
    used("host", "PGHOST"),
    used("hostaddr", "PGHOSTADDR"),
    used_without_variable("keepalives"),
    used_without_variable("keepalives_count"),
    used_without_variable("keepalives_idle"),
    used_without_variable("keepalives_interval"),
    ignored("krbsrvname"),
    used("load_balance_hosts", "PGLOADBALANCEHOSTS"),
    ignored("max_protocol_version"),
    refused(
        "min_protocol_version",
        Some("PGMINPROTOCOLVERSION"),
        &["3.0"],
        "only protocol version 3.0 is supported",
    ),
    refused("oauth_ca_file", None, &[], NO_OAUTH),
    refused("oauth_client_id", None, &[], NO_OAUTH),
    refused("oauth_client_secret", None, &[], NO_OAUTH),
    refused("oauth_issuer", None, &[], NO_OAUTH),
    refused("oauth_scope", None, &[], NO_OAUTH),
    used("options", "PGOPTIONS"),
    used("passfile", "PGPASSFILE"),
    used("password", "PGPASSWORD"),
    Keyword { name: "pgbouncer", variable: None, treatment: Treatment::IgnoredWithWarning },
    used("port", "PGPORT"),
    refused("replication", None, FALSE, "replication sessions run no tasks"),
    refused(
        "require_auth",
        Some("PGREQUIREAUTH"),
        &[],
        "limiting the authentication method is not supported",
    ),
    refused(
        "requirepeer",
        Some("PGREQUIREPEER"),
        &[],
        "checking the owner of the server process is not supported",
    ),
    refused("scram_client_key", None, &[], NO_SCRAM_KEY),
    refused("scram_server_key", None, &[], NO_SCRAM_KEY),
    used("service", "PGSERVICE"),
    used("servicefile", "PGSERVICEFILE"),
    used("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION"),
    used("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION"),
    used("sslcert", "PGSSLCERT"),
    used("sslcertmode", "PGSSLCERTMODE"),
    ignored("sslcompression"),
    refused("sslcrl", Some("PGSSLCRL"), &[], NO_CRL),
    refused("sslcrldir", Some("PGSSLCRLDIR"), &[], NO_CRL),
    used("sslkey", "PGSSLKEY"),
    Keyword { name: "sslkeylogfile", variable: None, treatment: Treatment::IgnoredWithWarning },
    used("sslmode", "PGSSLMODE"),
    used("sslnegotiation", "PGSSLNEGOTIATION"),
    refused("sslpassword", None, &[], "encrypted private keys are not supported"),
    used("sslrootcert", "PGSSLROOTCERT"),
    used("sslsni", "PGSSLSNI"),
    used("target_session_attrs", "PGTARGETSESSIONATTRS"),
    used_without_variable("tcp_user_timeout"),
    used("user", "PGUSER"),
];

/// Returns the keyword of this name.
pub(crate) fn find(name: &str) -> Option<&'static Keyword> {
    KEYWORDS.iter().find(|keyword| keyword.name == name)
}

/// Returns the most similar known keyword, if at most a third of its letters differ.
pub(crate) fn closest(name: &str) -> Option<&'static str> {
    KEYWORDS
        .iter()
        .map(|keyword| (levenshtein(&name.to_ascii_lowercase(), keyword.name), keyword.name))
        .filter(|(distance, known)| *distance <= known.len().div_ceil(3))
        .min()
        .map(|(_, known)| known)
}

/// Returns the keyword of this name, or an error that quotes the name.
pub(crate) fn known(name: &str) -> Result<&'static str, ConnectError> {
    find(name).map(|keyword| keyword.name).ok_or_else(|| {
        if presentable(name) {
            ConnectError::UnknownKeyword { keyword: name.to_owned(), closest: closest(name) }
        } else {
            ConnectError::usage("unknown connection option")
        }
    })
}

/// Returns whether an error may quote a name. Any other text may be a part of an unquoted password.
fn presentable(name: &str) -> bool {
    (1..=40).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphabetic() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_misses_find_their_keyword() {
        assert_eq!(closest("sslrootcrt"), Some("sslrootcert"));
        assert_eq!(closest("username"), None);
        assert_eq!(closest("db_name"), Some("dbname"));
        assert_eq!(closest("Host"), Some("host"));
        assert_eq!(closest("quite_something_else"), None);
    }

    #[test]
    fn keywords_are_sorted_so_that_none_is_listed_twice() {
        assert!(KEYWORDS.windows(2).all(|pair| pair[0].name < pair[1].name));
    }
}
