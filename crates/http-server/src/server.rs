//! Accepts connections, and shuts down.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use rustix::process::{Resource, getrlimit};
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::activity::Activity;
use crate::connection::{Connection, PeerAddress};
use crate::connections::Connections;
use crate::refusal::{Refusal, RefusalObserver};

/// Time limit for open requests at shutdown: longer than the longest statement of a request (20 s).
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// A server that does not serve yet.
pub struct Server {
    listener: TcpListener,
    tls: Option<watch::Receiver<Arc<ServerConfig>>>,
    max_connections: usize,
    observer: RefusalObserver,
}

impl Server {
    /// Prepares a server for at most `max_connections` connections, but not for more than half of
    /// the file descriptors that the process may open: the rest is for other connections, such as
    /// those to the database.
    pub fn new(listener: TcpListener, max_connections: usize, observer: RefusalObserver) -> Self {
        let descriptors = getrlimit(Resource::Nofile).current;
        let half = descriptors.and_then(|it| usize::try_from(it / 2).ok()).unwrap_or(usize::MAX);
        Self { listener, tls: None, max_connections: max_connections.min(half).max(1), observer }
    }

    /// Requires TLS. Each connection uses the configuration that is current when it begins.
    #[must_use]
    pub fn with_tls(self, config: watch::Receiver<Arc<ServerConfig>>) -> Self {
        Self { tls: Some(config), ..self }
    }

    /// Serves requests until `end` completes and all open requests are answered, but at most 30 s
    /// longer.
    pub async fn serve(mut self, router: Router, end: impl Future<Output = ()>) {
        let shutdown = CancellationToken::new();
        let mut connections = Connections::default();
        let mut end = pin!(end);
        loop {
            let (stream, from) = tokio::select! {
                () = end.as_mut() => break,
                () = connections.ended() => continue,
                accepted = Listener::accept(&mut self.listener) => accepted,
            };
            if connections.len() >= self.max_connections {
                let replaced = connections.replace_one().await;
                let full = if replaced { Refusal::Replaced } else { Refusal::ConnectionLimit };
                (self.observer)(full);
                if !replaced {
                    continue;
                }
            }
            let connection = Connection {
                peer: PeerAddress(from.ip().to_canonical()),
                activity: Arc::new(Activity::new()),
                router: router.clone(),
                observer: Arc::clone(&self.observer),
                shutdown: shutdown.clone(),
            };
            let config = self.tls.as_ref().map(|config| Arc::clone(&config.borrow()));
            connections.spawn(connection, stream, config);
        }
        drop(self.listener);
        shutdown.cancel();
        // Dropping the tasks closes the connections that are left.
        let _ = timeout(SHUTDOWN_TIMEOUT, connections.all_ended()).await;
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::routing::get;
    use parking_lot::Mutex;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpSocket, TcpStream};
    use tokio::sync::Semaphore;

    use super::*;

    /// A server with `/busy`, which answers once it gets a permit, and `/large`.
    struct Served {
        address: SocketAddr,
        /// Permits for `/busy`.
        permits: Arc<Semaphore>,
        /// Has a permit for each request that has arrived.
        arrived: Arc<Semaphore>,
        refused: Arc<Mutex<Vec<Refusal>>>,
    }

    async fn start(max_connections: usize) -> Served {
        let [permits, arrived] = [(); 2].map(|()| Arc::new(Semaphore::new(0)));
        let refused = Arc::<Mutex<Vec<_>>>::default();
        let (taken, at) = (Arc::clone(&permits), Arc::clone(&arrived));
        let busy = async move || {
            at.add_permits(1);
            taken.acquire().await.map(|_| "done").unwrap_or_default()
        };
        let at = Arc::clone(&arrived);
        let large = async move || {
            at.add_permits(1);
            vec![b'a'; 64 << 20]
        };
        let router = Router::new().route("/busy", get(busy)).route("/large", get(large));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::clone(&refused);
        let server =
            Server::new(listener, max_connections, Arc::new(move |it| seen.lock().push(it)));
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(server.serve(router, std::future::pending()));
        tasks.detach_all();
        Served { address, permits, arrived, refused }
    }

    async fn request(stream: &mut TcpStream, path: &str) {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
    }

    #[tokio::test]
    async fn a_busy_connection_is_not_replaced() {
        let Served { address, permits, arrived, refused } = start(1).await;
        let mut busy = TcpStream::connect(address).await.unwrap();
        request(&mut busy, "/busy").await;
        arrived.acquire().await.unwrap().forget();
        let mut other = TcpStream::connect(address).await.unwrap();
        let _ = other.read_to_end(&mut Vec::new()).await;
        assert_eq!(*refused.lock(), [Refusal::ConnectionLimit]);
        permits.add_permits(1);
        let mut answer = String::new();
        busy.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("done"), "{answer}");
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_is_replaced() {
        let Served { address, permits, arrived, refused } = start(1).await;
        permits.add_permits(1);
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut silent = socket.connect(address).await.unwrap();
        request(&mut silent, "/large").await;
        arrived.acquire().await.unwrap().forget();
        // Busy until the buffers of both sides are full.
        let mut answer = String::new();
        while !answer.ends_with("done") {
            let mut other = TcpStream::connect(address).await.unwrap();
            request(&mut other, "/busy").await;
            answer.clear();
            let _ = other.read_to_string(&mut answer).await;
        }
        assert_eq!(refused.lock().last(), Some(&Refusal::Replaced));
    }
}
