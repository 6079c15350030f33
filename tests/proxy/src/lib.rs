//! A proxy that knows PostgreSQL's framing. It cuts a session, or holds it up, at the message it is
//! told to, and can let all answers come late.
//!
//! `plan` says what happens to which message, `session` is one connection on its way.

mod plan;
mod session;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinSet;

use plan::Shared;

pub use plan::{Cut, FaultAction, MessageMatch};

/// Listens on a port of its own of 127.0.0.1 until it is dropped; its connections end with it.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    _accepting: JoinSet<()>,
}

impl Proxy {
    /// In front of the server of this URL, which has to name host and port.
    ///
    /// # Errors
    /// No port, or no host in the URL.
    pub async fn start(url: &str) -> io::Result<Self> {
        let upstream = address(url).ok_or_else(no_address)?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared::new(upstream.to_owned()));
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { port, shared, _accepting: accepting })
    }

    /// The URL by which the server is reached through this proxy.
    #[must_use]
    pub fn url(&self, url: &str) -> String {
        match address(url) {
            Some(address) => url.replace(address, &format!("127.0.0.1:{}", self.port)),
            None => url.to_owned(),
        }
    }

    /// New connections go to the server of this URL from now on.
    ///
    /// # Errors
    /// No host in the URL.
    pub fn set_upstream(&self, url: &str) -> io::Result<()> {
        let upstream = address(url).ok_or_else(no_address)?;
        self.shared.set_upstream(upstream);
        Ok(())
    }

    /// What happens once, to the first message that is there.
    pub fn arm(&self, at: MessageMatch, act: FaultAction) {
        self.shared.arm(at, act);
    }

    /// Returns when it has happened.
    pub async fn fired(&self) {
        self.shared.fired().await;
    }

    /// Lets go of what is held: it goes on, or its session is cut.
    pub fn release(&self, pass: bool) {
        self.shared.release(pass);
    }

    /// Whether it has happened since it was armed. Ends what the server has not seen the end of; what
    /// is held is [released](Self::release) apart.
    pub fn disarm(&self) -> bool {
        self.shared.disarm()
    }

    /// From now on every answer arrives this much later.
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

/// Host and port in a URL.
fn address(url: &str) -> Option<&str> {
    let (_, rest) = url.rsplit_once('@')?;
    Some(rest.split_once('/')?.0)
}

fn no_address() -> io::Error {
    io::Error::other("no host and port in the URL")
}
