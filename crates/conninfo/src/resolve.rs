//! Turns settings into a target. Applies defaults, parses values, and refuses the contradictions
//! that libpq refuses.

use crate::connection_target::{ConnectionTarget, Overrides, Source, Timeouts};
use crate::endpoint::{Endpoint, endpoints};
use crate::error::ConnectError;
use crate::parse::environment::Environment;
use crate::parse::passfile::{Passfile, PasswordLookup};
use crate::parse::settings::Settings;
use crate::parse::source::ConnectionSource;
use crate::secret::Secret;
use crate::target_session_attrs::TargetSessionAttrs;
use crate::tls::TlsRules;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::config::ChannelBinding;

impl ConnectionTarget {
    /// Completes a connection string as libpq does. The string is a URI, `key=value` pairs, a bare
    /// database name, or missing. Settings that it lacks come from the service file, then from the
    /// `PG*` variables, then from the defaults.
    ///
    /// Reads the service file and the password file, but opens no connection.
    ///
    /// # Errors
    /// All errors have [`ConnectError::is_usage`].
    pub fn resolve(conninfo: Option<&str>, env: &Environment) -> Result<Self, ConnectError> {
        Self::from_source(conninfo.map(|text| ConnectionSource::Text(text.to_owned())), env)
    }

    /// As [`ConnectionTarget::resolve`], for a string that a file may contain. Each session that is opened
    /// reads the file again.
    ///
    /// # Errors
    /// As [`ConnectionTarget::resolve`]; the file is unreadable or does not contain a connection string.
    pub fn from_source(
        given: Option<ConnectionSource>,
        env: &Environment,
    ) -> Result<Self, ConnectError> {
        Self::resolve_source(Arc::new(Source { given, environment: env.clone() }))
    }

    pub(crate) fn resolve_source(source: Arc<Source>) -> Result<Self, ConnectError> {
        let env = &source.environment;
        let text = source.given.as_ref().map(ConnectionSource::read).transpose()?;
        let mut settings = Settings::collect(text.as_deref(), env)?;
        let user = user(&settings, env)?;
        let dbname = settings.filled("dbname").unwrap_or(&user).to_owned();
        let mut endpoints = endpoints(&settings, &env.default_host())?;
        let mut warnings = std::mem::take(&mut settings.warnings);
        let password = settings.filled("password").map(Secret::new);
        let password_given_inline = password.is_some() && settings.inline("password");
        match password {
            Some(password) => {
                for endpoint in &mut endpoints {
                    endpoint.password = Some(password.clone());
                }
            }
            None => look_up_passwords(&settings, env, &user, &mut endpoints, &mut warnings),
        }
        let tls = TlsRules::resolve(&settings, env, &mut warnings)?;
        tls.accept(&endpoints)?;
        Ok(Self {
            endpoints,
            dbname,
            options: settings.filled("options").map(Secret::new),
            application_name: settings
                .filled("application_name")
                .or_else(|| settings.filled("fallback_application_name"))
                .map(str::to_owned),
            tls,
            channel_binding: channel_binding(&settings)?,
            session_attrs: TargetSessionAttrs::resolve(&settings)?,
            shuffled: settings
                .choice("load_balance_hosts", &[("disable", false), ("random", true)])?,
            timeouts: timeouts(&settings)?,
            password_given_inline,
            warnings,
            user,
            overrides: Overrides::default(),
            source,
        })
    }
}

fn user(settings: &Settings, env: &Environment) -> Result<String, ConnectError> {
    let user = settings.get("user").or_else(|| env.os_user()).unwrap_or_default();
    if user.is_empty() {
        return Err(ConnectError::usage_with_hint(
            "no user name given, and the operating system reports none for this process",
            "set user in the connection string, or PGUSER",
        ));
    }
    Ok(user.to_owned())
}

/// Looks up the password of each host, because each host may have its own line in the password
/// file.
fn look_up_passwords(
    settings: &Settings,
    env: &Environment,
    user: &str,
    endpoints: &mut [Endpoint],
    warnings: &mut Vec<String>,
) {
    let path = settings.filled("passfile").map(PathBuf::from);
    let Some(path) = path.or_else(|| env.below_home(".pgpass")) else { return };
    let Some(passfile) = Passfile::read(&path, warnings) else { return };
    let dbname = settings.filled("dbname").unwrap_or(user);
    for endpoint in endpoints {
        let names = endpoint.passfile_names();
        let hosts: Vec<&str> = names.iter().map(String::as_str).collect();
        let lookup = PasswordLookup { hosts: &hosts, port: endpoint.port, dbname, user };
        endpoint.password =
            passfile.find(&lookup).filter(|password| !password.is_empty()).map(Secret::new);
    }
}

fn channel_binding(settings: &Settings) -> Result<ChannelBinding, ConnectError> {
    settings.choice(
        "channel_binding",
        &[
            ("prefer", ChannelBinding::Prefer),
            ("disable", ChannelBinding::Disable),
            ("require", ChannelBinding::Require),
        ],
    )
}

/// Returns the timeouts. A reader must notice within ten seconds that a network cable was pulled,
/// because its claim remains valid meanwhile. The defaults of libpq would take two hours.
fn timeouts(settings: &Settings) -> Result<Timeouts, ConnectError> {
    let seconds = |keyword, default| {
        let value = settings.integer(keyword)?.unwrap_or(default);
        Ok(Duration::from_secs(u64::try_from(value).unwrap_or(0)))
    };
    let connect_timeout = seconds("connect_timeout", 10)?;
    let tcp_user_timeout = settings.integer("tcp_user_timeout")?.unwrap_or(5_000);
    let keepalives_count = settings.integer("keepalives_count")?.unwrap_or(2);
    Ok(Timeouts {
        connect_timeout: Some(connect_timeout).filter(|limit| !limit.is_zero()),
        tcp_user_timeout: Duration::from_millis(u64::try_from(tcp_user_timeout).unwrap_or(0)),
        keepalives: settings.integer("keepalives")?.unwrap_or(1) != 0,
        keepalives_idle: seconds("keepalives_idle", 5)?,
        keepalives_interval: seconds("keepalives_interval", 2)?,
        keepalives_count: u32::try_from(keepalives_count).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(text: &str, variables: &[(&str, &str)]) -> Result<ConnectionTarget, ConnectError> {
        let env = Environment::from_variables(variables.iter().copied(), Some("osuser"));
        ConnectionTarget::resolve(Some(text), &env)
    }

    #[test]
    fn an_empty_string_resolves_to_the_defaults() {
        let target = resolve("", &[]).unwrap();
        assert_eq!(target.to_string(), "host=localhost port=5432 dbname=osuser user=osuser");
        assert_eq!(target.timeouts.connect_timeout, Some(Duration::from_secs(10)));
        assert_eq!(target.timeouts.tcp_user_timeout, Duration::from_secs(5));
        assert_eq!(target.timeouts.keepalives_idle, Duration::from_secs(5));
        assert_eq!(target.timeouts.keepalives_interval, Duration::from_secs(2));
        assert_eq!(target.timeouts.keepalives_count, 2);
    }

    #[test]
    fn the_string_wins_over_the_variables() {
        let variables = [("PGHOST", "env"), ("PGUSER", "env"), ("PGPASSWORD", "env")];
        let target = resolve("host=a user=b", &variables).unwrap();
        assert_eq!(target.to_string(), "host=a port=5432 dbname=b user=b");
        assert!(!target.password_given_inline());
        assert_eq!(target.endpoints[0].password, Some(Secret::new("env")));
        assert!(resolve("postgres://u:p@h", &variables).unwrap().password_given_inline());
    }

    #[test]
    fn no_output_shows_a_secret() {
        let target = resolve("password=hunter2 options='-c a.b=hunter2'", &[]).unwrap();
        let target = target.with_option("app.key", "hunter2");
        assert!(!format!("{target:?} {target:#?} {target}").contains("hunter2"));
    }

    #[test]
    fn options_are_escaped_and_come_last() {
        let target = resolve("options='-c geqo=off'", &[]).unwrap();
        let target = target.with_option("search_path", "a b,\\c");
        assert_eq!(target.all_options().unwrap().reveal(), r"-c geqo=off -c search_path=a\ b,\\c");
        let target = resolve("", &[]).unwrap().with_option("a", "b");
        assert_eq!(target.all_options().unwrap().reveal(), "-c a=b");
    }

    #[test]
    fn unsupported_options_are_refused_by_name() {
        for text in [
            "requirepeer=postgres",
            "require_auth=scram-sha-256",
            "sslcrl=/x",
            "replication=database",
            "oauth_issuer=x",
            "gssencmode=require",
            "client_encoding=LATIN1",
            "sslpassword=hunter2",
        ] {
            let error = resolve(text, &[]).unwrap_err();
            let keyword = text.split_once('=').unwrap().0;
            assert!(error.to_string().contains(keyword) && error.is_usage(), "{error}");
            assert!(!format!("{error:?}").contains("hunter2"));
        }
        let error = resolve("", &[("PGREQUIREPEER", "postgres")]).unwrap_err();
        assert!(error.to_string().contains("from PGREQUIREPEER"), "{error}");
    }

    #[test]
    fn a_uri_in_place_of_the_database_name_is_refused_and_not_shown() {
        let uri = "postgres://u:hunter2@h/d";
        for (text, origin) in [("", "PGDATABASE"), (&*format!("dbname={uri}"), "connection string")]
        {
            let error = resolve(text, &[("PGDATABASE", uri)]).unwrap_err();
            assert!(error.is_usage() && error.to_string().contains(origin), "{error}");
            assert!(!format!("{error} {error:?}").contains("hunter2"));
        }
    }

    #[test]
    fn options_without_effect_are_accepted() {
        let target = resolve(
            "gssencmode=disable sslcompression=1 krbsrvname=x client_encoding=UTF8 requirepeer='' \
             replication=false pgbouncer=true",
            &[],
        )
        .unwrap();
        assert_eq!(target.warnings(), ["option \"pgbouncer\" has no effect here"]);
    }

    #[test]
    fn contradictions_are_usage_errors() {
        for text in [
            "sslmode=sometimes",
            "sslmode=",
            "sslmode=require sslrootcert=system",
            "sslnegotiation=direct",
            "sslmode=verify-full hostaddr=127.0.0.1",
            "connect_timeout=soon",
            "target_session_attrs=leader",
            "ssl_max_protocol_version=TLSv1.1",
            "user=",
        ] {
            assert!(resolve(text, &[]).unwrap_err().is_usage(), "{text}");
        }
    }
}
