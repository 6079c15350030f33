//! One connection through the proxy.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, sink};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use crate::answers::Answers;
use crate::plan::{Cut, FaultAction, Matched, Shared};

/// Protocol version in the startup message. Encryption requests, which come before it, and cancel
/// requests, which take its place, have the same format with another number.
const PROTOCOL_3: u32 = 196_608;

/// Message types that the server executes and replies to at once: a simple query, and Sync, which
/// ends a pipeline.
const QUERY: u8 = b'Q';
const SYNC: u8 = b'S';

pub(crate) async fn serve(client: TcpStream, shared: Arc<Shared>) {
    let mut round = shared.round.subscribe();
    let Ok(server) = TcpStream::connect(shared.upstream()).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let gate = watch::Sender::new(true);
    let answers = Answers::default();
    let mut forward =
        Forward { to: &mut to_server, shared: &shared, gate: &gate, answers: &answers };
    let cut = tokio::select! {
        cut = forward.run(&mut from_client) => cut.ok(),
        _ = backward(&mut from_server, &mut to_client, (&shared, &answers), gate.subscribe()) => None,
    };
    // Mark the fault as occurred before the client sees the end of its connection: a test that
    // waits for the client then finds the mark.
    let begun = *round.borrow_and_update();
    let mut unseen = false;
    if let Some((cut, message)) = cut {
        if matches!(cut, Cut::After | Cut::Unseen) {
            let _ = to_server.write_all(&message).await;
        }
        unseen = matches!(cut, Cut::Unseen | Cut::UnseenBefore);
        shared.mark_fired();
    }
    if let Some(damage) = answers.take() {
        shared.arm_again(damage);
    }
    drop((from_client, to_client));
    // Later replies are discarded, but must be read so that the server processes all sent messages
    // before it sees the connection close.
    let mut discard = sink();
    if unseen {
        tokio::select! {
            _ = copy(&mut from_server, &mut discard) => {}
            _ = round.wait_for(|now| *now != begun) => {}
        }
    }
    let _ = to_server.shutdown().await;
    let _ = copy(&mut from_server, &mut discard).await;
}

/// Forwards the client's messages.
struct Forward<'a> {
    to: &'a mut OwnedWriteHalf,
    shared: &'a Shared,
    /// Closed while the replies are held.
    gate: &'a watch::Sender<bool>,
    answers: &'a Answers,
}

impl Forward<'_> {
    /// Forwards messages until the session must be cut; returns the kind of cut and the message.
    ///
    /// # Errors
    /// Returns an error if one side has disconnected, or a held message must not pass.
    async fn run(&mut self, from: &mut OwnedReadHalf) -> io::Result<(Cut, Vec<u8>)> {
        loop {
            let packet = read(from, &[]).await?;
            let starts = packet[4..8] == PROTOCOL_3.to_be_bytes();
            if starts {
                self.answers.begin();
                if let Some(damage) = self.shared.match_startup() {
                    self.answers.arm(damage);
                }
            }
            self.to.write_all(&packet).await?;
            if starts {
                break;
            }
        }
        let mut at_end_of_pipeline = None;
        loop {
            let kind = from.read_u8().await?;
            let message = read(from, &[kind]).await?;
            let ends_pipeline = kind == QUERY || kind == SYNC;
            let act = match self.shared.match_message(&message) {
                Some(Matched { act, whole_pipeline: true, .. }) if !ends_pipeline => {
                    at_end_of_pipeline = Some(act);
                    None
                }
                Some(Matched { at, act: FaultAction::DamageAnswer(damage), .. }) => {
                    self.answers.arm(self.shared.armed_damage(at, damage));
                    None
                }
                Some(matched) => Some(matched.act),
                None if ends_pipeline => at_end_of_pipeline.take(),
                None => None,
            };
            match act {
                Some(FaultAction::Hold) => self.until_released().await?,
                Some(FaultAction::Cut(cut)) => return Ok((cut, message)),
                Some(FaultAction::Fail) => {
                    self.shared.mark_fired();
                    self.to.write_all(&failing_query()).await?;
                    continue;
                }
                Some(FaultAction::HoldAnswer) => {
                    self.gate.send_replace(false);
                    self.to.write_all(&message).await?;
                    self.until_released().await?;
                    self.gate.send_replace(true);
                    continue;
                }
                Some(FaultAction::DamageAnswer(_)) | None => {}
            }
            self.to.write_all(&message).await?;
        }
    }

    async fn until_released(&self) -> io::Result<()> {
        if self.shared.wait_for_release().await {
            Ok(())
        } else {
            Err(io::ErrorKind::ConnectionAborted.into())
        }
    }
}

/// Returns a simple query that fails.
fn failing_query() -> Vec<u8> {
    let text = b"SELECT 1/0\0";
    let length = u32::try_from(4 + text.len()).unwrap_or_default();
    [&[QUERY][..], &length.to_be_bytes(), text].concat()
}

/// Forwards the server's replies with the current delay. Returns when one side has disconnected.
async fn backward(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    (shared, answers): (&Shared, &Answers),
    mut gate: watch::Receiver<bool>,
) -> io::Result<()> {
    let (sender, mut waiting) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    // This future owns the sender, so the end of the replies ends both futures, after all replies
    // are written.
    let read = async move {
        loop {
            let mut part = Vec::with_capacity(8192);
            if from.read_buf(&mut part).await? == 0 {
                return io::Result::Ok(());
            }
            answers.keep_if(|damage| shared.is_armed(damage));
            let passed = answers.pass(&mut part);
            let due = Instant::now() + *shared.delay.borrow();
            let sent = sender.send((due, part));
            if let Some(recorded) = passed.fired {
                shared.answered(recorded);
            }
            if passed.ends || sent.is_err() {
                return Ok(());
            }
        }
    };
    let write = async {
        while let Some((due, part)) = waiting.recv().await {
            sleep_until(due).await;
            if gate.wait_for(|open| *open).await.is_err() {
                return Ok(());
            }
            to.write_all(&part).await?;
        }
        io::Result::Ok(())
    };
    tokio::try_join!(read, write).map(drop)
}

/// Reads a length, which counts itself, and the content. Appends both to the bytes that were read
/// before.
async fn read(from: &mut OwnedReadHalf, before: &[u8]) -> io::Result<Vec<u8>> {
    let length = from.read_u32().await?;
    let mut message = before.to_vec();
    message.extend(length.to_be_bytes());
    let head = message.len();
    message.resize(head + usize::try_from(length).unwrap_or(4).saturating_sub(4), 0);
    from.read_exact(&mut message[head..]).await?;
    Ok(message)
}
