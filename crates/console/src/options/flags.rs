//! Command-line flags of the console, shared by all programs that serve it. A worker prefixes them
//! with `--console-`: [`WorkerConsoleFlags`].

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{ArgMatches, Args, Command, FromArgMatches};

use crate::options::access_file::read_source;
use crate::options::environment::{Environment, EnvironmentColor, environment_name};
use crate::options::{AccessSource, Options, StartError, TlsFiles};

/// Heading of these flags in the worker's `--help`, next to `--http` and `--console`.
const WORKER_HEADING: &str = "HTTP and console";
/// Position of the first of these flags under that heading, after the worker's own flags.
const WORKER_DISPLAY_ORDER: usize = 1000;

/// The part of `--trace-url` that stands for the trace id.
pub(crate) const TRACE_ID: &str = "{trace_id}";

/// Flags of a console, apart from the address to listen on.
#[derive(Clone, Debug, Default, Args)]
pub struct ConsoleFlags {
    /// Disable all actions
    #[arg(id = "console_read_only", long = "read-only", env = "PGMILL_CONSOLE_READ_ONLY")]
    pub read_only: bool,
    /// File with sign-in tokens: one per line, optionally followed by a name
    #[arg(id = "console_token_file", long = "token-file", env = "PGMILL_CONSOLE_TOKEN_FILE")]
    #[arg(value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// File with tokens and users and their rights (TOML), instead of a token file
    #[arg(id = "console_access_file", long = "access-file", env = "PGMILL_CONSOLE_ACCESS_FILE")]
    #[arg(value_name = "FILE", conflicts_with = "console_token_file")]
    pub access_file: Option<PathBuf>,
    /// File with the TLS certificate and its chain (PEM), read again when it changes
    #[arg(id = "console_tls_cert", long = "tls-cert", env = "PGMILL_CONSOLE_TLS_CERT")]
    #[arg(value_name = "FILE", requires = "console_tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// File with the private key of the certificate (PEM)
    #[arg(id = "console_tls_key", long = "tls-key", env = "PGMILL_CONSOLE_TLS_KEY")]
    #[arg(value_name = "FILE", requires = "console_tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Expect a proxy that terminates TLS: refuse requests without X-Forwarded-Proto: https
    #[arg(id = "console_behind_proxy", long = "behind-proxy")]
    #[arg(env = "PGMILL_CONSOLE_BEHIND_PROXY")]
    pub behind_proxy: bool,
    /// Path prefix of the console, such as `/pgmill`, for a proxy that does not remove the prefix from requests
    #[arg(id = "console_base_path", long = "base-path", env = "PGMILL_CONSOLE_BASE_PATH")]
    #[arg(value_name = "PATH", value_parser = base_path, default_value = "")]
    #[arg(hide_default_value = true)]
    pub base_path: String,
    /// Host name that requests may use for the console, in addition to localhost and IP addresses;
    /// may be repeated
    #[arg(id = "console_allow_host", long = "allow-host", env = "PGMILL_CONSOLE_ALLOW_HOST")]
    #[arg(value_name = "NAME", value_delimiter = ',')]
    pub allow_host: Vec<String>,
    /// Name of the environment, such as prod, shown in the header and the title of every page
    #[arg(id = "console_environment", long = "environment", env = "PGMILL_CONSOLE_ENVIRONMENT")]
    #[arg(value_name = "NAME", value_parser = environment_name)]
    pub environment: Option<String>,
    /// Color of the environment's name
    #[arg(id = "console_environment_color", long = "environment-color")]
    #[arg(env = "PGMILL_CONSOLE_ENVIRONMENT_COLOR", value_name = "COLOR", value_enum)]
    #[arg(default_value = "gray")]
    pub environment_color: EnvironmentColor,
    /// Address of a trace in a tracing tool, for links; {trace_id} stands for the trace id
    #[arg(id = "console_trace_url", long = "trace-url", env = "PGMILL_CONSOLE_TRACE_URL")]
    #[arg(value_name = "URL", value_parser = trace_url)]
    pub trace_url: Option<String>,
}

impl ConsoleFlags {
    /// Returns the options of a console that listens on `listen`.
    ///
    /// # Errors
    /// Returns an error if the token file or the access file cannot be read or is invalid, or if only
    /// one of certificate and key is set.
    pub fn options(&self, listen: SocketAddr) -> Result<Options, StartError> {
        let access_source = self.access_source()?;
        Ok(Options {
            listen,
            read_only: self.read_only,
            access: access_source.as_ref().map(read_source).transpose()?.unwrap_or_default(),
            access_source,
            base_path: self.base_path.clone(),
            hosts: self.allow_host.clone(),
            tls: self.tls()?,
            behind_proxy: self.behind_proxy,
            environment: self.environment.clone().map(|name| {
                let color = self.environment_color;
                Environment { name, color }
            }),
            trace_url: self.trace_url.clone(),
            flag_prefix: "--",
        })
    }

    fn access_source(&self) -> Result<Option<AccessSource>, StartError> {
        match (&self.token_file, &self.access_file) {
            (None, None) => Ok(None),
            (Some(file), None) => Ok(Some(AccessSource::Tokens(file.clone()))),
            (None, Some(file)) => Ok(Some(AccessSource::Rules(file.clone()))),
            // Clap refuses the two flags, but a configuration file may set both.
            (Some(_), Some(_)) => Err(StartError::Usage {
                message: "token-file and access-file must not be set together".to_owned(),
                hint: "list the tokens in the access file".to_owned(),
            }),
        }
    }

    /// Checks that certificate and key are set together: a configuration file may set only one.
    fn tls(&self) -> Result<Option<TlsFiles>, StartError> {
        match (self.tls_cert.clone(), self.tls_key.clone()) {
            (Some(certificate), Some(key)) => Ok(Some(TlsFiles { certificate, key })),
            (None, None) => Ok(None),
            _ => Err(StartError::Usage {
                message: "tls-cert and tls-key must be set together".to_owned(),
                hint: "set both tls-cert and tls-key, or neither".to_owned(),
            }),
        }
    }
}

/// The same flags with the prefix `--console-`, for a program with other flags of its own.
#[derive(Clone, Debug, Default)]
pub struct WorkerConsoleFlags(pub ConsoleFlags);

impl WorkerConsoleFlags {
    /// Like [`ConsoleFlags::options`], with prefixed flag names in hints.
    ///
    /// # Errors
    /// Returns the errors of [`ConsoleFlags::options`].
    pub fn options(&self, listen: SocketAddr) -> Result<Options, StartError> {
        Ok(Options { flag_prefix: "--console-", ..self.0.options(listen)? })
    }
}

impl Args for WorkerConsoleFlags {
    fn augment_args(command: Command) -> Command {
        let own = ConsoleFlags::augment_args(Command::new("console"));
        own.get_arguments().zip(WORKER_DISPLAY_ORDER..).fold(command, |command, (arg, order)| {
            let long = format!("console-{}", arg.get_long().unwrap_or_default());
            let arg = arg.clone().long(long).help_heading(WORKER_HEADING).display_order(order);
            command.arg(arg)
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for WorkerConsoleFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        ConsoleFlags::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

/// Parses the address of a trace.
fn trace_url(text: &str) -> Result<String, &'static str> {
    let http = text.starts_with("https://") || text.starts_with("http://");
    if !http || !text.contains(TRACE_ID) {
        return Err(
            "must be a URL with {trace_id}, such as https://tempo.example/trace/{trace_id}",
        );
    }
    Ok(text.to_owned())
}

/// Parses a base path: empty, or segments of plain characters, each after a slash. Removes trailing
/// slashes.
///
/// # Errors
/// Returns a message if the text is anything else.
pub fn base_path(text: &str) -> Result<String, String> {
    let path = text.trim_end_matches('/');
    let plain = |step: &str| {
        !step.is_empty()
            && step.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
            && step != "."
            && step != ".."
    };
    match path.strip_prefix('/') {
        None if path.is_empty() => Ok(String::new()),
        Some(steps) if steps.split('/').all(plain) => Ok(path.to_owned()),
        _ => Err("must be a path such as /pgmill, with letters, digits, - _ .".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Worker {
        #[command(flatten)]
        console: WorkerConsoleFlags,
    }

    #[test]
    fn a_worker_has_the_same_flags_with_a_prefix() {
        let given = ["worker", "--console-read-only", "--console-base-path", "/x"];
        let WorkerConsoleFlags(flags) = Worker::parse_from(given).console;
        assert!(flags.read_only && flags.base_path == "/x");
        let own: Vec<String> = ConsoleFlags::augment_args(Command::new("own"))
            .get_arguments()
            .filter_map(|arg| arg.get_long().map(|long| format!("console-{long}")))
            .collect();
        let command = WorkerConsoleFlags::augment_args(Command::new("worker"));
        let there: Vec<&str> = command.get_arguments().filter_map(|it| it.get_long()).collect();
        assert_eq!(there, own);
    }
}
