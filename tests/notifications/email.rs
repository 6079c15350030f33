//! E-mail: a message to every address, with the title as its subject.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::receiver::TemporaryFile;
use crate::harness::{Database, eventually};
use crate::notifications::delivery::worker;
use crate::notifications::events::subscribe;

/// A mail server that keeps what clients send: commands with the prefix `> `, and mails.
struct MailServer {
    port: u16,
    lines: Arc<Mutex<Vec<String>>>,
}

impl MailServer {
    /// Starts a server that answers this to the end of a mail.
    async fn start(answer: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let it = Self { port, lines: Arc::clone(&lines) };
        #[expect(clippy::disallowed_methods, reason = "a test ends with its runtime")]
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&lines), answer));
            }
        });
        it
    }

    fn text(&self) -> String {
        self.lines.lock().concat()
    }
}

/// Speaks the server's part of SMTP (RFC 5321) without extensions.
async fn serve(stream: TcpStream, lines: Arc<Mutex<Vec<String>>>, answer: &str) -> Option<()> {
    let mut stream = BufReader::new(stream);
    stream.write_all(b"220 test\r\n").await.ok()?;
    let mut in_data = false;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let command = !in_data;
        let reply = match line.trim_end() {
            "." if in_data => {
                in_data = false;
                answer
            }
            _ if in_data => "",
            "DATA" => {
                in_data = true;
                "354 go on"
            }
            "QUIT" => "221 bye",
            _ => "250 ok",
        };
        lines.lock().push(if command { format!("> {line}") } else { line });
        if !reply.is_empty() {
            stream.write_all(format!("{reply}\r\n").as_bytes()).await.ok()?;
        }
    }
}

fn config(server: &MailServer) -> TemporaryFile {
    TemporaryFile::new(&format!(
        "[destinations.mail]\nkind = \"email\"\nhost = \"localhost\"\nport = {}\ntls = \"none\"\n\
         from = \"pgmill <mill@example.com>\"\nto = [\"ann@example.com\", \"Bob <bob@example.com>\"]\n\
         allow_private = true\n",
        server.port
    ))
}

const FAILURE: &str = "SELECT mill.notify('task_failed',
    '{\"task_id\": 42, \"task\": \"ladè\", \"queue\": \"etl\"}',
    '{\"outcome\": \"failed\", \"message\": \"first\\r\\n.\\r\\nRCPT TO:<eve@example.com>\"}')";

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_mailed_to_every_address_and_no_text_becomes_a_command() {
    let database = Database::new().await;
    let server = MailServer::start("250 queued").await;
    let config = config(&server);
    subscribe(&database, "s", json!({"events": ["task_failed"], "destination": "mail"})).await;
    let _worker = worker(&database, &config);
    database.execute(FAILURE).await;
    eventually("it is marked as sent", async || {
        database.value("SELECT bool_and(sent_at IS NOT NULL) FROM mill.notifications").await
    })
    .await;
    let text = server.text();
    let commands =
        |name: &str| text.lines().filter(|line| line.starts_with(&format!("> {name}"))).count();
    assert_eq!((commands("MAIL FROM:<mill@example.com>"), commands("RCPT TO:")), (1, 2), "{text}");
    assert!(text.contains("> RCPT TO:<bob@example.com>"), "{text}");
    assert!(text.contains("Subject: ") && text.contains("Queue: etl"), "{text}");
    assert!(text.contains("Message-ID: <"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mail_that_the_server_refuses_is_rejected_with_its_answer() {
    let database = Database::new().await;
    let server = MailServer::start("554 5.7.1 no").await;
    let config = config(&server);
    subscribe(&database, "s", json!({"events": ["task_failed"], "destination": "mail"})).await;
    let _worker = worker(&database, &config);
    database.execute(FAILURE).await;
    let sql = "SELECT coalesce(max(last_error), '') FROM mill.notifications";
    eventually("an attempt fails", async || !database.value::<String>(sql).await.is_empty()).await;
    let error: String = database.value(sql).await;
    assert!(error.contains("localhost") && error.contains("5.7.1 no"), "{error}");
    let waits = "SELECT retry_at IS NULL FROM mill.subscription_state";
    assert!(database.value::<bool>(waits).await, "other messages do not wait");
}
