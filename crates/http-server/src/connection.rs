//! A connection: TLS handshake, requests and their time limits.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::activity::{Activity, CLIENT_TIMEOUT};
use crate::body::{RequestBody, ResponseBody};
use crate::refusal::{Refusal, RefusalObserver};
use crate::write_timeout::WriteTimeout;

/// Time limit for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of a request's header with its path, in bytes. hyper accepts 400 kB by default; no
/// page needs more than a few kB, and a search has to fit into the path.
const MAX_HEADER_BYTES: usize = 64 * 1024;

/// Address from which a request came: that of the proxy, if there is one. An extension of each
/// request.
#[derive(Clone, Copy, Debug)]
pub struct PeerAddress(pub IpAddr);

/// Returns the network of a client: its address, or the /64 network of an IPv6 address, because a
/// client usually has a whole network.
#[must_use]
pub fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

/// A connection that was accepted.
pub(crate) struct Connection {
    pub(crate) peer: PeerAddress,
    pub(crate) activity: Arc<Activity>,
    pub(crate) router: Router,
    pub(crate) observer: RefusalObserver,
    pub(crate) shutdown: CancellationToken,
}

impl Connection {
    /// Serves the connection until the client closes it, is too slow, or the server shuts down.
    pub(crate) async fn run(self, stream: TcpStream, tls: Option<Arc<ServerConfig>>) {
        let Some(config) = tls else { return self.serve(stream).await };
        let handshake = timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(config).accept(stream));
        let finished = tokio::select! {
            finished = handshake => finished,
            () = self.shutdown.cancelled() => return,
        };
        match finished {
            Ok(Ok(stream)) => self.serve(stream).await,
            Ok(Err(error)) => {
                tracing::debug!("TLS handshake with {} failed: {error}", self.peer.0);
            }
            Err(_) => (self.observer)(Refusal::Timeout),
        }
    }

    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let Self { peer, activity, router, observer, shutdown } = self;
        let stream = WriteTimeout::new(stream, Arc::clone(&activity), Arc::clone(&observer));
        let router = TowerToHyperService::new(router);
        let answer = |request: Request<Incoming>| {
            let body = |body| RequestBody::new(body, Arc::clone(&activity), Arc::clone(&observer));
            let mut request = request.map(|it| Body::new(body(it)));
            request.extensions_mut().insert(peer);
            let (response, activity) = (router.call(request), Arc::clone(&activity));
            async move {
                let Ok(response) = response.await;
                let response: Response<ResponseBody> =
                    response.map(|body| ResponseBody::new(body, activity));
                Ok::<_, Infallible>(response)
            }
        };
        let mut connection = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(CLIENT_TIMEOUT)
                .max_header_size(MAX_HEADER_BYTES)
                .max_buf_size(MAX_HEADER_BYTES)
                .serve_connection(TokioIo::new(stream), service_fn(answer))
        );
        let served = tokio::select! {
            served = connection.as_mut() => served,
            () = shutdown.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        // An idle connection that is closed is not a refusal.
        if served.is_err_and(|error| error.is_timeout()) && activity.is_partial() {
            observer(Refusal::Timeout);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_an_address_or_a_network() {
        let network = |text: &str| client_network(text.parse().unwrap()).to_string();
        assert_eq!(network("192.0.2.7"), "192.0.2.7");
        assert_eq!(network("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(network("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
    }
}
