//! A gate: forwards bytes while it is open, and holds them while it is closed.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Size of the buffer of one direction.
const BUFFER_BYTES: usize = 16 * 1024;

/// A forwarder to a port on 127.0.0.1, with its own port. A closed gate is like a network that
/// drops every packet: nothing arrives, no connection ends, and everything arrives after the gate
/// has been opened. Dropping the value ends the gate and its connections.
pub struct Gate {
    port: u16,
    open: watch::Sender<bool>,
    _accepting: JoinSet<()>,
}

impl Gate {
    /// Starts an open gate to this port.
    ///
    /// # Errors
    /// Returns an error if no port is available.
    pub async fn start(upstream: u16) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let (open, seen) = watch::channel(true);
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, upstream, seen));
        Ok(Self { port, open, _accepting: accepting })
    }

    /// Returns the gate's own port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Opens or closes the gate, for existing and for new connections.
    pub fn set_open(&self, open: bool) {
        self.open.send_replace(open);
    }
}

/// Serves each connection; all end when this future is dropped.
async fn accept(listener: TcpListener, upstream: u16, open: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => {
                    let open = open.clone();
                    connections.spawn(async move {
                        // Both sides see the end of the connection.
                        let _ = serve(client, upstream, open).await;
                    });
                }
                Err(_) => return,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(
    client: TcpStream,
    upstream: u16,
    mut open: watch::Receiver<bool>,
) -> io::Result<()> {
    until_open(&mut open).await?;
    let server = TcpStream::connect(("127.0.0.1", upstream)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let requests = forward(from_client, to_server, open.clone());
    let replies = forward(from_server, to_client, open);
    tokio::try_join!(requests, replies).map(drop)
}

async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut open: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let count = from.read(&mut buffer).await?;
        until_open(&mut open).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..count]).await?;
    }
}

/// Returns an error if the gate was dropped.
async fn until_open(open: &mut watch::Receiver<bool>) -> io::Result<()> {
    open.wait_for(|open| *open).await.map(drop).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_closed_gate_holds_connections_and_bytes_until_it_opens() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        let gate = Gate::start(port).await.unwrap();
        gate.set_open(false);
        let mut held = TcpStream::connect(("127.0.0.1", gate.port())).await.unwrap();
        held.write_all(b"held").await.unwrap();
        // A later connection without a gate arrives first.
        let direct = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let (_, peer) = server.accept().await.unwrap();
        assert_eq!(peer, direct.local_addr().unwrap());
        gate.set_open(true);
        let (mut accepted, _) = server.accept().await.unwrap();
        let mut received = [0; 4];
        accepted.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"held");
        drop(accepted);
        assert_eq!(held.read(&mut received).await.unwrap(), 0, "the end is forwarded");
    }
}
