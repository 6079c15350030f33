//! `pgmill console`.

use std::net::SocketAddr;
use std::path::PathBuf;

pub(super) const CONSOLE_HELP: &str = "\
Examples:
  pgmill console
  pgmill console --read-only
  pgmill console --listen 0.0.0.0:8787 --token-file /etc/pgmill/token --allow-host console.example

Whoever reaches it looks and acts with the rights of its login: give it one that is a member of
mill_viewer, and of mill_operator if it is to act. It ends at SIGINT or SIGTERM.";

/// How the console is served.
#[derive(Debug, clap::Args)]
pub(crate) struct ConsoleArgs {
    /// Where to listen; an address beyond this machine needs --token-file
    #[arg(long, env = "PGMILL_CONSOLE_LISTEN", value_name = "ADDRESS")]
    #[arg(default_value = "127.0.0.1:8787")]
    pub(crate) listen: SocketAddr,
    /// Only look: nothing can be changed through it
    #[arg(long, env = "PGMILL_CONSOLE_READ_ONLY")]
    pub(crate) read_only: bool,
    /// File with the token that one signs in with
    #[arg(long, env = "PGMILL_CONSOLE_TOKEN_FILE", value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// What stands in front of every path, behind a proxy that passes it on
    #[arg(long, env = "PGMILL_CONSOLE_BASE_PATH", value_name = "PATH", value_parser = base_path)]
    #[arg(default_value = "")]
    pub(crate) base_path: String,
    /// Name that it is reached by, beside localhost and addresses; may be repeated
    #[arg(long, env = "PGMILL_CONSOLE_ALLOW_HOST", value_name = "NAME", value_delimiter = ',')]
    pub(crate) allow_host: Vec<String>,
}

/// Steps of plain characters, each behind a slash.
fn base_path(text: &str) -> Result<String, String> {
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
