//! A session that listens for notifications.

use std::future::poll_fn;

use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client};

use crate::harness::Database;

/// Payload that ends a list of notifications.
const END: &str = "end of the list";

/// Receives the notifications of one channel.
pub(crate) struct Listener {
    client: Client,
    channel: &'static str,
    payloads: mpsc::UnboundedReceiver<String>,
}

impl Listener {
    /// Listens on a channel of this database.
    pub(crate) async fn start(database: &Database, channel: &'static str) -> Self {
        let (client, mut connection) = conninfo::open(&database.target()).await.unwrap();
        let (sender, payloads) = mpsc::unbounded_channel();
        #[expect(clippy::disallowed_methods, reason = "a test ends with its runtime")]
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await
            {
                if let AsyncMessage::Notification(notification) = message {
                    let _ = sender.send(notification.payload().to_owned());
                }
            }
        });
        client.batch_execute(&format!("LISTEN {channel}")).await.unwrap();
        Self { client, channel, payloads }
    }

    /// Waits for the next notification, and returns its payload.
    pub(crate) async fn next(&mut self) -> String {
        self.payloads.recv().await.unwrap()
    }

    /// Returns the payloads of all notifications that were sent until now.
    pub(crate) async fn all(&mut self) -> Vec<String> {
        let end = format!("NOTIFY {}, '{END}'", self.channel);
        self.client.batch_execute(&end).await.unwrap();
        let mut all = Vec::new();
        loop {
            match self.next().await {
                payload if payload == END => return all,
                payload => all.push(payload),
            }
        }
    }
}
