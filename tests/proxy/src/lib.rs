//! A proxy that understands PostgreSQL's message framing. The proxy cuts or holds a session at a
//! given message, damages bytes of the answers, and can delay all replies.
//!
//! `plan` defines which fault hits which message, `session` forwards one connection,
//! `answers` parses and damages the answers. `gate` is a
//! forwarder of any protocol that can hold all bytes.

mod answers;
mod gate;
mod plan;
mod session;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinSet;

use plan::Shared;

pub use gate::Gate;
pub use plan::{Cut, Damage, DamageKind, FaultAction, MessageMatch};

/// A proxy that listens on its own port on 127.0.0.1. Dropping the value ends the proxy and its
/// connections.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    _accepting: JoinSet<()>,
}

impl Proxy {
    /// Starts a proxy for the server of this URL, which must contain host and port.
    ///
    /// # Errors
    /// Returns an error if no port is available, or the URL has no host.
    pub async fn start(url: &str) -> io::Result<Self> {
        let upstream = address(url).ok_or_else(no_address)?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared::new(upstream.to_owned()));
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { port, shared, _accepting: accepting })
    }

    /// Returns the URL of the server through this proxy.
    #[must_use]
    pub fn url(&self, url: &str) -> String {
        match address(url) {
            Some(address) => url.replace(address, &format!("127.0.0.1:{}", self.port)),
            None => url.to_owned(),
        }
    }

    /// Sends new connections to the server of this URL from now on.
    ///
    /// # Errors
    /// Returns an error if the URL has no host.
    pub fn set_upstream(&self, url: &str) -> io::Result<()> {
        let upstream = address(url).ok_or_else(no_address)?;
        self.shared.set_upstream(upstream);
        Ok(())
    }

    /// Arms one fault for the first matching message.
    pub fn arm(&self, at: MessageMatch, act: FaultAction) {
        self.shared.arm(at, act);
    }

    /// Returns once the fault has occurred.
    pub async fn fired(&self) {
        self.shared.fired().await;
    }

    /// Releases the held message: forwards it, or cuts its session.
    pub fn release(&self, pass: bool) {
        self.shared.release(pass);
    }

    /// Returns the messages of the answer that was recorded last: their types and sizes.
    #[must_use]
    pub fn recorded(&self) -> Vec<(char, usize)> {
        self.shared.recorded()
    }

    /// Disarms the fault and returns whether it occurred. Ends sessions whose end the server has
    /// not seen; a held message is [released](Self::release) separately.
    pub fn disarm(&self) -> bool {
        self.shared.disarm()
    }

    /// Delays every reply by this time from now on.
    pub fn delay(&self, by: Duration) {
        self.shared.delay(by);
    }
}

/// Serves each connection; all end when this future is dropped.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => {
                    connections.spawn(session::serve(client, Arc::clone(&shared)));
                }
                Err(_) => return,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Returns host and port of a URL.
fn address(url: &str) -> Option<&str> {
    let (_, rest) = url.rsplit_once('@')?;
    Some(rest.split_once('/')?.0)
}

fn no_address() -> io::Error {
    io::Error::other("the URL has no host and port")
}
