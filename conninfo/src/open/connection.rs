//! The connection types of the driver, with TLS.

use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

pub(crate) type Stream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;
pub(crate) type Handshake = <MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect;
pub(crate) type Opened = (Client, Connection);

/// The part of a connection that has to be driven: await it, or call `poll_message` to receive
/// notices and notifications.
pub type Connection = tokio_postgres::Connection<Socket, Stream>;
