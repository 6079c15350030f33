//! Arguments of `pgmill console`.

use std::net::SocketAddr;

use console::ConsoleFlags;

pub(super) const CONSOLE_HELP: &str = "\
Examples:
  pgmill console
  pgmill console --read-only
  pgmill console --environment prod --environment-color red
  pgmill console --listen 0.0.0.0:8787 --allow-host console.example --token-file /etc/pgmill/token \\
    --tls-cert /etc/pgmill/console.crt --tls-key /etc/pgmill/console.key
  pgmill console --listen 10.0.0.7:8787 --allow-host console.example --behind-proxy \\
    --token-file /etc/pgmill/token

Every user of the console reads and acts with the privileges of its database login: use a login that
is a member of mill_viewer, and of mill_operator if users may act. SIGINT or SIGTERM ends it.";

/// Listen address and options of the console.
#[derive(Debug, clap::Args)]
pub(crate) struct ConsoleArgs {
    /// Listen address; an address other than loopback requires --token-file, and --tls-cert or
    /// --behind-proxy
    #[arg(long, env = "PGMILL_CONSOLE_LISTEN", value_name = "ADDRESS")]
    #[arg(default_value = "127.0.0.1:8787")]
    pub(crate) listen: SocketAddr,
    #[command(flatten)]
    pub(crate) flags: ConsoleFlags,
}
