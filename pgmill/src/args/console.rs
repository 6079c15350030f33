//! Arguments of `pgmill console`.

use std::net::SocketAddr;

use console::ConsoleFlags;

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
