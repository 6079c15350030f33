//! A proxy that knows PostgreSQL's framing, and cuts a session at the message it is told to.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, sink};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The startup message's protocol version; what comes before it (requests for encryption) and
/// instead of it (cancel requests) has the same form and another number.
const PROTOCOL_3: u32 = 196_608;

/// How the client's session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The message does not arrive, and the server sees the end.
    Before,
    /// The message arrives, its answer does not, and the server sees the end.
    After,
    /// The message arrives, its answer does not, and the server sees nothing, as behind a network
    /// that swallows packets.
    Unseen,
}

/// What all connections share.
struct Shared {
    upstream: String,
    plan: Mutex<Plan>,
    /// Which round it is: connections of earlier rounds that the server still keeps are let go.
    round: watch::Sender<u32>,
}

#[derive(Default)]
struct Plan {
    /// Messages that still pass, and what happens to the next one.
    armed: Option<(u32, Cut)>,
    fired: bool,
}

/// Listens on a port of its own until its runtime ends.
pub(crate) struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

impl Proxy {
    /// In front of the server of this URL.
    pub(crate) async fn start(url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            upstream: place(url).to_owned(),
            plan: Mutex::default(),
            round: watch::Sender::new(0),
        });
        let accepting = Arc::clone(&shared);
        #[expect(clippy::disallowed_methods, reason = "a test ends with its runtime")]
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(client, Arc::clone(&accepting)));
            }
        });
        Self { port, shared }
    }

    /// The URL by which the server is reached through this proxy.
    pub(crate) fn url(&self, url: &str) -> String {
        url.replace(place(url), &format!("127.0.0.1:{}", self.port))
    }

    /// Cuts at the `n`-th message from now on, counted from 1.
    pub(crate) fn arm(&self, n: u32, cut: Cut) {
        *self.shared.plan.lock().unwrap() = Plan { armed: Some((n - 1, cut)), fired: false };
    }

    /// Whether it has cut since it was armed. Ends what the server has not seen the end of.
    pub(crate) fn disarm(&self) -> bool {
        self.shared.round.send_modify(|round| *round += 1);
        std::mem::take(&mut *self.shared.plan.lock().unwrap()).fired
    }
}

impl Shared {
    /// What is to happen to a message that has come in; `None`: it passes.
    fn judge(&self) -> Option<Cut> {
        let mut plan = self.plan.lock().unwrap();
        match plan.armed {
            Some((0, cut)) => {
                *plan = Plan { armed: None, fired: true };
                Some(cut)
            }
            Some((left, cut)) => {
                plan.armed = Some((left - 1, cut));
                None
            }
            None => None,
        }
    }
}

/// Host and port in a URL.
fn place(url: &str) -> &str {
    let (_, rest) = url.rsplit_once('@').unwrap();
    rest.split_once('/').unwrap().0
}

async fn serve(client: TcpStream, shared: Arc<Shared>) {
    let mut round = shared.round.subscribe();
    let Ok(server) = TcpStream::connect(&shared.upstream).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let cut = tokio::select! {
        cut = forward(&mut from_client, &mut to_server, &shared) => cut.ok(),
        _ = copy(&mut from_server, &mut to_client) => None,
    };
    drop((from_client, to_client));
    // What the server has to say from here on nobody hears; it is read all the same, so that the
    // server gets to everything that was sent to it before it sees the end.
    let mut nobody = sink();
    match cut {
        Some((Cut::Unseen, message)) => {
            let _ = to_server.write_all(&message).await;
            let begun = *round.borrow_and_update();
            tokio::select! {
                _ = copy(&mut from_server, &mut nobody) => {}
                _ = round.wait_for(|now| *now != begun) => {}
            }
        }
        Some((Cut::After, message)) => {
            let _ = to_server.write_all(&message).await;
        }
        Some((Cut::Before, _)) | None => {}
    }
    let _ = to_server.shutdown().await;
    let _ = copy(&mut from_server, &mut nobody).await;
}

/// Passes the client's messages on until one is to be cut at: the way, and the message.
///
/// # Errors
/// One side is gone.
async fn forward(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    shared: &Shared,
) -> std::io::Result<(Cut, Vec<u8>)> {
    loop {
        let packet = read(from, &[]).await?;
        to.write_all(&packet).await?;
        if packet[4..8] == PROTOCOL_3.to_be_bytes() {
            break;
        }
    }
    loop {
        let kind = from.read_u8().await?;
        let message = read(from, &[kind]).await?;
        if let Some(cut) = shared.judge() {
            return Ok((cut, message));
        }
        to.write_all(&message).await?;
    }
}

/// A length, which counts itself, and what it announces; behind what was read before.
async fn read(from: &mut OwnedReadHalf, before: &[u8]) -> std::io::Result<Vec<u8>> {
    let length = from.read_u32().await?;
    let mut message = before.to_vec();
    message.extend(length.to_be_bytes());
    let head = message.len();
    message.resize(head + usize::try_from(length).unwrap_or(4) - 4, 0);
    from.read_exact(&mut message[head..]).await?;
    Ok(message)
}
