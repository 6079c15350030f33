//! The flags of a console, the same wherever it is served. A worker, which has flags of its own, knows them as
//! `--console-…`: [`WorkerConsoleFlags`].

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{ArgMatches, Args, Command, FromArgMatches};

use crate::app::StartError;
use crate::{Options, TlsFiles, Token};

/// A shorter one could be guessed.
const MIN_TOKEN_CHARS: usize = 16;

/// How a console is served, wherever it listens.
#[derive(Clone, Debug, Default, Args)]
pub struct ConsoleFlags {
    /// Only look: nothing can be changed through it
    #[arg(id = "console_read_only", long = "read-only", env = "PGMILL_CONSOLE_READ_ONLY")]
    pub read_only: bool,
    /// File with the token that one signs in with
    #[arg(id = "console_token_file", long = "token-file", env = "PGMILL_CONSOLE_TOKEN_FILE")]
    #[arg(value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// TLS of its own: file with the certificate and those that lead to a root (PEM), read at the start
    #[arg(id = "console_tls_cert", long = "tls-cert", env = "PGMILL_CONSOLE_TLS_CERT")]
    #[arg(value_name = "FILE", requires = "console_tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The key of that certificate (PEM)
    #[arg(id = "console_tls_key", long = "tls-key", env = "PGMILL_CONSOLE_TLS_KEY")]
    #[arg(value_name = "FILE", requires = "console_tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// A proxy with TLS is in front of it: what comes without X-Forwarded-Proto: https is refused
    #[arg(id = "console_behind_proxy", long = "behind-proxy")]
    #[arg(env = "PGMILL_CONSOLE_BEHIND_PROXY")]
    pub behind_proxy: bool,
    /// What stands in front of every path, behind a proxy that passes it on
    #[arg(id = "console_base_path", long = "base-path", env = "PGMILL_CONSOLE_BASE_PATH")]
    #[arg(value_name = "PATH", value_parser = base_path, default_value = "")]
    pub base_path: String,
    /// Name that it is reached by, beside localhost and addresses; may be repeated
    #[arg(id = "console_allow_host", long = "allow-host", env = "PGMILL_CONSOLE_ALLOW_HOST")]
    #[arg(value_name = "NAME", value_delimiter = ',')]
    pub allow_host: Vec<String>,
}

impl ConsoleFlags {
    /// What they say of a console that listens there.
    ///
    /// # Errors
    /// A token file that cannot be read, or whose tokens are too short; a certificate without its key.
    pub fn options(&self, listen: SocketAddr) -> Result<Options, StartError> {
        Ok(Options {
            listen,
            read_only: self.read_only,
            tokens: self.token_file.as_deref().map(tokens).transpose()?.unwrap_or_default(),
            base_path: self.base_path.clone(),
            hosts: self.allow_host.clone(),
            tls: self.tls()?,
            behind_proxy: self.behind_proxy,
            flag_prefix: "--",
        })
    }

    /// A configuration file may name one without the other.
    fn tls(&self) -> Result<Option<TlsFiles>, StartError> {
        match (self.tls_cert.clone(), self.tls_key.clone()) {
            (Some(certificate), Some(key)) => Ok(Some(TlsFiles { certificate, key })),
            (None, None) => Ok(None),
            _ => Err(StartError::Usage {
                message: "a certificate and its key go together".to_owned(),
                hint: "name both files, tls-cert and tls-key".to_owned(),
            }),
        }
    }
}

/// The same flags in a program that has others beside them: `--console-read-only` and so on.
#[derive(Clone, Debug, Default)]
pub struct WorkerConsoleFlags(pub ConsoleFlags);

impl WorkerConsoleFlags {
    /// As [`ConsoleFlags::options`]; hints name the flags as they are called here.
    ///
    /// # Errors
    /// As there.
    pub fn options(&self, listen: SocketAddr) -> Result<Options, StartError> {
        Ok(Options { flag_prefix: "--console-", ..self.0.options(listen)? })
    }
}

impl Args for WorkerConsoleFlags {
    fn augment_args(command: Command) -> Command {
        let own = ConsoleFlags::augment_args(Command::new("console"));
        own.get_arguments().fold(command, |command, arg| {
            let long = format!("console-{}", arg.get_long().unwrap_or_default());
            command.arg(arg.clone().long(long))
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

/// Steps of plain characters, each behind a slash.
///
/// # Errors
/// Anything else.
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
        _ => Err("a base path is like /pgmill: letters, digits, - _ .".to_owned()),
    }
}

/// A line for each: the token, and behind it whose it is, if one likes.
fn tokens(file: &Path) -> Result<Vec<Token>, StartError> {
    let named = file.display();
    let text = std::fs::read_to_string(file).map_err(|error| StartError::Usage {
        message: format!("cannot read the token in {named}: {error}"),
        hint: format!("openssl rand -hex 32 > {named}"),
    })?;
    let token = |line: &str| {
        let (secret, label) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let label = Some(label.trim().to_owned()).filter(|label| !label.is_empty());
        Token { secret: secret.to_owned(), label }
    };
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let tokens: Vec<Token> = lines.map(token).collect();
    let short = |token: &Token| token.secret.chars().count() < MIN_TOKEN_CHARS;
    if tokens.is_empty() || tokens.iter().any(short) {
        return Err(StartError::Usage {
            message: format!("the token in {named} has fewer than {MIN_TOKEN_CHARS} characters"),
            hint: format!("openssl rand -hex 32 > {named}"),
        });
    }
    Ok(tokens)
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
    fn a_worker_has_the_same_flags_under_names_of_their_own() {
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
