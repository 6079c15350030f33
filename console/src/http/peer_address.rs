//! Address of the client of a connection.

use std::net::{IpAddr, SocketAddr};

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use tokio::net::TcpListener;

use super::tls::TlsListener;

/// Address from which a request came: that of the proxy, if there is one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerAddress(pub(crate) IpAddr);

impl From<SocketAddr> for PeerAddress {
    /// An IPv6 socket reports IPv4 clients as IPv6 addresses.
    fn from(address: SocketAddr) -> Self {
        Self(address.ip().to_canonical())
    }
}

impl Connected<IncomingStream<'_, TcpListener>> for PeerAddress {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        (*stream.remote_addr()).into()
    }
}

impl Connected<IncomingStream<'_, TlsListener>> for PeerAddress {
    fn connect_info(stream: IncomingStream<'_, TlsListener>) -> Self {
        (*stream.remote_addr()).into()
    }
}
